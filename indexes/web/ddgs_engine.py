"""ddgs (the extra `web`): asks search engines' own pages, without a key. They may refuse it at any time."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Sequence
from typing import Any

from indexes.web.config import WebConfig
from indexes.web.providers import WebResult, results_of
from steprag.errors import ConfigError, RetrieverError, quoted
from steprag.extras import remedy


class DdgsProvider:
    """Searches in a thread: the package waits. What is late is left to end by itself."""

    def __init__(self, config: WebConfig) -> None:
        """Raises ConfigError where the package, or an engine, is not there."""
        if importlib.util.find_spec("ddgs") is None:
            raise ConfigError(f"provider ddgs needs an extra: {remedy('web')}")
        from ddgs.engines import ENGINES

        known = ENGINES["text"]
        if unknown := [name for name in config.backends if name not in known]:
            raise ConfigError(f"web.backends: ddgs has no {quoted(unknown[0])}; it has {', '.join(sorted(known))}")
        if not config.backends:
            raise ConfigError(f"web.backends: name at least one of {', '.join(sorted(known))}")
        self._config = config

    async def search(self, query: str) -> tuple[WebResult, ...]:
        """As `Provider.search` says; a search that found nothing is none that failed."""
        rows = await asyncio.to_thread(self._ask, query)
        return results_of(rows, ("href", "title", "body"), self._config.results)

    def _ask(self, query: str) -> Sequence[dict[str, Any]]:
        from ddgs import DDGS
        from ddgs.exceptions import DDGSException

        try:
            with DDGS(timeout=max(1, int(self._config.seconds / 2))) as engine:
                return engine.text(
                    query,
                    backend=",".join(self._config.backends),
                    max_results=self._config.results,
                    **{key: str(value) for key, value in self._config.params.items()},
                )
        except DDGSException as error:
            if "No results found" in str(error):
                return ()
            raise RetrieverError(f"ddgs ({', '.join(self._config.backends)}): {error}"[:300]) from None

    async def aclose(self) -> None:
        """Nothing is held."""
