"""An index of Elasticsearch or OpenSearch as a retriever: elastic://HOST:PORT/INDEX, or elastic+tls://."""

from __future__ import annotations

import base64
from typing import Any

from indexes.ranking.rankings import named
from indexes.retrieval.remote import RemoteRetriever
from steprag.config.sections import RetrieverConfig
from steprag.console.progress import say
from steprag.errors import ConfigError, quoted

SCHEMES = {"elastic://": "http://", "elastic+tls://": "https://"}


class ElasticRetriever(RemoteRetriever):
    """One `_search` a query: `multi_match` over `retriever.fields`. A hit's passage is read from its `_source`, by any
    of the names of `steprag/records/spellings.py`.
    """

    _route, _speaks = "/_search", "Elasticsearch's"
    _options = "?allow_partial_search_results=false"

    def __init__(self, url: str, config: RetrieverConfig) -> None:
        scheme, _, place = url.partition("://")
        if not place.rstrip("/").partition("/")[2]:
            raise ConfigError(f"the retriever's address names no index; write {scheme}://HOST:9200/INDEX")
        super().__init__(SCHEMES[f"{scheme}://"] + place, config)

    def _authorization(self, token: str) -> str:
        """A name with its password, or else an API key."""
        return f"Basic {base64.b64encode(token.encode()).decode()}" if ":" in token else f"ApiKey {token}"

    def _health(self) -> dict[str, Any]:
        """Which index it is: its name and the identity that the server gave it; documents may change without it."""
        facts = self._asked_for("")
        indices = {name: told for name, told in facts.items() if isinstance(told, dict) and "mappings" in told}
        if not indices:
            raise ConfigError(f"{self._url} is no index of Elasticsearch: it answers {quoted(str(facts))}")
        known = sorted((name, str(_inside(told, "settings", "index").get("uuid"))) for name, told in indices.items())
        has = {field for told in indices.values() for field in _inside(told, "mappings", "properties")}
        wanted = {name.partition("^")[0] for name in self._config.fields}
        missing = sorted(name for name in wanted if "*" not in name and name.partition(".")[0] not in has)
        if has and missing:
            raise ConfigError(f"{self._url} has no field {', '.join(missing)}; it has {', '.join(sorted(has))}:"
                              " give retriever.fields")  # fmt: skip
        say(f"{self._url}: searched by its words; documents that change there change what a run finds")
        return {"mode": "sparse", "fingerprint": named("elastic", str(known))}

    def _asking(self, text: str, top_k: int) -> dict[str, Any]:
        return {"query": {"multi_match": {"query": text, "fields": list(self._config.fields)}}, "size": top_k}

    def _rows(self, told: Any) -> list[Any]:
        return [_row(_inside(hit)) for hit in told["hits"]["hits"]]


def _row(hit: dict[str, Any]) -> dict[str, Any]:
    """A hit as the rows of other services; one without a `_source` has no text, so it is left out as theirs."""
    source = _inside(hit, "_source")
    return {"document": {**source, "id": str(source.get("id") or hit.get("_id") or "")}, "score": hit.get("_score")}


def _inside(told: Any, *keys: str) -> dict[str, Any]:
    """What stands under the keys, one below the other; nothing where that is no object."""
    for key in keys:
        told = told.get(key) if isinstance(told, dict) else None
    return told if isinstance(told, dict) else {}
