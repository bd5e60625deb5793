"""An agent of the `openai` package, recorded through the proxy; its calls folded into trees."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
import uvicorn

from apps import commands
from apps.record.record import COMPLETIONS, CallRecorder, leads_out, record_app
from data_generation.interop.recorded import CallFolder, RecordedCall, outcome_of
from steprag.errors import ConfigError
from steprag.net.bounded_http import BoundedClient
from steprag.net.hosts import listen, url_of
from steprag.policy.streams import ChunkedReply
from steprag.records.jsonl import LineJournal, read_records, write_records
from steprag.tree import Tree
from tests.chat_parts import streaming_endpoint
from tests.fakes import Replying, listening, serve, wait_for
from tests.models import TEMPLATE, make_tokenizer
from training.parity import checked_tokens
from training.rows import read_file

KEY = "sk-a-secret-of-the-agent"
TOOLS = [{"type": "function", "function": {"name": "search", "description": "Finds.", "parameters": {
    "type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}}}]  # fmt: skip
QUESTION = "Which currency is used in Albania?"
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


def piece(name: str | None, arguments: object, **more: Any) -> dict[str, Any]:
    """A piece of a tool's call, as a stream has it."""
    return {"function": {"arguments": arguments, **({} if name is None else {"name": name})}, **more}


CALL, OTHER = '{"query": "a"}', '{"query": "b"}'
TWO = [("search", CALL), ("search", OTHER)]


@pytest.mark.parametrize(("pieces", "calls"), [
    ([piece("search", CALL, id="1", index=0), piece("search", OTHER, id="2", index=0)], TWO),  # Ollama
    ([piece("search", CALL, id="1"), piece("search", OTHER, id="2")], TWO),
    ([piece("search", CALL), piece("search", OTHER)], TWO),
    ([piece("search", CALL, index=0), piece("search", OTHER, index=0)], TWO),
    ([piece("search", CALL, index=None), piece("fetch", "{}", index=None)], [("search", CALL), ("fetch", "{}")]),
    ([[piece("search", CALL), piece("search", OTHER)]], TWO),
    ([piece("search", "", id="1", index=0), piece(None, CALL[:5], index=0), piece(None, CALL[5:], index=0),
      piece("search", "", id="2", index=0), piece("", OTHER, id="", index=0)], TWO),
    ([piece("search", "", id="1"), piece(None, CALL[:5]), piece(None, CALL[5:]), piece("search", "", id="2"),
      piece(None, OTHER)], TWO),
    ([piece("search", CALL[:5], id="1", index=0), piece("search", CALL[5:], id="1", index=0)], TWO[:1]),
    ([piece("search", CALL[:5], index=0), piece("search", CALL[5:], index=0)], TWO[:1]),
    ([piece("sea", "", id="1", index=0), piece("rch", "", index=0), piece(None, CALL, index=0)], TWO[:1]),
    ([piece("search", CALL, id="1", index=0), piece("search", CALL, id="1", index=0)], TWO[:1]),  # repeated at the end
    ([piece("search", "", id="1", index=0), piece("search", "", id="2", index=1), piece(None, CALL, index=0),
      piece(None, OTHER, index=1)], TWO),
    ([piece("search", {"query": "a"}, index=0)], TWO[:1]),
    ([piece("search", "", id="1", index=0), piece("fetch", "", id="2", index=0)], [("search", ""), ("fetch", "")]),
])  # fmt: skip
def test_calls_that_a_stream_gives_one_index_or_none_stay_apart(
    pieces: list[Any], calls: list[tuple[str, str]]
) -> None:
    chunks = ChunkedReply()
    for one in pieces:
        chunks.add({"choices": [{"index": 0, "delta": {"tool_calls": one if isinstance(one, list) else [one]}}]})
    told = chunks.reply()["choices"][0]["message"]["tool_calls"]
    assert [(call["function"]["name"], call["function"]["arguments"]) for call in told] == calls


def test_a_call_of_the_older_form_is_put_together_too() -> None:
    chunks = ChunkedReply()
    for told in ({"name": "search", "arguments": CALL[:5]}, {"arguments": CALL[5:]}):
        chunks.add({"choices": [{"index": 0, "delta": {"function_call": told}}]})
    (call,) = chunks.reply()["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "search", "arguments": CALL}


@contextmanager
def recorder(upstream: str, folder: Path) -> Iterator[str]:
    """The proxy on a free port; its base URL."""
    ready, box, listening_on = threading.Event(), dict[str, Any](), listen("127.0.0.1", 0)

    async def run() -> None:
        async with BoundedClient(upstream, seconds=20) as client:
            with LineJournal(folder / "calls.jsonl") as journal:
                app = record_app(CallRecorder(upstream, client, journal))
                box["server"] = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
                box["server"].install_signal_handlers = lambda: None
                serving = asyncio.create_task(box["server"].serve(sockets=[listening_on]))
                while not box["server"].started:
                    await asyncio.sleep(0.005)
                ready.set()
                await serving

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield f"{url_of(listening_on)}/v1"
    finally:
        box["server"].should_exit = True
        thread.join(15)
        listening_on.close()


def kept(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "calls.jsonl").read_text().splitlines()]


def called(query: str, **message: Any) -> dict[str, Any]:
    """A completion that calls the tool."""
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "search", "arguments": json.dumps({"query": query})},
    }
    return {"role": "assistant", "content": None, "tool_calls": [call], **message}


def completion(message: dict[str, Any], finish: str = "stop") -> dict[str, Any]:
    return {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "usage": USAGE,
            "choices": [{"index": 0, "finish_reason": finish, "message": message}]}  # fmt: skip


def agent(url: str, *, stream: bool = False, found: str = "Prices are in lek.") -> str:
    """A small agent as people write it with the `openai` package: it calls tools until the model answers in words."""
    client = openai.OpenAI(base_url=url, api_key=KEY, max_retries=2)
    messages: list[Any] = [{"role": "system", "content": "Use the tool."}, {"role": "user", "content": QUESTION}]
    for _ in range(5):
        if stream:
            with client.chat.completions.stream(model="m", messages=messages, tools=TOOLS) as events:  # pyright: ignore
                said = events.get_final_completion().choices[0].message
        else:
            said = client.chat.completions.create(model="m", messages=messages, tools=TOOLS).choices[0].message  # pyright: ignore
        if not said.tool_calls:
            return said.content or ""
        messages.append(said.model_dump(exclude_none=True))
        messages += [{"role": "tool", "tool_call_id": call.id, "content": found} for call in said.tool_calls]
    raise AssertionError("no answer")


def test_an_agent_with_tools_is_recorded_as_it_ran(tmp_path: Path) -> None:
    def reply(request: dict[str, Any]) -> tuple[int, object]:
        last = request["messages"][-1]
        return 200, completion({"role": "assistant", "content": "lek"} if last["role"] == "tool" else called("Albania"))

    with serve(reply) as endpoint, recorder(endpoint.url, tmp_path) as url:
        assert agent(url) == "lek"
    rows = kept(tmp_path)
    assert [row["request"] for row in rows] == endpoint.requests
    assert [row["reply"]["choices"][0]["message"].get("content") for row in rows] == [None, "lek"]
    assert KEY not in (tmp_path / "calls.jsonl").read_text()


def test_calls_of_no_tool_are_warned_of_while_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = [("search", "{"), ("searchsearch", CALL + OTHER), ("search", CALL)]
    calls = [{"id": str(n), "type": "function", "function": {"name": name, "arguments": told}}
             for n, (name, told) in enumerate(odd)]  # fmt: skip
    reply = completion({"role": "assistant", "content": None, "tool_calls": calls})
    asked = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": TOOLS}
    with serve(lambda _: (200, reply)) as endpoint, recorder(endpoint.url, tmp_path) as url:
        for _ in range(2):
            assert httpx2.post(f"{url}/chat/completions", json=asked).status_code == 200
        assert httpx2.post(f"{url}/chat/completions", json={**asked, "tools": 7}).status_code == 200
    told = capsys.readouterr().err
    assert told.count("record: a reply calls 'searchsearch', and its request offers search\n") == 1
    assert told.count("record: the arguments of a call of 'search' are not a JSON object") == 1
    assert "a reply calls 'search', and its request offers no tool" in told
    assert len(kept(tmp_path)) == 3


@pytest.mark.parametrize(("encoding", "pack", "read"), [
    ("gzip", gzip.compress, True), ("deflate", zlib.compress, True), ("br", lambda body: body, False),
    ("gzip", lambda body: gzip.compress(body)[:-9], False),
])  # fmt: skip
def test_a_packed_request_passes_as_it_is(
    encoding: str, pack: Callable[[bytes], bytes], read: bool, tmp_path: Path
) -> None:
    seen: list[tuple[str | None, bytes]] = []

    class Upstream(Replying):
        def do_POST(self) -> None:
            seen.append((self.headers.get("Content-Encoding"), self.given()))
            self.reply(completion({"role": "assistant", "content": "lek"}))

    asked = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    body = pack(json.dumps(asked).encode())
    headers = {"Content-Encoding": encoding, "Content-Type": "application/json"}
    with listening(Upstream) as upstream, recorder(f"{upstream}/v1", tmp_path) as url:
        assert httpx2.post(f"{url}/chat/completions", content=body, headers=headers).status_code == 200
    assert seen == [(encoding, body)]
    (row,) = kept(tmp_path)
    assert (row["request"] == asked, row["error"] is None) == (read, read)


def test_a_stream_passes_byte_for_byte_and_is_put_together_with_its_calls(tmp_path: Path) -> None:
    def chunks(request: dict[str, Any]) -> Iterator[Any]:
        def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            return {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice]}

        if request["messages"][-1]["role"] == "tool":
            yield from (chunk({"role": "assistant", "content": "the "}), chunk({"content": "lek"}), chunk({}, "stop"))
            return
        named = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "search", "arguments": ""}}
        yield chunk({"role": "assistant", "tool_calls": [named]})
        for piece in ('{"que', 'ry": "Albania"}'):
            yield chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
        yield chunk({}, "tool_calls")

    asked = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}]}
    with streaming_endpoint(chunks) as endpoint, recorder(endpoint.url, tmp_path) as url:
        assert agent(url, stream=True) == "the lek"
        direct, through = (httpx2.post(f"{at}/chat/completions", json=asked).content for at in (endpoint.url, url))
    assert direct == through
    first, second, _ = kept(tmp_path)
    (call,) = first["reply"]["choices"][0]["message"]["tool_calls"]
    assert (call["id"], call["function"]) == ("call_1", {"name": "search", "arguments": '{"query": "Albania"}'})
    assert second["reply"]["choices"][0]["message"]["content"] == "the lek"


def test_what_the_upstream_refuses_passes_as_it_is_and_a_try_again_is_a_call_of_its_own(tmp_path: Path) -> None:
    tries: list[int] = []

    def reply(request: dict[str, Any]) -> tuple[int, object]:
        tries.append(1)
        if request["model"] == "none":
            return 404, {"error": {"message": f"no such model, {KEY}", "type": "invalid_request_error", "code": "nf"}}
        if len(tries) == 1:
            return 500, {"error": {"message": "later", "type": "server_error"}}
        return 200, completion({"role": "assistant", "content": "lek"})

    with serve(reply) as endpoint, recorder(endpoint.url, tmp_path) as url:
        assert agent(url) == "lek"
        client = openai.OpenAI(base_url=url, api_key=KEY, max_retries=0)
        assert [model.id for model in client.models.list()] == ["double"]
        with pytest.raises(openai.NotFoundError, match="no such model"):
            client.chat.completions.create(model="none", messages=[{"role": "user", "content": "x"}])
        headers = {"Authorization": f"Bearer {KEY}"}
        stranger = httpx2.post(f"{url}/chat/completions", json={}, headers={**headers, "Origin": "http://evil.example"})
        assert stranger.status_code == 403
    with recorder("http://127.0.0.1:9/v1", tmp_path) as url:
        lost = httpx2.post(f"{url}/chat/completions", json={"messages": []}, headers=headers)
    assert (lost.status_code, lost.json()["error"]["code"]) == (502, "upstream")
    assert [row["status"] for row in kept(tmp_path)] == [500, 200, 404, 502]
    assert KEY not in (tmp_path / "calls.jsonl").read_text()


@pytest.mark.parametrize("path", [
    "/v1/../stats", "/v1/%2e%2e/stats", "/v1/.%2E/stats", "/v1/x/../../stats", "/v1/..%2fstats",
    "/v1/x%2F..%2f..%2fstats",
    "/v1//stats", "/v1/%2fstats", "/v1/..\\stats", "/v1/x%5c..%5C..%5cstats", "/v1/./x", "/v1/%252e%252e/stats",
    "/v1/..;x/stats", "/v1/.%09./stats", "/v1/%ef%bc%8e%ef%bc%8e/stats", "/%761/x", "/v1/x#/..",
    f"/v1/%{'25' * 9}2e./x",
])  # fmt: skip
def test_no_path_leads_out_of_v1(path: str, tmp_path: Path) -> None:
    with serve(lambda _: (200, {"stats": 1})) as endpoint, recorder(endpoint.url, tmp_path) as url:
        for method in ("GET", "POST"):
            with socket.create_connection(url.removeprefix("http://").removesuffix("/v1").split(":")) as client:
                head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                client.sendall(head.encode())
                assert client.recv(100).split(b" ")[1] in (b"404", b"400"), path
        assert endpoint.requests == []
    assert not any(map(leads_out, ("/v1/models/meta%2Fllama%203/", "/v1/chat/completions", "/v1/")))


def test_a_client_that_leaves_a_stream_leaves_a_call_that_is_not_learnt(tmp_path: Path) -> None:
    go = threading.Event()

    def chunks(request: dict[str, Any]) -> Iterator[Any]:
        yield {"choices": [{"index": 0, "delta": {"content": "the "}}]}
        go.wait(20)
        for _ in range(200):  # the proxy hears of it while the stream goes on
            time.sleep(0.01)
            yield {"choices": [{"index": 0, "delta": {"content": "lek "}}]}

    asked = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}]}
    with streaming_endpoint(chunks) as endpoint, recorder(endpoint.url, tmp_path) as url:
        with httpx2.stream("POST", f"{url}/chat/completions", json=asked) as reply:
            next(reply.iter_bytes())
        go.set()
        wait_for(lambda: kept(tmp_path), 20)
    (row,) = kept(tmp_path)
    assert row["left"]
    assert row["request"] == asked


def test_a_stream_that_its_client_leaves_before_the_first_byte_is_closed(tmp_path: Path) -> None:
    asked, go, closed = threading.Event(), threading.Event(), threading.Event()

    class Late(Replying):
        def do_POST(self) -> None:
            asked.set()
            go.wait(20)
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b'data: {"choices": []}\n\n')
                    time.sleep(0.001)
            except OSError:
                closed.set()

    with listening(Late) as address, recorder(f"{address}/v1", tmp_path) as url:
        head = f"POST /v1/{COMPLETIONS} HTTP/1.1\r\nHost: {url.split('/')[2]}\r\nContent-Length: 2\r\n\r\n{{}}"
        with socket.create_connection(("127.0.0.1", int(url.split(":")[2].split("/")[0]))) as client:
            client.sendall(head.encode())
            assert asked.wait(20)
        time.sleep(0.1)  # the proxy hears that it went
        go.set()
        assert closed.wait(10)
        wait_for(lambda: kept(tmp_path), 10)
    assert [row["left"] for row in kept(tmp_path)] == [True]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def bot(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def call_of(messages: list[Any], reply: Any, **more: Any) -> RecordedCall:
    request = {"messages": messages, **({"tools": more.pop("tools")} if "tools" in more else {})}
    return RecordedCall(
        f"c{id(reply)}", more.pop("status", 200), request, completion(reply, more.pop("finish", "stop")), **more
    )


def shape(folder: CallFolder) -> list[list[tuple[int | None, str, int]]]:
    """Of each tree its nodes: parent, text or failure, visits."""
    return [[(n.parent, n.failure or n.text, n.visits) for n in tree.nodes[1:]] for tree in folder.trees]


A, B = [user("q")], [user("q"), bot("look"), user("seen")]
FOLDS: dict[str, tuple[list[RecordedCall], Any, dict[str, int]]] = {
    "equal prompts are one node, equal completions too": (
        [call_of(A, bot("one")), call_of(A, bot("two")), call_of(A, bot("one"))],
        [[(0, "one", 2), (0, "two", 1)]], {"folded": 3}),
    "a prompt goes on from its completion": (
        [call_of(A, bot("look")), call_of(B, bot("lek"))], [[(0, "look", 1), (1, "lek", 1)]], {"folded": 2}),
    "one completion, two sequels": (
        [call_of(A, bot("look")), call_of(A, bot("look")), call_of(B, bot("lek")),
         call_of([*B[:2], user("other")], bot("euro"))],
        [[(0, "look", 1), (1, "lek", 1), (0, "look", 1), (3, "euro", 1)]], {"folded": 4}),
    "parts of text, keys of null and the old names of roles are one message": (
        [call_of([{"role": "system", "content": "s"}, *A], bot("look")),
         call_of([{"role": "developer", "content": [{"type": "text", "text": "s"}]}, *A,
                  {**bot("look "), "refusal": None, "tool_calls": None}, user("seen")], bot("lek"))],
        [[(0, "look", 1), (1, "lek", 1)]], {"folded": 2}),
    "another beginning is another tree": (
        [call_of(A, bot("one")), call_of([user("r")], bot("two"))], [[(0, "one", 1)], [(0, "two", 1)]], {"folded": 2}),
    "what failed, was left or shows a picture is not folded": (
        [call_of(A, bot("one"), status=500), call_of(A, bot("one"), left=True), call_of(A, bot("one"), error="x"),
         call_of([user([{"type": "image_url", "image_url": {"url": "data:"}}])], bot("one"))],  # pyright: ignore
        [], {"failed": 2, "left by the agent": 1, "left out: a message shows a part of type 'image_url'": 1}),
    "what no chat template takes is not folded": (
        [call_of([{"role": "ipython", "content": "x"}], bot("one")), call_of(["no object"], bot("one")),
         call_of([{"role": "system", "content": "s"}], bot("one")),
         call_of(A, {"tool_calls": [{"function": {"name": "f", "arguments": "[1"}}]})],
        [], {"left out: a message has the role 'ipython'": 1, "left out: nothing is asked": 1, "left out: no chat": 1,
             "left out: not JSON: Expecting ',' delimiter at column 3": 1}),
    "what is cut, empty or holds a control token is refused": (
        [call_of(A, bot("lo"), finish="length"), call_of(A, bot(" ")), call_of(A, bot("<|im_end|> x"))],
        [[(0, "truncated", 1), (0, "empty", 1), (0, "control_token", 1)]], {"folded": 3}),
}  # fmt: skip


@pytest.mark.parametrize("case", FOLDS)
def test_calls_fold_into_trees(case: str) -> None:
    calls, expected, counts = FOLDS[case]
    folder = CallFolder(())
    for call in calls:
        folder.add(call)
    assert shape(folder) == expected
    assert folder.counts == counts


def test_each_message_names_the_completion_that_it_was() -> None:
    folder = CallFolder(())
    for messages, reply in ((A, "look"), (B, "lek"), ([*B, bot("lek"), user("sure?"), bot("never said")], "yes")):
        folder.add(call_of(messages, bot(reply)))
    (tree,) = folder.trees
    assert tree.finished(outcome_of("f1")).extra["origins"] == {
        0: [None],
        1: [None, 1, None],
        2: [None, 1, None, 2, None, None],
    }


@pytest.mark.parametrize(
    ("template", "refused"),
    [
        ("qwen2_5", None),
        ("qwen3", None),
        ("qwen3_instruct_2507", None),
        ("llama3_1", "in other words"),
        (None, "--model"),
    ],
)
@pytest.mark.parametrize("system", ["Use the tool.", None])
def test_prompts_with_tools_are_those_that_the_template_sends(
    template: str | None, refused: str | None, system: str | None, tmp_path: Path
) -> None:
    trl = pytest.importorskip("trl")
    words = (Path(trl.__file__).parent / "chat_templates" / f"{template}.jinja").read_text() if template else ""
    tokenizer = make_tokenizer(tmp_path, ["who?"], words) if template else None
    first = [{"role": "system", "content": system}] * bool(system) + [user(QUESTION)]
    then = [*first, called("Albania"), *[{"role": "tool", "tool_call_id": "call_1", "content": "é lek"}] * 2]
    folder = CallFolder((), tokenizer)
    calls = [call_of(first, called("Albania"), tools=TOOLS), call_of(then, bot("lek"), tools=TOOLS)]
    if refused:
        with pytest.raises(ConfigError, match=refused):
            folder.add(calls[0])
        return
    for call in calls:
        folder.add(call)
    (tree,) = folder.trees
    prompt = tree.nodes[1].messages
    assert prompt is not None
    assert tokenizer is not None
    native = [{**m, "content": m["content"] or ""} for m in then]
    native[-3]["tool_calls"] = [{"type": "function", "function": {"name": "search", "arguments": {"query": "Albania"}}}]
    sent = tokenizer.apply_chat_template(native, tools=TOOLS, tokenize=False, add_generation_prompt=True)
    assert tokenizer.apply_chat_template(list(prompt), tokenize=False, add_generation_prompt=True) == sent
    assert [m["role"] for m in prompt][-3:] == ["user", "assistant", "user"]


def short(episode: dict[str, Any]) -> float | None:
    """A reward of the user's own."""
    return {"lek": 1.0, "euro": 0.0}.get(episode["answer"])


@pytest.mark.parametrize("reward", ["em", "tests.test_record:short"])
def test_recorded_calls_become_pairs_and_supervised_rows(reward: str, tmp_path: Path) -> None:
    asked = [user(f"Please answer. {QUESTION}")]
    looks = [(call_of(asked, bot(f"look {place}")), call_of([*asked, bot(f"look {place}"), user("seen")], bot(said)))
             for place, said in enumerate(["lek", "euro", "dinar"])]  # fmt: skip
    write_records(tmp_path / "calls.jsonl", [call for both in looks for call in both])
    write_records(tmp_path / "q.jsonl", [{"id": "q1", "question": QUESTION, "golden_answers": ["lek"]}])
    trees, pairs = tmp_path / "trees", tmp_path / "pairs"
    questions = ["--questions", str(tmp_path / "q.jsonl")]
    folding = ["trees", "recorded", "--calls", str(tmp_path / "calls.jsonl"), "--out", str(trees), *questions]
    assert commands.main([*folding, "--reward", reward]) == 0
    (tree,) = read_records(trees / "trees.jsonl", Tree)
    assert tree.question.id == "q1"
    assert [n.prediction_f1 for n in tree.nodes if n.terminal] == [1.0, 0.0, None if ":" in reward else 0.0]
    options = ["--config", "spre", "--pairs.errors", "0", "--validation", "0", "--products", "[pairs, sft]"]
    assert commands.main(["pairs", "--trees", str(trees), "--out", str(pairs), *options]) == 0
    made = [json.loads(line) for line in (pairs / "pairs.train.jsonl").read_text().splitlines()]
    assert {row["chosen"][0]["content"] for row in made} == {"look 0"}
    steps = [json.loads(line) for line in (pairs / "sft.train.jsonl").read_text().splitlines()]
    assert [row["completion"][0]["content"] for row in steps] == ["look 0", "lek"]
    assert steps[1]["prompt"] == [asked[0], bot("look 0"), user("seen")]
    tokenizer = make_tokenizer(tmp_path / "model", [QUESTION], TEMPLATE)
    rows = read_file(pairs / "pairs.train.jsonl", "dpo")
    assert len(checked_tokens(rows, tokenizer, 512)) == len(rows) == len(made)  # the gate of every training


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--reward", "best"], "give f1, em, cover, or module:function"),
        (["--reward", "tests.test_record:user"], "give a number from 0 to 1"),
        (["--calls", "missing"], "recorded calls not found"),
    ],
)
def test_what_cannot_be_folded_is_told(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_records(tmp_path / "calls.jsonl", [call_of(A, bot("one"))])
    folding = ["trees", "recorded", "--calls", str(tmp_path / "calls.jsonl"), "--out", str(tmp_path / "t"), *options]
    assert commands.main(folding) == 2
    assert said in capsys.readouterr().err
