"""The protocol of a retriever, as the agent uses it. `indexes.open_retriever` opens one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from steprag.agent.tools import ToolSpec
from steprag.types import Passage

PLACES = "index folder, a service's URL, milvus:// or elastic://HOST:PORT/NAME, module:function, a web or tools file"
"""What `--index` takes in the commands that play the agent: what `indexes.open_retriever` opens."""
_WEB_ID = re.compile(r"(?:^|/)(https?://\S+)#[0-9a-f]{16}$")


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

        Raises RetrieverError where this one query failed: the question fails and the run goes on. Anything else ends
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


def url_of(passage_id: str) -> str | None:
    """The address of a passage from the web, whose id is `url#hash` (`tool/url#hash` where tools are named); None for
    one of a corpus.
    """
    found = _WEB_ID.search(passage_id)
    return found.group(1) if found else None
