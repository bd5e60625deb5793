"""Index and web together: both rankings as one, or the web only where the index has nothing like the query."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from cachetools import LRUCache

from indexes.ranking.rankings import RRF_K, named
from indexes.rows.passage_store import passage_text
from indexes.web.ranking import Ranker
from steprag.agent.retriever import Retriever, SourceChoice
from steprag.console.progress import say
from steprag.errors import RetrieverError
from steprag.types import Passage

REMEMBERED = 4096
"""Queries whose choice is remembered."""


class _Choosing:
    """Remembers where the passages of the last queries came from."""

    def __init__(self) -> None:
        self._choices: LRUCache[str, SourceChoice] = LRUCache(REMEMBERED)

    def choice(self, query: str) -> SourceChoice | None:
        """Where the passages of the last search of this query came from, and why."""
        return self._choices.get(query)


class FusedRetriever(_Choosing):
    """Index and web by reciprocal rank fusion: a passage counts 1 / (60 + its rank) in each ranking, and the sum is
    scaled so that the first place in both gives 1 (`fuse_ranks`, here over passages and not over rows).

    Where the web fails, the index answers alone, which `choice` says.
    """

    def __init__(self, local: Retriever, web: Retriever) -> None:
        self._local, self._web = local, web
        super().__init__()
        self.fingerprint = f"both:{named(RRF_K, local.fingerprint, web.fingerprint)}"

    async def ready(self) -> None:
        """Waits for both."""
        await asyncio.gather(self._local.ready(), self._web.ready())

    async def search(self, query: str, top_k: int) -> tuple[Passage, ...]:
        """The best of both, the index's first where they are equal."""
        local, web = await asyncio.gather(
            self._local.search(query, top_k), self._web.search(query, top_k), return_exceptions=True
        )
        if isinstance(local, BaseException):
            raise local
        if isinstance(web, RetrieverError):
            self._choices[query] = _without_web(web)
            return local
        if isinstance(web, BaseException):
            raise web
        self._choices[query] = SourceChoice("both", "index and web are fused by rank")
        return fused(local, web)[:top_k]

    async def aclose(self) -> None:
        """Closes both."""
        await asyncio.gather(self._local.aclose(), self._web.aclose())


class FallbackRetriever(_Choosing):
    """The index; the web where the index's best passage is less like the query than `threshold`.

    How alike they are is one measure for every kind of index: the cosine by the web's encoder. A hybrid ranking's own
    scores say only which passage is the best. Where the web fails, the index answers, which `choice` says.
    """

    def __init__(self, local: Retriever, web: Retriever, ranker: Ranker, threshold: float) -> None:
        self._local, self._web, self._ranker, self._threshold = local, web, ranker, threshold
        super().__init__()
        facts = named(threshold, local.fingerprint, web.fingerprint, ranker.fingerprint)
        self.fingerprint = f"auto:{facts}"

    async def ready(self) -> None:
        """Waits for both."""
        await asyncio.gather(self._local.ready(), self._web.ready(), self._ranker.ready())

    async def search(self, query: str, top_k: int) -> tuple[Passage, ...]:
        """The passages of the index, or of the web."""
        local = await self._local.search(query, top_k)
        likeness = await alike(self._ranker, query, local)
        said = f"the index's best passage is {likeness:.2f} like the query, the threshold is {self._threshold:.2f}"
        if likeness >= self._threshold:
            self._choices[query] = SourceChoice("local", said)
            return local
        try:
            web = await self._web.search(query, top_k)
        except RetrieverError as error:
            self._choices[query] = _without_web(error)
            return local
        self._choices[query] = SourceChoice("web", said)
        return web

    async def aclose(self) -> None:
        """Closes both."""
        await asyncio.gather(self._local.aclose(), self._web.aclose())


class SourcesRetriever:
    """One of several ways to search, with the others at hand: `sources` names all of them.

    They share the index, the web and the encoder, which are closed with this.
    """

    def __init__(self, sources: Mapping[str, Retriever], chosen: str) -> None:
        self.sources, self._chosen = dict(sources), sources[chosen]
        self.fingerprint = self._chosen.fingerprint

    async def ready(self) -> None:
        """Waits for the chosen one."""
        await self._chosen.ready()

    async def search(self, query: str, top_k: int) -> tuple[Passage, ...]:
        """What the chosen one finds."""
        return await self._chosen.search(query, top_k)

    def choice(self, query: str) -> SourceChoice | None:
        """What the chosen one says of itself, where it chooses."""
        return self._chosen.choice(query) if isinstance(self._chosen, _Choosing) else None

    async def aclose(self) -> None:
        """Closes all."""
        await self.sources["both"].aclose()


async def alike(ranker: Ranker, query: str, passages: tuple[Passage, ...]) -> float:
    """How like the query the likest passage is; -1 where there is none."""
    return max(await ranker.scores(query, [passage_text(passage) for passage in passages]), default=-1.0)


def fused(*rankings: tuple[Passage, ...]) -> tuple[Passage, ...]:
    """Passages by the sum over rankings of 61 / (60 + rank), divided by how many rankings there are."""
    scores: dict[str, float] = {}
    passages: dict[str, Passage] = {}
    for ranking in rankings:
        for rank, passage in enumerate(ranking, 1):
            passages.setdefault(passage.id, passage)
            scores[passage.id] = scores.get(passage.id, 0.0) + (RRF_K + 1) / (RRF_K + rank) / len(rankings)
    order = sorted(passages, key=lambda name: -scores[name])
    return tuple(Passage(name, passages[name].title, passages[name].text, round(scores[name], 6)) for name in order)


def _without_web(error: RetrieverError) -> SourceChoice:
    say(f"the web could not be searched; the index answers alone: {error}")
    return SourceChoice("local", f"the web could not be searched: {error}")
