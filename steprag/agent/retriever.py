"""What the agent asks of a retriever. `indexes.open_retriever` gives one."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from steprag.agent.tools import ToolSpec
from steprag.types import Passage


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
