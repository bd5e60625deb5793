"""`WebRetriever`: a search engine's results, their pages, and the passages of them that are most like the query: by
cosines of an encoder of this project, in a worker thread of its own.

Passages are plain words, in pieces of so many, named by address and content. What looks like markup is left as it is
here: the environment neutralises every passage when it renders a prompt.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import unicodedata
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Protocol
from weakref import WeakValueDictionary

from indexes.encoding.embed import Encoder
from indexes.encoding.encoders import EMBEDDED, Overrides, encoder_here, find_encoder, read_spec
from indexes.folder.manifest import IndexManifest
from indexes.ranking.rankings import DECIMALS, named, search_key
from indexes.retrieval.folder_retriever import search_cache
from indexes.web.config import WebConfig
from indexes.web.pages import PAGE_BYTES, Pages
from indexes.web.providers import ENGINE, Provider, query_of
from indexes.web.snapshot import LIVE, SeenPage, Snapshot
from steprag.errors import BudgetReached, ConfigError, NotJournalled, RetrieverError, quoted
from steprag.records.jsonl import as_utf8
from steprag.types import Passage

VERSION = 1
"""Version of how passages are made from results and pages; part of the fingerprint."""
ASKED = ("provider", "base_url", "params", "backends", "results", "pages")
"""Keys that decide what a search sees of the web. Times and limits do not: what they lose is in the snapshot."""
RANKED = ("chunk_words", "chunks")
"""Keys that decide which passages are made of it."""
PER_PAGE = 2
"""Passages of one page that a search gives at most."""
PAGES = 0.75
"""Share of a search's time that may be over when the pages are there; the rest is for ranking."""
_WIDE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_WIDE}]|[^\s{_WIDE}]{{1,60}}")
"""A word; a character of a script without spaces counts as one, and so do 60 characters of what has no end."""
_WORDS = re.compile(r"\w+")
JOINERS = "\u200c\u200d"
"""Marks without a width that some scripts are written with."""


class Ranker(Protocol):
    """Scores texts for a query: how alike they are."""

    @property
    def fingerprint(self) -> str:
        """Names what scores; equal fingerprints give equal scores."""
        ...

    async def ready(self) -> None:
        """Waits until texts can be scored. Raises ConfigError where they never will be."""
        ...

    async def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """A score for each text, from -1 to 1, greater is better, rounded to four decimals."""
        ...

    async def aclose(self) -> None:
        """Releases the weights."""
        ...


class EncoderRanker:
    """The cosine of the query's vector and each text's. Weights load in the thread, once they are waited for."""

    def __init__(self, name: str | None = None, manifest: IndexManifest | None = None) -> None:
        """By an encoder's name, else by that of an index, else by the embedded one. Raises ConfigError."""
        if name is None and manifest is not None and manifest.encoder.dense:
            spec, self._folder = manifest.encoder, encoder_here(manifest.encoder, manifest.config)
        else:
            self._folder = find_encoder(name or EMBEDDED)
            spec = read_spec(name or EMBEDDED, self._folder, Overrides())
        self._spec = replace(spec, normalise=True)
        self.fingerprint = named("cosine", *self._spec.decisive.values())
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ranker")
        self._encoder: Future[Encoder] | None = None

    def _load(self) -> Encoder:
        try:
            return Encoder(self._folder, self._spec, threads=1)
        except (OSError, ValueError) as error:
            said = " ".join(str(error).split())[:300]
            raise ConfigError(f"{self._folder}: the encoder cannot be loaded: {said}") from error

    async def ready(self) -> None:
        """Waits until the weights are loaded; begins it where it was not begun."""
        self._encoder = self._encoder or self._thread.submit(self._load)
        if not self._encoder.done():
            await asyncio.wait([asyncio.wrap_future(self._encoder)])  # who is cancelled does not end the loading
        self._encoder.result()

    async def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """As the protocol says. A text that stands twice is encoded twice; order does not change a score by more than
        float32 rounding, which the rounding hides.
        """
        if not texts:
            return []
        await self.ready()
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._cosines, query, list(texts))

    def _cosines(self, query: str, texts: list[str]) -> list[float]:
        assert self._encoder is not None
        encoder = self._encoder.result()
        vectors = encoder.encode_passages(texts)
        asked = encoder.encode_queries([query])[0]
        return [round(float(score), DECIMALS) for score in vectors @ asked]

    async def aclose(self) -> None:
        """Ends the thread behind what it still does."""
        self._thread.shutdown(wait=False)
        self._encoder = None


class WebRetriever:
    """Searches the web, or the snapshot of it. For one event loop at a time."""

    def __init__(
        self, config: WebConfig, ranker: Ranker, snapshot: Snapshot, provider: Provider | None, pages: Pages | None
    ) -> None:
        """Without provider and pages only what the snapshot holds is found."""
        self._config, self._ranker, self._snapshot = config, ranker, snapshot
        self._provider, self._pages = provider, pages
        self._settings = named("web", VERSION, _asked(config))
        ranked = named(self._settings, [*(getattr(config, key) for key in RANKED), PER_PAGE], ranker.fingerprint)
        self.fingerprint = f"web:{config.provider}:{ranked}:{snapshot.id}"
        self._open: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None
        self._searching: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._remembered = search_cache()
        self._sent = 0
        self._closed = False

    async def ready(self) -> None:
        """Waits for the encoder. The web itself is not asked."""
        await self._ranker.ready()

    async def search(self, query: str, top_k: int) -> tuple[Passage, ...]:
        """At most `top_k` passages, best first, each with its cosine; `url_of` gives the address of one.

        Raises RetrieverError where the search engine fails or the time is over, NotJournalled where the snapshot is
        frozen and lacks the search, BudgetReached after `searches`, ConfigError where no search can succeed.
        """
        if self._closed:
            raise RetrieverError("the retriever is closed")
        text, top_k = search_key(query, top_k)
        if (known := self._remembered.get((text, top_k))) is not None:
            return known
        found = await self._ranked(text, await self._seen(query_of(text)), top_k)
        if self._snapshot.id != LIVE:  # the web itself may say something else later
            self._remembered[text, top_k] = found
        return found

    async def _seen(self, asked: str) -> tuple[SeenPage, ...]:
        """What the snapshot holds of a search, else what the web says."""
        lock = self._searching.setdefault(asked, asyncio.Lock())
        async with lock:  # who asks the same meanwhile finds it in the snapshot
            seen = self._snapshot.search(self._settings, asked)
            if seen is None:
                if self._provider is None or self._pages is None:
                    raise NotJournalled(f"the frozen snapshot {self._config.snapshot} lacks the search {quoted(asked)}")
                async with self._gate():
                    seen = await self._see(asked)
        return seen

    def _gate(self) -> asyncio.Semaphore:
        """Lets so many searches of the running loop through at once."""
        loop = asyncio.get_running_loop()
        if self._open is None or self._open[0] is not loop:
            self._open = loop, asyncio.Semaphore(self._config.concurrency)
        return self._open[1]

    async def _see(self, asked: str) -> tuple[SeenPage, ...]:
        """Asks the web, and keeps what it says."""
        assert self._provider is not None
        assert self._pages is not None
        if self._config.searches is not None and self._sent >= self._config.searches:
            raise BudgetReached(f"{self._sent} searches were sent to {self._config.provider}, as web.searches allows")
        self._sent += 1
        self._snapshot.make_room()
        clock, seconds = asyncio.get_running_loop().time, self._config.seconds
        start = clock()
        results = await self._provider.search(asked)
        start = max(start, clock() - ENGINE * seconds)  # the time that it waited for its turn is not the pages'
        first, rest = results[: self._config.pages], results[self._config.pages :]
        known = [self._snapshot.page(result.url) for result in first]
        seen = [
            *await self._pages.read(first, known, start + PAGES * seconds),
            *(SeenPage(result, None) for result in rest),
        ]
        self._snapshot.keep(self._settings, asked, seen, datetime.now(UTC).isoformat(timespec="seconds"))
        kept = self._snapshot.search(self._settings, asked)
        assert kept is not None
        return kept  # another process may have been first; its answer is the one that replays

    async def _ranked(self, query: str, seen: Sequence[SeenPage], top_k: int) -> tuple[Passage, ...]:
        """The best passages, at most `PER_PAGE` of one page; equal scores in the order of the results."""
        by_result = await asyncio.to_thread(lambda: [passages_of(query, one, self._config) for one in seen])
        candidates = [(place, passage) for place, passages in enumerate(by_result) for passage in passages]
        scores = await self._ranker.scores(query, [f"{p.title}\n{p.text}" for _, p in candidates])
        order = sorted(range(len(candidates)), key=lambda row: (-scores[row], row))
        return best([(*candidates[row], scores[row]) for row in order], top_k)

    async def aclose(self) -> None:
        """Closes connections, processes and the snapshot."""
        if self._closed:
            return
        self._closed = True
        if self._provider is not None:
            await self._provider.aclose()
        if self._pages is not None:
            await self._pages.aclose()
        await self._ranker.aclose()
        self._snapshot.close()


def passages_of(query: str, seen: SeenPage, config: WebConfig) -> list[Passage]:
    """The candidates of a result: pieces of its page, else its snippet. A page gets its share of `chunks`."""
    result = seen.result
    if seen.page is None:
        snippet = plain(result.snippet)
        return [web_passage(result.url, plain(result.title), snippet)] if snippet else []
    title = plain(seen.page.title) or plain(result.title)
    share = max(1, config.chunks // max(1, config.pages))
    heading, _, rest = seen.page.text.partition("\n")
    body = rest if plain(heading) == title and rest.strip() else seen.page.text
    texts = likely(query, list(pieces(plain(body), config.chunk_words)), share)
    return [web_passage(result.url, title, text) for text in texts]


def best(ranked: Sequence[tuple[int, Passage, float]], top_k: int) -> tuple[Passage, ...]:
    """The first `top_k` of (page, passage, score), of each page `PER_PAGE`; a text that stood before is left out."""
    kept: list[Passage] = []
    taken: dict[int, int] = {}
    texts: set[str] = set()
    for page, passage, score in ranked:
        if len(kept) == top_k:
            break
        if taken.get(page, 0) < PER_PAGE and passage.text not in texts:
            taken[page] = taken.get(page, 0) + 1
            texts.add(passage.text)
            kept.append(Passage(passage.id, passage.title, passage.text, score))
    return tuple(kept)


def _asked(config: WebConfig) -> dict[str, object]:
    """What decides what a search sees of the web."""
    facts = {**{key: getattr(config, key) for key in ASKED}, "page_bytes": PAGE_BYTES}
    return facts if config.provider == "ddgs" else {**facts, "backends": None}


def plain(text: str) -> str:
    """The text in one line, without control characters and marks that nobody sees: a person and a model are to read
    the same words.
    """
    words = unicodedata.normalize("NFC", as_utf8(text)).split()
    return " ".join(" ".join(word if word.isprintable() else "".join(map(_shown, word)) for word in words).split())


def _shown(character: str) -> str:
    kind = unicodedata.category(character)
    if kind == "Cc":
        return " "
    return character if kind[0] != "C" or character in JOINERS else ""


def pieces(text: str, words: int) -> Iterator[str]:
    """The text in pieces of `words` words; a last piece of less than a quarter goes with the one before it."""
    found = list(_WORD.finditer(text))
    starts = list(range(0, len(found), words))
    if len(starts) > 1 and len(found) - starts[-1] < words / 4:
        starts.pop()
    for place, start in enumerate(starts):
        end = starts[place + 1] if place + 1 < len(starts) else len(found)
        yield text[found[start].start() : found[end - 1].end()]


def likely(query: str, texts: list[str], most: int) -> list[str]:
    """The `most` texts that share most words with the query, in their own order; equal ones from the first."""
    wanted = set(_WORDS.findall(query.lower()))
    shared = [len(wanted & set(_WORDS.findall(text.lower()))) for text in texts]
    kept = sorted(range(len(texts)), key=lambda place: (-shared[place], place))[:most]
    return [texts[place] for place in sorted(kept)]


def web_passage(url: str, title: str, text: str) -> Passage:
    """A passage of a page. Its id is the address and a hash of the text, so that an id always means the same text."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return Passage(f"{url}#{digest}", title or url, text)
