"""A web file to a retriever: the web alone, or index and web, both rankings as one or the web only where the index has
nothing like the query.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path

from cachetools import LRUCache

from indexes.folder.manifest import read_index_manifest
from indexes.ranking.rankings import RRF_K, named
from indexes.ranking.searchers import fuse_ranks
from indexes.rows.passage_store import passage_text
from indexes.web.config import WebConfig, WebFileConfig
from indexes.web.pages import AGENT, Pages
from indexes.web.providers import DdgsProvider, HttpProvider
from indexes.web.retriever import EncoderRanker, Ranker, WebRetriever
from indexes.web.snapshot import Snapshot
from steprag import __version__
from steprag.agent.retriever import Documented, Retriever, SourceChoice
from steprag.config.load import load_config
from steprag.console.progress import say
from steprag.errors import ConfigError, RetrieverError, StepragError
from steprag.types import Passage

REMEMBERED = 4096
"""Queries whose choice is remembered."""


class _Choosing:
    """An index and the web. Remembers where the passages of the last queries came from."""

    def __init__(self, local: Retriever, web: Retriever) -> None:
        self._local, self._web = local, web
        self._choices: LRUCache[str, SourceChoice] = LRUCache(REMEMBERED)

    async def ready(self) -> None:
        """Waits for both."""
        await asyncio.gather(self._local.ready(), self._web.ready())

    async def aclose(self) -> None:
        """Closes both."""
        await asyncio.gather(self._local.aclose(), self._web.aclose())

    def choice(self, query: str) -> SourceChoice | None:
        """Where the passages of the last search of this query came from, and why."""
        return self._choices.get(query)

    def document(self, passage_id: str, *, checked: bool = False) -> Path | None:
        """The file that a passage of the index was read from."""
        return self._local.document(passage_id, checked=checked) if isinstance(self._local, Documented) else None


class FusedRetriever(_Choosing):
    """Index and web by reciprocal rank fusion: the first place in both gives 1 (`fused`).

    Where the web fails, the index answers alone, which `choice` says.
    """

    def __init__(self, local: Retriever, web: Retriever) -> None:
        super().__init__(local, web)
        self.fingerprint = f"both:{named(RRF_K, local.fingerprint, web.fingerprint)}"

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


class FallbackRetriever(_Choosing):
    """The index; the web where the index's best passage is less like the query than `threshold`.

    How alike they are is one measure for every kind of index: the cosine by the web's encoder. A hybrid ranking's own
    scores say only which passage is the best. Where the web fails, the index answers, which `choice` says.
    """

    def __init__(self, local: Retriever, web: Retriever, ranker: Ranker, threshold: float) -> None:
        super().__init__(local, web)
        self._ranker, self._threshold = ranker, threshold
        facts = named(threshold, local.fingerprint, web.fingerprint, ranker.fingerprint)
        self.fingerprint = f"auto:{facts}"

    async def ready(self) -> None:
        """Waits for both, and for the encoder."""
        await asyncio.gather(super().ready(), self._ranker.ready())

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
    """Passages by reciprocal rank fusion (`fuse_ranks`); equal scores in the order in which they were first found."""
    passages: dict[str, Passage] = {}
    for passage in chain(*rankings):
        passages.setdefault(passage.id, passage)
    rows, listed = {name: row for row, name in enumerate(passages)}, [*passages.values()]
    ranked = fuse_ranks([[(rows[one.id], 0.0) for one in ranking] for ranking in rankings], [1.0] * len(rankings))
    return tuple(replace(listed[row], score=score) for row, score in ranked)


def _without_web(error: RetrieverError) -> SourceChoice:
    say(f"the web could not be searched; the index answers alone: {error}")
    return SourceChoice("local", f"the web could not be searched: {error}")


Opened = Callable[[str], Retriever]
"""Opens an index folder or a service's URL."""


def open_web(path: Path, opened: Opened) -> Retriever:
    """The retriever of a web file; `opened` opens the local index that it names. Raises ConfigError with file and key.

    Where there is a local index, the retriever has all of web, local, both and auto at hand (`Sourced`).
    """
    config = load_config(WebFileConfig, str(path)).web
    if config.local is None:
        return _web(config, EncoderRanker(config.encoder))
    if config.local.endswith((".yaml", ".yml")):
        raise ConfigError(f"{path}: web.local names an index folder or a service's URL, not a file")
    local = opened(config.local)
    manifest = None if "://" in config.local else read_index_manifest(Path(config.local).expanduser())
    ranker = EncoderRanker(config.encoder, manifest)
    web = _web(config, ranker)
    sources = {
        "web": web,
        "local": local,
        "both": FusedRetriever(local, web),
        "auto": FallbackRetriever(local, web, ranker, config.threshold),
    }
    return SourcesRetriever(sources, config.source)


def _web(config: WebConfig, ranker: EncoderRanker) -> WebRetriever:
    agent = f"{AGENT}/{__version__}"
    snapshot = Snapshot(Path(config.snapshot).expanduser() if config.snapshot else None, frozen=config.frozen)
    try:
        provider = pages = None
        if not config.frozen:
            provider = DdgsProvider(config) if config.provider == "ddgs" else HttpProvider(config, agent)
            pages = Pages(config, agent)
    except StepragError:
        snapshot.close()
        raise
    return WebRetriever(config, ranker, snapshot, provider, pages)
