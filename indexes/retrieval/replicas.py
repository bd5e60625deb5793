"""Several services of one index, such as one a node: a search goes to the one with least to do, and on to the next
where one does not answer. A search is one request without a session, so any of them will do.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from indexes.retrieval.remote import FIRST_WAIT, LONGEST_WAIT, RemoteRetriever, ServiceLost
from steprag.errors import ConfigError
from steprag.progress import say
from steprag.sections import RetrieverConfig
from steprag.types import Passage


@dataclass
class _Replica:
    """One service: searches that it has in hand, failures in a row, and until when it is left alone after one."""

    url: str
    service: RemoteRetriever
    busy: int = 0
    failures: int = 0
    resting: float = 0.0

    def failed(self) -> None:
        """Leaves it alone for a while, longer each time in a row."""
        if not self.failures:
            say(f"{self.url} does not answer; others are asked meanwhile")
        self.resting = time.monotonic() + min(LONGEST_WAIT, FIRST_WAIT * 2**self.failures)
        self.failures += 1


class ReplicatedRetriever:
    """The services as one retriever. For one event loop at a time."""

    def __init__(self, urls: Sequence[str], config: RetrieverConfig) -> None:
        """Asks each what it is. One that does not answer is left out, as long as another does.

        Raises ConfigError where none answers, or where two serve different indexes.
        """
        self._config, self._replicas = config, list[_Replica]()
        once, problems = config.model_copy(update={"retries": 0}), list[str]()
        for url in dict.fromkeys(urls):
            try:
                self._replicas.append(_Replica(url, RemoteRetriever(url, once)))
            except ConfigError as error:
                problems.append(str(error))
        if not self._replicas:
            raise ConfigError("; ".join(problems))
        for problem in problems:
            say(f"{problem}; the others are asked")
        self.fingerprint = self._replicas[0].service.fingerprint
        for replica in self._replicas:
            if (other := replica.service.fingerprint) != self.fingerprint:
                raise ConfigError(f"{self._replicas[0].url} serves index {self.fingerprint}, {replica.url} {other}; "
                                  "replicas serve the same one")  # fmt: skip

    async def ready(self) -> None:
        """Returns at once, as those of single services do."""

    async def search(self, query: str, top_k: int) -> tuple[Passage, ...]:
        """As one of the services answers. Raises RetrieverError where none has answered, so often as
        `retriever.retries` says; ConfigError where no other request can succeed.
        """
        tries = (self._config.retries + 1) * len(self._replicas)
        for attempt in range(tries):
            replica = await self._next()
            replica.busy += 1
            try:
                found = await replica.service.search(query, top_k)
            except ServiceLost:
                replica.failed()
                if attempt == tries - 1:
                    raise
                continue
            finally:
                replica.busy -= 1
            replica.failures, replica.resting = 0, 0.0
            return found
        raise AssertionError("a search ends in its loop")

    async def _next(self) -> _Replica:
        """The one with least to do of those that answer; waits for the first to be tried again where none does."""
        now = time.monotonic()
        if not any(replica.resting <= now for replica in self._replicas):
            await asyncio.sleep(min(replica.resting for replica in self._replicas) - now)
            now = time.monotonic()
        awake = [replica for replica in self._replicas if replica.resting <= now] or self._replicas
        return min(awake, key=lambda replica: (replica.failures, replica.busy))

    async def aclose(self) -> None:
        """Closes the connections."""
        await asyncio.gather(*(replica.service.aclose() for replica in self._replicas))
