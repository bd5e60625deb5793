"""The protocol of a retriever, as the agent uses it. The stage of indexes opens one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol, runtime_checkable

from steprag.agent.tools import ToolSpec
from steprag.types import Passage

PLACES = "index folder, a service's URL, milvus:// or elastic://HOST:PORT/NAME, module:function, a web or tools file"
"""What `--index` takes in the commands that play the agent."""
_WEB_ID, _DIGEST = re.compile(r"(?:^|/)(?=https?://\S)"), re.compile("[0-9a-f]{16}")
_GIVEN_ID = re.compile(r"f[0-9a-f]{16}/")
_PAGE = re.compile(r", p\. (\d+)(?:, |$)")
GIVEN = "files:"
"""Before a folder in which files that people gave are kept and searched (`TakesFiles`)."""


class Retriever(Protocol):
    """Finds passages. Searches that are awaited at the same time may be joined into one batch."""

    @property
    def fingerprint(self) -> str:
        """Names index, encoder and corpus; equal fingerprints give equal results."""
        ...

    async def ready(self) -> None:
        """Waits until searches can be answered. Awaited before a run's first paid call.

        Raises what stands in the way: ConfigError or DataError for an index that cannot be loaded.
        """
        ...

    async def search(self, query: str, top_k: int) -> tuple[Passage, ...]:
        """At most `top_k` passages, best first, each with its score.

        Raises RetrieverError where this one query failed: the question fails and the run continues. Anything else ends
        the run.
        """
        ...

    async def aclose(self) -> None:
        """Releases what the retriever holds."""
        ...


@runtime_checkable
class Tooled(Protocol):
    """A retriever whose queries are calls of named tools."""

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """What calls may name."""
        ...


@dataclass(frozen=True)
class SourceChoice:
    """Where passages came from (`source`: local, web or both), and why, in a line."""

    source: str
    why: str


@runtime_checkable
class Choosing(Protocol):
    """A retriever that chooses among sources."""

    def choice(self, query: str) -> SourceChoice | None:
        """Of the last search of this query; None where there was none."""
        ...


@runtime_checkable
class Sourced(Protocol):
    """A retriever with several ways to search at hand: local, web, both (fused), and auto (the web where the local
    index has nothing like the query). They share what they hold; closing the whole closes them.
    """

    @property
    def sources(self) -> Mapping[str, Retriever]:
        """The ways by their names."""
        ...


@runtime_checkable
class Documented(Protocol):
    """A retriever whose passages may have been read from files that a person can open."""

    def document(self, passage_id: str, *, checked: bool = False) -> Path | None:
        """The file that a passage was read from, where it stands as it did then; None for all others.

        `checked`: its content is compared with what was read, which takes time for large ones; else its size alone.
        """
        ...


@runtime_checkable
class Similar(Protocol):
    """A retriever that can say how much alike texts are in meaning."""

    async def alike(self, queries: Sequence[str], texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """For each query its likeness to each text, from -1 to 1; 0 where it has no encoder."""
        ...


@dataclass(frozen=True)
class GivenFile:
    """A file that a person gave: its bytes, pages (0: it has none), passages, and the parts that could not be read."""

    id: str
    name: str
    time: float
    bytes: int
    pages: int
    passages: int
    notes: tuple[str, ...] = ()


@runtime_checkable
class TakesFiles(Retriever, Documented, Protocol):
    """A retriever of files that people give one by one."""

    @property
    def endings(self) -> tuple[str, ...]:
        """Of the names of files that are taken, in lower case."""
        ...

    def files(self) -> tuple[GivenFile, ...]:
        """Those that were given, the oldest first."""
        ...

    def take(self, file: Path, name: str, most: int) -> GivenFile:
        """Reads a file, which stands alone in a folder beside ours and is moved; the same one again is only found.
        Blocks, one call at a time. Raises DataError where it gives no text, or all files more than `most` passages.
        """
        ...

    def remove(self, file_id: str) -> None:
        """Deletes a file and its passages; nothing where there is none."""
        ...

    def before(self, other: Retriever, *, alone: bool = False) -> Retriever:
        """What searches these files first, and `other` for the places that are left; `alone`: these files only."""
        ...

    def rest(self) -> None:
        """Lets go of what a search holds in memory, until the next one."""
        ...


def is_given(passage_id: str) -> bool:
    """Whether the passage is from a file that a person gave beside the index."""
    return _GIVEN_ID.match(passage_id) is not None


def place_of(passage: Passage) -> tuple[str, int | None]:
    """Name and page (None where it has none) of the document that a passage was read from.

    Such a passage has the title `handbook.pdf, p. 12, Leave` and the id `…/handbook.pdf#3`.
    """
    name = PurePosixPath(passage.id.rpartition("#")[0]).name
    found = _PAGE.match(passage.title.removeprefix(name))
    return name, int(found[1]) if found else None


def url_of(passage_id: str) -> str | None:
    """The address of a passage from the web, whose id is `url#hash` (`tool/url#hash` where tools are named); None for
    one of a corpus.
    """
    address, _, digest = passage_id.rpartition("#")
    found = _WEB_ID.search(address) if _DIGEST.fullmatch(digest) else None
    url = address[found.end() :] if found else ""
    return url if url.split() == [url] else None
