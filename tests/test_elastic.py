"""An Elasticsearch index as a retriever, played by a server that answers as Elasticsearch 8 does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from indexes import open_retriever
from steprag.config.sections import RetrieverConfig
from steprag.errors import ConfigError, RetrieverError
from steprag.types import Passage
from tests.fakes import Replying, listening

TEXT = {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}}
INDEX = {
    "wiki_en": {
        "aliases": {},
        "mappings": {"properties": {"id": {"type": "keyword"}, "title": TEXT, "text": TEXT, "url": TEXT}},
        "settings": {"index": {"uuid": "jbmcFBxLQhOMyqYdVkkxSA", "number_of_shards": "1", "version": {"created": "8"}}},
    }
}
HITS = [
    {"_index": "wiki_en", "_id": "a1", "_score": 9.1, "_source": {"id": "42", "title": "Lima", "text": "In Peru."}},
    {"_index": "wiki_en", "_id": "a2", "_score": 2.0, "_source": {"title": "Tirana", "content": "In Albania."}},
    {"_index": "wiki_en", "_id": "a3", "_score": None, "_ignored": ["text"], "_source": {"url": "no text"}},
]
GONE = {"error": {"type": "index_not_found_exception", "reason": "no such index [wiki_en]"}, "status": 404}


def found(hits: list[Any]) -> dict[str, Any]:
    total = {"value": len(hits), "relation": "eq"}
    return {"took": 3, "timed_out": False, "hits": {"total": total, "max_score": 9.1, "hits": hits}}


@contextmanager
def elastic(answer: Callable[[], tuple[int, Any]], info: Any = INDEX) -> Iterator[tuple[str, list[Any]]]:
    """Its elastic:// address, and what it is sent: (path, authorization, body)."""
    seen: list[Any] = []

    class Handler(Replying):
        def do_GET(self) -> None:
            seen.append((self.path, self.headers.get("Authorization"), None))
            self.reply(info, 200 if info is INDEX else 404, X_elastic_product="Elasticsearch")

        def do_POST(self) -> None:
            seen.append((self.path, self.headers.get("Authorization"), json.loads(self.given())))
            status, body = answer()
            self.reply(body, status, X_elastic_product="Elasticsearch")

    with listening(Handler) as address:
        yield f"elastic://{address.removeprefix('http://')}/wiki_en", seen


def searched(url: str, query: str, config: RetrieverConfig | None = None) -> tuple[Passage, ...]:
    async def search() -> tuple[Passage, ...]:
        retriever = open_retriever(url, config)
        try:
            return await retriever.search(query, 3)
        finally:
            await retriever.aclose()

    return asyncio.run(search())


def test_a_query_is_one_search_over_the_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPRAG_RETRIEVER_TOKEN", "elastic:changeme")
    with elastic(lambda: (200, found(HITS))) as (url, seen):
        got = searched(url, "Lima?", RetrieverConfig(fields=("title^2", "text")))
    assert got == (Passage("42", "Lima", "In Peru.", 9.1), Passage("a2", "Tirana", "In Albania.", 2.0))
    assert [(path, key) for path, key, _ in seen] == [
        ("/wiki_en", "Basic ZWxhc3RpYzpjaGFuZ2VtZQ=="),
        ("/wiki_en/_search?allow_partial_search_results=false", "Basic ZWxhc3RpYzpjaGFuZ2VtZQ=="),
    ]  # fmt: skip
    assert seen[1][2] == {"query": {"multi_match": {"query": "Lima?", "fields": ["title^2", "text"]}}, "size": 3}


def test_the_same_index_has_the_same_fingerprint_and_a_key_without_a_name_is_an_api_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STEPRAG_RETRIEVER_TOKEN", "VnVhQ2ZHY0JDZGJrU")
    with elastic(lambda: (200, found([]))) as (url, seen):
        names = {open_retriever(url).fingerprint for _ in range(2)}
        assert searched(url, "Lima") == ()
    assert len(names) == 1
    assert seen[0][1] == "ApiKey VnVhQ2ZHY0JDZGJrU"


@pytest.mark.parametrize(("url", "fields", "info", "told"), [
    ("elastic://127.0.0.1:1", ("text",), INDEX, "names no index; write elastic://HOST:9200/INDEX"),
    ("elastic://elastic:secret@127.0.0.1:1", ("text",), INDEX, "^the retriever's address names no index"),
    ("elastic://elastic:secret@127.0.0.1:1/w", ("text",), INDEX, "^the retriever's address holds a name or a password"),
    ("elastic://127.0.0.1:1/wiki", ("text",), INDEX, "no retriever answers at"),
    ("", ("body", "title"), INDEX, "has no field body; it has id, text, title, url"),
    ("", ("text",), GONE, "is no index of Elasticsearch: it answers .*no such index"),
])  # fmt: skip
def test_what_cannot_be_searched_is_refused_at_the_start(
    url: str, fields: tuple[str, ...], info: Any, told: str
) -> None:
    with elastic(lambda: (200, found([])), info) as (here, _), pytest.raises(ConfigError, match=told):
        open_retriever(url or here, RetrieverConfig(fields=fields))


def test_a_hit_without_a_source_is_left_out() -> None:
    odd = [{"_index": "wiki_en", "_id": "a0", "_score": 10.0}, 7, HITS[0]]
    with elastic(lambda: (200, found(odd))) as (url, _):
        assert searched(url, "Lima") == (Passage("42", "Lima", "In Peru.", 9.1),)


@pytest.mark.parametrize("part", [
    {"_shards": {"total": 5, "successful": 2, "skipped": 0, "failed": 3}}, {"timed_out": True},
    {"_shards": {"total": 5, "successful": 2}}, {"terminated_early": True},
    {"_clusters": {"total": 2, "successful": 1, "skipped": 1}},
    {"_clusters": {"total": 2, "successful": 2, "partial": 1}},
])  # fmt: skip
def test_a_search_in_part_is_asked_again_and_never_taken_for_whole(
    part: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steprag.net.bounded_http.FIRST_WAIT", 0.01)
    whole = {**found(HITS), "_shards": {"total": 5, "successful": 5, "skipped": 2, "failed": 0}}
    replies = iter([{**whole, **part, "hits": {"hits": HITS[1:]}}, whole])
    with elastic(lambda: (200, next(replies))) as (url, _):
        assert [passage.id for passage in searched(url, "Lima", RetrieverConfig(retries=1))] == ["42", "a2"]
    with elastic(lambda: (200, {**whole, **part})) as (url, seen):
        with pytest.raises(RetrieverError, match=f"incomplete reply: {next(iter(part))}.* .tried 2 times"):
            searched(url, "Lima", RetrieverConfig(retries=1))
    assert len(seen) == 3


@pytest.mark.parametrize(("answer", "told"), [
    ((404, GONE), r"404 no such index \[wiki_en\]"),
    ((200, {"hits": []}), "not Elasticsearch's"),
    ((503, {"error": {"reason": "all shards failed"}, "status": 503}), r"503 all shards failed \(tried 1 times\)"),
])  # fmt: skip
def test_a_search_that_fails_says_why(answer: tuple[int, Any], told: str) -> None:
    with elastic(lambda: answer) as (url, _), pytest.raises(RetrieverError, match=told):
        searched(url, "Lima", RetrieverConfig(retries=0))
