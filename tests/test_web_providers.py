"""Search engines in their dialects: what is sent, what is read, and what a failure says."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import ddgs
import pytest
from ddgs.exceptions import DDGSException, RatelimitException

from indexes import open_retriever
from steprag.errors import ConfigError, RetrieverError, StepragError
from tests.web_site import HTML, QUERY, Web, search, texts, web_file

JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("provider", "variable", "query", "count"),
    [("brave", "BRAVE_API_KEY", "q", "count"), ("tavily", "TAVILY_API_KEY", "query", "max_results"),
     ("serper", "SERPER_API_KEY", "q", "num")],
)  # fmt: skip
def test_each_provider_is_spoken_to_in_its_own_way(
    provider: str, variable: str, query: str, count: str,
    here: Web, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    file = web_file(tmp_path, here, encoder, provider=provider, params={"country": "AL"})
    monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ConfigError, match=f"{provider} wants a key: put it in {variable}"):
        open_retriever(file)
    monkeypatch.setenv(variable, "wrong")
    with pytest.raises(ConfigError, match=f"{provider} refuses the key, or its plan is used up"):
        search(file, QUERY)
    monkeypatch.setenv(variable, "right")
    (found,) = search(file, "Albania " * 200)
    assert "Bank of Albania" in texts(found)
    sent = here.sent[-1]
    assert len(sent[query].split()) == 50
    assert str(sent[count]) == "20"
    assert sent["country"] == "AL"
    monkeypatch.setenv("OTHER", "right")
    monkeypatch.setenv(variable, "wrong")
    assert search(web_file(tmp_path, here, encoder, provider=provider, key_env="OTHER"), QUERY)


@pytest.mark.parametrize(
    ("replies", "error", "said"),
    [
        ([(403, HTML, b"Forbidden")], ConfigError, "JSON is off by default there. Add json to search.formats"),
        ([(500, HTML, b"oops")] * 2, RetrieverError, "searxng answers 500: oops"),
        ([(200, HTML, b"<html>")], RetrieverError, "what is no list of results"),
        ([(200, JSON, b'{"results": 5}')], RetrieverError, "what is no list of results"),
        ([(302, {"Location": "http://127.0.0.1/"}, b"")], RetrieverError, "searxng answers 302"),
        (
            [(200, JSON, b'{"results": [], "unresponsive_engines": [["google", "CAPTCHA"]]}')],
            RetrieverError,
            "none of SearXNG's engines answers: .*CAPTCHA",
        ),
    ],
)
def test_a_search_engine_that_fails_says_why(
    replies: list[Any], error: type[StepragError], said: str, here: Web, encoder: Path, tmp_path: Path
) -> None:
    here.engine = replies
    with pytest.raises(error, match=said):
        search(web_file(tmp_path, here, encoder), QUERY)
    assert not here.engine


@pytest.mark.parametrize("after", ["0", "\xb2"])
def test_a_search_engine_that_asks_to_wait_is_asked_again(after: str, here: Web, encoder: Path, tmp_path: Path) -> None:
    here.engine = [(429, {"Retry-After": after}, b"")]
    assert search(web_file(tmp_path, here, encoder), QUERY)[0]
    assert here.asked.count("/search") == 2


def test_nothing_found_is_no_failure(here: Web, encoder: Path, tmp_path: Path) -> None:
    here.hits = []
    assert search(web_file(tmp_path, here, encoder), QUERY) == [()]


class Engine:
    """In place of `ddgs.DDGS`: gives `rows`, or raises them."""

    rows: Any = ()
    asked: dict[str, Any] = {}
    hold = threading.Event()

    def __init__(self, timeout: int) -> None:
        assert timeout >= 1

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def text(self, query: str, **given: Any) -> Any:
        type(self).asked = {"query": query, **given}
        if self.rows is None:
            self.hold.wait(20)
            return []
        if isinstance(self.rows, Exception):
            raise self.rows
        return self.rows


def test_ddgs_asks_the_engines_that_are_named(
    here: Web, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ddgs, "DDGS", Engine)
    file = web_file(tmp_path, here, encoder, provider="ddgs", backends=["mojeek", "brave"], base_url=None)
    Engine.rows = [{"href": here.address + "/lek", "title": "Lek", "body": "a <b>currency</b>"}]
    assert "Bank of Albania" in texts(search(file, QUERY)[0])
    assert Engine.asked == {"query": QUERY, "backend": "mojeek,brave", "max_results": 20}
    Engine.rows = DDGSException("No results found.")
    assert search(file, QUERY) == [()]
    Engine.rows = RatelimitException("202 Ratelimit")
    with pytest.raises(RetrieverError, match=r"ddgs \(mojeek, brave\): 202 Ratelimit"):
        search(file, QUERY)
    Engine.rows = None
    late = web_file(tmp_path, here, encoder, provider="ddgs", base_url=None, seconds=0.2)
    threading.Timer(1.0, Engine.hold.set).start()
    with pytest.raises(RetrieverError, match="ddgs did not answer in time"):
        search(late, QUERY)
    with pytest.raises(ConfigError, match="web.backends: ddgs has no 'bing'; it has brave"):
        open_retriever(web_file(tmp_path, here, encoder, provider="ddgs", base_url=None, backends=["bing"]))
