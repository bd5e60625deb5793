"""The service over HTTP: its shapes, limits and token, the retriever that asks it, a real process that is stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from indexes import open_retriever
from indexes.commands.search import search_all
from indexes.config import LimitsConfig
from indexes.ranking.rankings import DECIMALS, Ranking, SearchKey, ranking
from indexes.retrieval.folder_retriever import MAX_BATCH, FolderRetriever
from indexes.retrieval.remote import RemoteRetriever
from indexes.rows.passage_store import PassageStore, write_passages
from indexes.service.api import Served, create_app
from steprag.config.sections import RetrieverConfig
from steprag.console.terminal import guarded
from steprag.errors import ConfigError, RetrieverError
from steprag.net.hosts import own_names, stranger, url_of
from steprag.types import Passage
from steprag.web.app import token_of
from steprag.web.listening import token_in
from tests import fakes
from tests.indexing import hybrid_index, words_index

WORLD = [*fakes.WORLD, Passage("4", "", 'A passage without a title that says "Heroes".')]


class Words:
    """A searcher by hand: scores are shared words. Notes every batch; waits until it may go on; can fail."""

    fingerprint = "world-by-words"

    def __init__(self, passages: Sequence[Passage] = WORLD) -> None:
        self.passages = passages
        self.batches: list[list[SearchKey]] = []
        self.started, self.go = threading.Event(), threading.Event()
        self.go.set()

    def load(self) -> None:
        """Nothing."""

    def search(self, asked: Sequence[SearchKey]) -> list[Ranking]:
        self.batches.append(list(asked))
        self.started.set()
        self.go.wait(30)
        if any(query == "fail" for query, _ in asked):
            raise ValueError("the searcher broke")
        return [self._rank(query)[:top_k] for query, top_k in asked]

    def _rank(self, query: str) -> Ranking:
        words = set(query.lower().split())
        scores = [len(words & set(f"{p.title} {p.text}".lower().split())) / 7 for p in self.passages]
        return ranking(np.arange(len(scores)), np.array(scores))


def retriever(folder: Path, searcher: Words, batch: int) -> FolderRetriever:
    write_passages(folder, list(searcher.passages))
    return FolderRetriever(searcher, PassageStore(folder), batch=batch)


@asynccontextmanager
async def client(folder: Path, searcher: Words, **served: Any) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the application in this loop, without a socket between."""
    source = retriever(folder, searcher, served.pop("batch", MAX_BATCH))
    app = create_app(Served(source, "dense", served.pop("limits", LimitsConfig()), **served))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://127.0.0.1:8000") as made:
        yield made
    await source.aclose()


Work = Callable[[httpx2.AsyncClient], Coroutine[Any, Any, Any]]


def asking(folder: Path, work: Work, searcher: Words | None = None, **served: Any) -> Any:
    async def run() -> Any:
        async with client(folder, searcher or Words(), **served) as made:
            return await work(made)

    return asyncio.run(run())


def post(path: str, body: object, **options: Any) -> Work:
    async def work(made: httpx2.AsyncClient) -> httpx2.Response:
        return await made.post(path, json=body, **options)

    return work


# --- Search-R1's shapes ---------------------------------------------------------------------------------------------
def test_retrieve_with_and_without_scores(tmp_path: Path) -> None:
    body = {"queries": ["capital Lima", "Prices quoted in the lek."], "topk": 2, "return_scores": True}
    reply = asking(tmp_path, post("/retrieve", body))
    assert reply.status_code == 200
    peru, lek = reply.json()["result"]
    assert [item["document"]["id"] for item in peru] == ["2", "0"]
    assert lek[0]["document"]["id"] == "1"
    text = "Lima is the capital of Peru."
    document = {"id": "2", "contents": f'"Lima"\n{text}', "title": "Lima", "text": text}
    assert peru[0] == {"document": document, "score": round(2 / 7, DECIMALS)}
    plain = asking(tmp_path, post("/retrieve", {**body, "return_scores": False}))
    assert plain.json()["result"] == [[item["document"] for item in found] for found in (peru, lek)]


@pytest.mark.parametrize("topk", [None, 0])
def test_retrieve_uses_the_services_topk(tmp_path: Path, topk: int | None) -> None:
    reply = asking(tmp_path, post("/retrieve", {"queries": ["Peru"], "topk": topk, "return_scores": True}), top_k=4)
    assert [len(found) for found in reply.json()["result"]] == [4]
    assert len(asking(tmp_path, post("/retrieve", {"queries": ["Peru"]})).json()["result"][0]) == 3


def test_retrieve_of_nothing(tmp_path: Path) -> None:
    for scores in (True, False):
        reply = asking(tmp_path, post("/retrieve", {"queries": [], "topk": 3, "return_scores": scores}))
        assert (reply.status_code, reply.json()) == (200, {"result": []})
    reply = asking(tmp_path, post("/retrieve", {"queries": ["  ", "Lima", ""], "topk": 1}))
    assert [len(found) for found in reply.json()["result"]] == [0, 1, 0]


# --- the ReSearch family's ------------------------------------------------------------------------------------------
def test_search_and_batch_search(tmp_path: Path) -> None:
    lima = {"id": "2", "contents": '"Lima"\nLima is the capital of Peru.'}
    score = round(1 / 7, DECIMALS)
    assert asking(tmp_path, post("/search", {"query": "Lima", "top_n": 1})).json() == [lima]
    scored = asking(tmp_path, post("/search", {"query": "Lima", "top_n": 1, "return_score": True})).json()
    assert scored == [[lima], [score]]
    many = {"query": ["Lima", "Lima"], "top_n": 1}
    assert asking(tmp_path, post("/batch_search", many)).json() == [[lima], [lima]]
    scored = asking(tmp_path, post("/batch_search", {**many, "return_score": True})).json()
    assert scored == [[[lima], [lima]], [[score], [score]]]
    assert asking(tmp_path, post("/batch_search", {"query": []})).json() == []
    assert len(asking(tmp_path, post("/search", {"query": "Lima"})).json()) == len(WORLD)  # ten by default
    assert asking(tmp_path, post("/search", {"query": " "})).status_code == 400


# --- many clients ---------------------------------------------------------------------------------------------------
def test_clients_share_batches_and_the_loop_runs_on(tmp_path: Path) -> None:
    searcher = Words()
    searcher.go.clear()

    async def work(made: httpx2.AsyncClient) -> tuple[list[httpx2.Response], httpx2.Response]:
        first = asyncio.create_task(made.post("/retrieve", json={"queries": ["first"]}))
        await asyncio.to_thread(searcher.started.wait)
        others = [asyncio.create_task(made.post("/retrieve", json={"queries": [f"q{n}", f"r{n}"]})) for n in range(20)]
        while "steprag_queries_waiting 41.0" not in (await made.get("/metrics")).text:
            await asyncio.sleep(0.01)
        health = await made.get("/health")  # answered while the searcher blocks
        searcher.go.set()
        return await asyncio.gather(first, *others), health

    replies, health = asking(tmp_path, work, searcher)
    assert {reply.status_code for reply in replies} == {200}
    assert [len(batch) for batch in searcher.batches] == [1, 40]
    assert health.json()["waiting"] == 41


def test_health_and_metrics(tmp_path: Path) -> None:
    async def work(made: httpx2.AsyncClient) -> tuple[httpx2.Response, httpx2.Response]:
        for query in ("Lima", "Lima", "fail"):
            await made.post("/retrieve", json={"queries": [query]})
        await made.post("/made-up")
        return await made.get("/health"), await made.get("/metrics")

    health, metrics = asking(tmp_path, work)
    facts = health.json()
    assert (facts["status"], facts["mode"], facts["passages"]) == ("healthy", "dense", len(WORLD))
    assert facts["retrievers"] == {"total": 1, "available": 1}
    assert facts["fingerprint"] == health.headers["X-StepRAG-Index"] == Words.fingerprint
    lines = metrics.text.splitlines()
    assert 'steprag_requests_total{route="/retrieve",status="200"} 2.0' in lines
    assert 'steprag_requests_total{route="/retrieve",status="500"} 1.0' in lines
    assert 'steprag_requests_total{route="other",status="404"} 1.0' in lines
    assert 'steprag_request_seconds_count{route="/retrieve"} 3.0' in lines
    assert "steprag_queries_total 3.0" in lines
    assert "steprag_index_remembered_total 1.0" in lines
    assert "steprag_queries_waiting 0.0" in lines


# --- limits ---------------------------------------------------------------------------------------------------------
SMALL = LimitsConfig(body_bytes=400, queries=4, query_chars=50, top_k=5, waiting=4, seconds=30)


@pytest.mark.parametrize(("path", "body", "status", "words"), [
    ("/retrieve", {"queries": ["x" * 500]}, 413, "more than 400 bytes"),
    ("/retrieve", {"queries": ["x"] * 5}, 422, "5 queries; at most 4"),
    ("/retrieve", {"queries": ["x" * 51]}, 422, "a query of 51 characters; at most 50"),
    ("/retrieve", {"queries": ["x"], "topk": 6}, 422, "6 passages a query; at most 5"),
    ("/retrieve", {"queries": ["x"], "topk": -1}, 422, "topk: input should be greater"),
    ("/retrieve", {"queries": "x"}, 422, "queries: input should be a valid list"),
    ("/retrieve", {"queries": [7]}, 422, "queries.0: input should be a valid string"),
    ("/retrieve", {"topk": 3}, 422, "queries: field required"),
    ("/search", {"query": "x", "top_n": 0}, 422, "top_n: input should be greater"),
    ("/batch_search", {"query": ["x"], "top_n": 6}, 422, "at most 5"),
    ("/queries", {"queries": ["x"], "k": 5}, 404, "POST '/queries' is not served; ask POST /retrieve"),
])  # fmt: skip
def test_limits(tmp_path: Path, path: str, body: object, status: int, words: str) -> None:
    searcher = Words()
    reply = asking(tmp_path, post(path, body), searcher, limits=SMALL)
    assert reply.status_code == status
    assert words in reply.json()["error"]["message"]
    assert searcher.batches == []


@pytest.mark.parametrize(("piece", "times", "status"), [(b" " * 10, 100, 413), (b"{", 1, 422)])
def test_bodies_that_do_not_tell_their_length(tmp_path: Path, piece: bytes, times: int, status: int) -> None:
    """Too many bytes, and no JSON."""

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(times):
            yield piece

    async def work(made: httpx2.AsyncClient) -> httpx2.Response:
        return await made.post("/retrieve", content=pieces(), headers={"Content-Type": "application/json"})

    assert asking(tmp_path, work, limits=SMALL).status_code == status


def test_a_full_queue_refuses_and_the_rest_is_answered(tmp_path: Path) -> None:
    searcher = Words()
    searcher.go.clear()

    async def work(made: httpx2.AsyncClient) -> tuple[httpx2.Response, httpx2.Response, httpx2.Response]:
        taken = asyncio.create_task(made.post("/retrieve", json={"queries": ["a", "b", "c"]}))
        await asyncio.to_thread(searcher.started.wait)
        refused = await made.post("/retrieve", json={"queries": ["d", "e"]})
        searcher.go.set()
        return refused, await taken, await made.post("/retrieve", json={"queries": ["d", "e"]})

    refused, taken, later = asking(tmp_path, work, searcher, limits=SMALL)
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
    assert (taken.status_code, later.status_code) == (200, 200)


def test_a_queue_that_would_take_too_long_refuses(tmp_path: Path) -> None:
    class Slow(Words):
        def search(self, asked: Sequence[SearchKey]) -> list[Ranking]:
            threading.Event().wait(0.3)
            return super().search(asked)

    async def work(made: httpx2.AsyncClient) -> list[int]:
        alone = await made.post("/retrieve", json={"queries": ["a", "b"]})
        many = [asyncio.create_task(made.post("/retrieve", json={"queries": [f"q{n}"]})) for n in range(30)]
        return [alone.status_code, *(reply.status_code for reply in await asyncio.gather(*many))]

    statuses = asking(tmp_path, work, Slow(), batch=1, limits=LimitsConfig(seconds=6, waiting=4096))
    assert statuses[:3] == [200, 200, 200]
    assert statuses[-1] == 429  # those before it would have taken more than half the time
    assert set(statuses) == {200, 429}


def test_a_request_that_takes_too_long(tmp_path: Path) -> None:
    searcher = Words()
    searcher.go.clear()
    limits = LimitsConfig(seconds=0.1)

    async def work(made: httpx2.AsyncClient) -> tuple[httpx2.Response, httpx2.Response]:
        late = await made.post("/retrieve", json={"queries": ["slow"]})
        searcher.go.set()
        return late, await made.get("/health")

    late, health = asking(tmp_path, work, searcher, limits=limits)
    assert late.status_code == 504
    assert health.json()["waiting"] == 0


FAILED = (500, "the search failed; the service's log says why")


def test_a_search_that_fails_is_told(tmp_path: Path) -> None:
    reply = asking(tmp_path, post("/retrieve", {"queries": ["fail"]}))
    assert (reply.status_code, reply.json()["error"]["message"]) == FAILED


# --- who may ask ----------------------------------------------------------------------------------------------------
def test_the_token(tmp_path: Path) -> None:
    async def work(made: httpx2.AsyncClient) -> list[httpx2.Response]:
        right = {"Authorization": "Bearer s3cret"}
        return [
            await made.post("/retrieve", json={"queries": ["Lima"]}),
            await made.post("/retrieve", json={"queries": ["Lima"]}, headers={"Authorization": "Bearer s3cre"}),
            await made.get("/metrics"),
            await made.get("/nothing"),
            await made.post("/retrieve", json={"queries": ["Lima"]}, headers=right),
            await made.get("/health"),
            await made.get("/health", headers=right),
        ]

    *replies, stranger, friend = asking(tmp_path, work, token="s3cret")
    assert [reply.status_code for reply in replies] == [401, 401, 401, 404, 200]
    assert ["X-StepRAG-Index" in reply.headers for reply in replies] == [False, False, False, False, True]
    assert stranger.json()["token"] == "required"
    assert "fingerprint" not in stranger.json()
    assert "X-StepRAG-Index" not in stranger.headers
    assert friend.json()["fingerprint"] == Words.fingerprint


def test_a_page_that_points_its_name_here_is_refused(tmp_path: Path) -> None:
    evil = post("/retrieve", {"queries": ["Lima"]}, headers={"Host": "evil.example"})
    assert asking(tmp_path, evil).status_code == 403
    assert asking(tmp_path, evil, loopback=False).status_code == 200


OWN = socket.gethostname().lower()
NAMES = [
    ("127.0.0.1:80", True, (), True), ("192.168.1.7:80", True, (), False), ("192.168.1.7:80", False, (), True),
    ("[2001:db8::7]:80", False, (), True), (f"{OWN}:80", False, own_names(), True), ("", False, (), False),
    ("a.example", False, (), False), ("1.2.3.4.a.example", False, (), False), ("a.example", False, ("*",), True),
    ("a.example", True, ("a.example",), True),  # a proxy's
]  # fmt: skip


@pytest.mark.parametrize(("host", "loopback", "names", "answered"), NAMES)
def test_names_that_a_page_may_point_here_are_refused(host: str, loopback: bool, names: Any, answered: bool) -> None:
    assert (stranger({"host": host}, loopback=loopback, names=names) is None) == answered


@pytest.mark.parametrize("token", ["hunter2", "1234567890123456", "a" * 40, "passwordpassword", "steprag-token-12"])
def test_a_token_that_is_easy_to_guess_is_refused_where_others_may_try(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPRAG_TOKEN", token)
    assert token_of("127.0.0.1", "STEPRAG_TOKEN") == token
    for host, names in (("0.0.0.0", ()), ("127.0.0.1", ("chat.example.org",))):
        with pytest.raises(ConfigError, match="easy to guess .*openssl rand"):
            token_of(host, "STEPRAG_TOKEN", names)


def test_no_serving_beyond_this_machine_without_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STEPRAG_RETRIEVER_TOKEN", raising=False)
    assert token_in("STEPRAG_RETRIEVER_TOKEN", "127.0.0.1") is None
    with pytest.raises(ConfigError, match="serving on 0.0.0.0 needs a token.*STEPRAG_RETRIEVER_TOKEN"):
        token_in("STEPRAG_RETRIEVER_TOKEN", "0.0.0.0")
    monkeypatch.setenv("STEPRAG_RETRIEVER_TOKEN", "3f9c-blue-kettle-71")
    assert token_in("STEPRAG_RETRIEVER_TOKEN", "0.0.0.0") == "3f9c-blue-kettle-71"


# --- the retriever that asks ----------------------------------------------------------------------------------------
Reply = Callable[[dict[str, Any]], tuple[int, object]]


@contextmanager
def foreign(reply: Reply) -> Iterator[fakes.Endpoint]:
    """A Search-R1 server as others run it: no health route."""
    with fakes.serve(reply) as endpoint:
        yield fakes.Endpoint(endpoint.url.removesuffix("/v1"), endpoint.requests)


def found(title: str) -> dict[str, Any]:
    return {"result": [[{"document": {"id": "7", "contents": f'"{title}"\ntext'}, "score": 0.5}]]}


def quick(**values: Any) -> RetrieverConfig:
    return RetrieverConfig(**{"retries": 2, "timeout": 5.0, **values})


def test_a_search_r1_server_is_asked_as_its_clients_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPRAG_RETRIEVER_TOKEN", "s3cret\r")  # of a file with Windows' line ends
    with foreign(lambda _: (200, found("Lima"))) as endpoint:
        source = open_retriever(endpoint.url + "/retrieve/", quick())
        assert source.fingerprint == open_retriever(endpoint.url, quick()).fingerprint
        (passage,) = asyncio.run(source.search("  what is\nLima ", 4))
    assert passage == Passage("7", "Lima", "text", 0.5)
    (request,) = endpoint.requests
    assert request == {"queries": ["what is Lima"], "topk": 4, "return_scores": True}


@pytest.mark.parametrize(("rows", "expected"), [
    ([{"document": {"contents": '"Lima"\ntext'}}], [("Lima", "text", None)]),  # its online servers
    ([{"document": 'Lima\ntext', "score": 0.5}, {"document": "text", "score": None}],  # its reranker
     [("Lima", "text", 0.5), ("", "text", None)]),
    ([{"id": 7, "contents": "Lima\ntext"}, "text"], [("Lima", "text", None), ("", "text", None)]),  # without scores
    ([{"document": {"id": "1", "contents": ""}}, {"document": 7}, None, {"document": {"_id": 7, "text": "text"}}],
     [("", "text", None)]),  # what is no passage is left out
])  # fmt: skip
def test_replies_of_other_servers_are_read_row_by_row(
    rows: list[object], expected: list[tuple[str, str, float | None]], capsys: pytest.CaptureFixture[str]
) -> None:
    with foreign(lambda _: (200, {"result": [rows]})) as endpoint:
        source = open_retriever(endpoint.url, quick())
        passages, again = (asyncio.run(source.search("Lima", 4)) for _ in range(2))
    assert [(one.title, one.text, one.score) for one in passages] == expected
    assert passages == again
    assert len({one.id for one in passages}) == len(passages)
    assert capsys.readouterr().err.count("rows of a reply are left out") == (len(rows) > len(expected)), "said once"


def test_a_server_that_fails_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steprag.net.bounded_http.FIRST_WAIT", 0.01)
    replies = iter([(503, {"detail": "loading"}), (429, {"detail": "full"}), (200, found("Lima"))])
    with foreign(lambda _: next(replies)) as endpoint:
        (passage,) = asyncio.run(open_retriever(endpoint.url, quick()).search("Lima", 1))
        assert passage.title == "Lima"
        assert len(endpoint.requests) == 3
    with foreign(lambda _: (503, {"detail": "loading"})) as endpoint:
        source = open_retriever(endpoint.url, quick())
        with pytest.raises(RetrieverError, match="503 loading .tried 3 times"):
            asyncio.run(source.search("Lima", 1))
        assert len(endpoint.requests) == 3
    with pytest.raises(RetrieverError, match="ClientConnectorError.*tried 3 times"):  # it is gone now
        asyncio.run(source.search("Lima", 1))


@pytest.mark.parametrize("part", [
    {"result": []}, {"result": [None]}, {"result": [*found("Lima")["result"], *found("Peru")["result"]]},
    {**found("Lima"), "error": "one shard is loading"}, {**found("Lima"), "timed_out": True},
])  # fmt: skip
def test_a_reply_in_part_is_asked_for_again(part: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steprag.net.bounded_http.FIRST_WAIT", 0.01)
    replies = iter([part, found("Peru"), part, part, part])
    with foreign(lambda _: (200, next(replies))) as endpoint:
        source = open_retriever(endpoint.url, quick())
        assert asyncio.run(source.search("Lima", 1))[0].title == "Peru"
        with pytest.raises(RetrieverError, match="incomplete reply: .* .tried 3 times"):
            asyncio.run(source.search("Lima", 1))


@pytest.mark.parametrize(("reply", "kind", "words"), [
    ((422, {"detail": "too many"}), RetrieverError, "422 too many"),
    ((200, {"results": []}), RetrieverError, """not Search-R1's: 'result'; it begins '{"results": ..}'"""),
    ((200, {"result": [[{"document": {"id": "7"}, "score": 1.0}]]}), RetrieverError, "not Search-R1's"),
    ((200, {"result": [[{"document": 7, "score": 1.0}]]}), RetrieverError, "not Search-R1's.*needs an"),
    ((200, {"result": [[{"document": {"id": "7", "contents": "A\n\ud83d"}, "score": 1.0}]]}), RetrieverError,
     "surrogate"),
    ((200, "nonsense"), RetrieverError, "not Search-R1's"),
    ((401, {"detail": "no"}), ConfigError, "refuses the token: put its token in STEPRAG_RETRIEVER_TOKEN"),
])  # fmt: skip
def test_replies_that_end_a_search_at_once(reply: tuple[int, object], kind: type[Exception], words: str) -> None:
    with foreign(lambda _: reply) as endpoint:
        source = open_retriever(endpoint.url, quick())
        with pytest.raises(kind, match=words):
            asyncio.run(source.search("Lima", 1))
        assert len(endpoint.requests) == 1


def test_a_proxy_is_not_asked_for_this_machines_own_services(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with foreign(lambda _: (200, found("Lima"))) as endpoint:
        assert asyncio.run(open_retriever(endpoint.url, quick(retries=0)).search("Lima", 1))[0].title == "Lima"


def test_services_that_do_not_fit() -> None:
    with foreign(lambda _: (200, found("Lima"))) as endpoint:
        with pytest.raises(ConfigError, match="mode is sparse, and .* serves what it does not tell"):
            open_retriever(endpoint.url, quick(mode="sparse"))
        for own in ({"reranker": "model"}, {"links": 0.5}, {"fusion": "rrf"}, {"dense_weight": 0.3}):
            with pytest.raises(ConfigError, match="leave .* to the service"):
                open_retriever(endpoint.url, quick(**own))
    with pytest.raises(ConfigError, match="names several services; put them behind one URL, by a load balancer"):
        open_retriever("http://a:8000,http://b:8000")


# --- a process ------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def index(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hybrid_index(tmp_path_factory.mktemp("served"), WORLD, tiny_encoder)


@contextmanager
def process(index: Path, *options: str, **environment: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "apps.commands", "index", "serve", "--index", str(index), "--port", "0"]
    command += ["--backend", "torch", *options]  # none of these is converted
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})
    try:
        assert child.stdout is not None
        yield child.stdout.readline().strip(), child
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_a_service_has_the_results_of_its_folder_and_a_stop_answers_what_was_accepted(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = ["currency of Albania", "Tirana", "Heroes", "a capital", "Prices in Albania are quoted in the lek."]
    many = [f"question number {n} about Albania and its currency, the lek" for n in range(200)]

    async def stopped() -> httpx2.Response:
        async with httpx2.AsyncClient(base_url=url, timeout=60, headers={"Authorization": "Bearer s3cret"}) as made:
            slow = asyncio.create_task(made.post("/retrieve", json={"queries": many, "topk": 2}))
            while (await made.get("/health")).json()["waiting"] == 0:
                await asyncio.sleep(0.005)
            child.send_signal(signal.SIGTERM)
            return await slow

    with process(index, STEPRAG_RETRIEVER_TOKEN="s3cret") as (url, child):
        with pytest.raises(ConfigError, match="refuses the token"):
            open_retriever(url)
        monkeypatch.setenv("STEPRAG_RETRIEVER_TOKEN", "s3cret")
        with pytest.raises(ConfigError, match="mode is dense, and .* serves hybrid"):
            open_retriever(url, RetrieverConfig(mode="dense"))
        remote, local = open_retriever(url), open_retriever(index)
        assert isinstance(remote, RemoteRetriever)
        assert remote.fingerprint == local.fingerprint
        assert asyncio.run(search_all(remote, queries, 4)) == asyncio.run(search_all(local, queries, 4))
        reply = asyncio.run(stopped())
        assert reply.status_code == 200
        assert [len(found) for found in reply.json()["result"]] == [2] * len(many)
        assert child.wait(30) == 0
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(f"{url}/health")


def test_what_serve_refuses(index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from indexes.service.serve import main

    for argv, words in (
        (["--index", str(tmp_path / "nowhere")], "index folder not found"),
        (["--index", str(index), "--host", "0.0.0.0"], "needs a token"),
        (["--index", str(index), "--limits.waiting", "3"], "limits.waiting must be at least"),
        (["--index", str(index), "--top_k", "200"], "top_k 200 is more than limits.top_k 100"),
    ):
        assert guarded(main, [*argv, "--port", "0"]) == 2
        assert words in capsys.readouterr().err
    with process(words_index(tmp_path, WORLD)) as (url, child):
        port = url.rsplit(":", 1)[1]
        assert guarded(main, ["--index", str(index), "--port", port]) == 2
        said = capsys.readouterr().err
        assert f"cannot listen on 127.0.0.1:{port}" in said
        assert said.endswith("; --port takes another\n")
        child.send_signal(signal.SIGINT)
        assert child.wait(30) == 0


def test_a_service_for_others_is_told_by_an_address_that_they_reach() -> None:
    with socket.socket() as bound:
        bound.bind(("0.0.0.0", 0))
        host = url_of(bound).removeprefix("http://").rpartition(":")[0]
    assert host not in ("", "0.0.0.0")


def test_a_slow_start_is_no_ones_time_out(tmp_path: Path) -> None:
    class Slow(Words):
        def load(self) -> None:
            self.started.set()
            self.go.wait(30)

    searcher = Slow()
    searcher.go.clear()

    async def work(made: httpx2.AsyncClient) -> tuple[httpx2.Response, httpx2.Response]:
        early = asyncio.create_task(made.post("/retrieve", json={"queries": ["Lima"]}))
        await asyncio.sleep(0.3)
        health = await made.get("/health")
        searcher.go.set()
        return health, await early

    health, early = asking(tmp_path, work, searcher, limits=LimitsConfig(seconds=0.2))
    assert (health.status_code, health.json()["status"]) == (503, "loading")
    assert early.status_code == 200


def test_weights_that_do_not_load(tmp_path: Path) -> None:
    class Broken(Words):
        def load(self) -> None:
            raise OSError("weights unreadable")

    async def work(made: httpx2.AsyncClient) -> tuple[httpx2.Response, httpx2.Response]:
        return await made.post("/retrieve", json={"queries": ["Lima"]}), await made.get("/health")

    reply, health = asking(tmp_path, work, Broken())
    assert (reply.status_code, reply.json()["error"]["message"]) == FAILED
    assert (health.status_code, health.json()["status"]) == (503, "failed")


@pytest.mark.slow
def test_a_service_may_encode_queries_in_another_runtime(index: Path) -> None:
    with process(index, "--backend", "onnx") as (url, _):
        remote, local = open_retriever(url), open_retriever(index)
        queries = [f"query {number}" for number in range(5)]
        told, here = (asyncio.run(search_all(source, queries, 3)) for source in (remote, local))
    assert [[p.id for p in passages] for passages in told] == [[p.id for p in passages] for passages in here]
