"""The agent as an OpenAI model: by the `openai` package, by hand, and as Open WebUI 0.12 asks (its requests, recorded);
who may ask; what links open; what the policy's client streams.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx2
import openai
import pytest
from fastapi import FastAPI
from pydantic import BaseModel

from apps.chat.http.completion_request import CompletionBody
from apps.chat.http.reasoning import Reasoning, inert, reasoning_of
from steprag.agent.grammars import TRANSCRIPT
from steprag.config.sections import PolicyConfig
from steprag.errors import PolicyError
from steprag.policy.client import OpenAIPolicy
from steprag.policy.streams import whole_reply
from steprag.types import Passage
from steprag.web.app import tell_errors
from tests.chat_parts import (
    BEARER,
    TOKEN,
    WORK,
    Served,
    WritingPolicy,
    chat,
    parsed,
    scripted,
    streaming_endpoint,
    working,
)
from tests.fakes import DictRetriever, answer, evidence, query, wait_for


def client(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key=TOKEN, max_retries=0)


def asked(text: str = "Which currency?") -> Any:
    return [{"role": "user", "content": text}]


def test_the_openai_package_reads_steps_answer_sources_and_usage() -> None:
    with chat(working()) as served:
        names = [model.id for model in client(served).models.list().data]
        stream = client(served).chat.completions.create(
            model="agent", messages=asked(), stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
    assert names == ["agent", *(f"agent-{mode}" for mode in ("auto", "local", "direct", "reasoning")), "agent+sources"]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    reasoning = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert reasoning == "".join(getattr(delta, "reasoning", None) or "" for delta in deltas)
    assert reasoning.split("\n\n")[:2] == ["I need one fact. So the next query is Tirana",
                                             "- [1] Tirana\n- [2] Albania\n- [3] Lima"]  # fmt: skip
    assert "".join(delta.content or "" for delta in deltas) == "lek"
    (cited,) = [delta.annotations for delta in deltas if getattr(delta, "annotations", None)]  # pyright: ignore
    assert [one["url_citation"]["title"] for one in cited] == ["Tirana", "Albania"]
    assert cited[0]["url_citation"]["end_index"] == 3
    assert chunks[-1].usage
    assert chunks[-1].usage.total_tokens == 5 * 15
    events = [chunk.model_extra["steprag"] for chunk in chunks if chunk.model_extra and "steprag" in chunk.model_extra]
    assert [events[0]["type"], events[-1]["type"]] == ["turn.started", "turn.finished"]


def test_a_refused_completion_is_told_as_content_and_a_failure_as_an_error() -> None:
    with chat(WritingPolicy(scripted("I do not know.")), seconds=0.2) as served:
        refused = client(served).chat.completions.create(model="agent", messages=asked())
        served.policy.hold = True
        with pytest.raises(openai.APIStatusError) as failed:
            client(served).chat.completions.create(model="agent", messages=asked())
        with pytest.raises(openai.APIError, match=r"serve\.seconds"):
            list(client(served).chat.completions.create(model="agent", messages=asked(), stream=True))
    assert refused.choices[0].message.content == "(no answer: no_action)"
    assert failed.value.status_code == 502


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_cancels_its_turn(stream: bool) -> None:
    policy = working(hold=True)
    with chat(policy, at_once=1) as served:
        where = urlsplit(served.url)
        body = json.dumps({"model": "agent", "messages": asked(), "stream": stream})
        with socket.create_connection((where.hostname, where.port)) as leaving:
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {where.netloc}\r\nAuthorization: Bearer {TOKEN}\r\n"
            leaving.sendall(
                f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
            )
            wait_for(lambda: policy.begun)
        wait_for(lambda: policy.cancelled)
        policy.script, policy.hold = scripted(*WORK), False
        assert served.whole()[-1]["finish"] == "answer"


@pytest.fixture(scope="module")
def standing() -> Iterator[Served]:
    """A service that answers at once."""
    with chat(WritingPolicy(scripted(answer("lek")))) as served:
        yield served


def sent(served: Served, **change: Any) -> httpx2.Response:
    """The reply to a request. Half an emoji goes out as JSON can write it."""
    body = json.dumps({"model": "agent", "messages": asked(), **change})
    return served.client.post("/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})


class Parsed(BaseModel):
    """What a client would have the agent fill."""

    answer: str


def test_other_doors_of_the_openai_package(standing: Served) -> None:
    calls = client(standing).chat.completions
    assert calls.with_raw_response.create(model="agent", messages=asked()).parse().choices[0].message.content == "lek"
    assert client(standing).models.retrieve("agent+sources").id == "agent+sources"
    with pytest.raises(openai.BadRequestError, match="response_format") as refused:
        calls.parse(model="agent", messages=asked(), response_format=Parsed)
    assert refused.value.param == "response_format"
    with pytest.raises(openai.NotFoundError, match="ask POST /v1/chat/completions"):
        client(standing).responses.create(model="agent", input="Which currency?")

    async def stream() -> str:
        async with openai.AsyncOpenAI(base_url=f"{standing.url}/v1", api_key=TOKEN) as later:
            chunks = await later.chat.completions.create(model="agent", messages=asked(), stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

    assert asyncio.run(stream()) == "lek"


USER, SYSTEM, REPLY = ({"role": role, "content": role} for role in ("user", "system", "assistant"))
NULLS = (
    "n",
    "stream",
    "tools",
    "tool_choice",
    "stop",
    "stream_options",
    "response_format",
    "logprobs",
    "audio",
    "seed",
)


@pytest.mark.parametrize(
    ("change", "question"),
    [
        (dict.fromkeys(NULLS), "Which currency?"),
        (
            {"n": 1, "logprobs": False, "top_logprobs": 0, "response_format": {"type": "text"}, "modalities": ["text"]},
            None,
        ),
        (
            {
                "grammar": "",
                "response_format": {},
                "tools": [],
                "stop": [],
                "logit_bias": {},
                "tool_choice": "",
                "guided_json": {},
                "n": "",
                "stream": "",
                "stream_options": {},
                "modalities": [],
                "functions": [],
            },
            None,
        ),
        ({"response_format": {"type": ""}, "structured_outputs": {"json": None}, "audio": {}, "logprobs": None}, None),
        ({"max_completion_tokens": 5, "unknown": {"a": 1}, "stream_options": {"include_usage": None}}, None),
        (
            {"messages": [{"role": "user", "name": None, "content": [{"type": "text", "text": None}, {"text": "x"}]}]},
            "x",
        ),
        ({"messages": [{"role": "user", "content": ["x", {"type": "input_text", "text": "y"}]}]}, "x\ny"),
        ({"messages": [{"role": "User", "content": {"type": "text", "text": "x"}}]}, "x"),
        (
            {"messages": [USER, REPLY, {"role": "tool", "content": {"rows": [1]}}, {"role": "tool", "content": 5}]},
            "user",
        ),
        ({"messages": [{"role": "system", "content": None}, USER, SYSTEM]}, "user"),
        ({"messages": [USER, {**REPLY, "content": None, "tool_calls": []}, {"role": "tool", "content": "x"}]}, "user"),
        (
            {
                "messages": [
                    {"role": "developer", "content": "x"},
                    *[USER, REPLY] * 150,
                    {"role": "user", "content": "z"},
                ]
            },
            "z",
        ),
        ({"messages": [{"role": "user", "content": "z"}, *[SYSTEM] * 300]}, "z"),
        ({"messages": [{"role": "user", "content": "This is" + " " * 200_000 + "it."}, REPLY, USER]}, "user"),
        ({"messages": [{"role": "user", "content": "\\ud83d \ud83d\ude00"}]}, "\\ud83d \U0001f600"),
    ],
)
def test_what_clients_write_is_read(change: dict[str, Any], question: str | None, standing: Served) -> None:
    reply = sent(standing, **change)
    assert reply.status_code == 200, reply.text
    events = reply.json()["steprag"]["events"]
    assert [event["asked"] for event in events if event["type"] == "question"] == [question or "Which currency?"]


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/api/session", "token"),
        ("/api/turns", "question"),
        ("/generate", "query"),
        ("/v1/chat/completions", "model"),
        ("/api/conversations/c", "title"),
        ("/api/turns/t/feedback", "answer"),
        ("/api/turns/t/fork", "\udc00"),
    ],
)
@pytest.mark.parametrize("half", [b"\\ud83d", b"\\\\\\uDC00", b"\xed\xa0\x80", b"\\ud83d\\\\\\ude00"])
def test_half_an_emoji_is_refused_in_every_body(path: str, field: str, half: bytes, standing: Served) -> None:
    method = "PATCH" if "conversations" in path else "POST"
    for body in (json.dumps({field: "HALF"}), json.dumps({"HALF": [{field: 1}]})):
        content = body.encode().replace(b"HALF", half)
        for encoded in (content, content.decode("utf-8", "surrogatepass").encode("utf-16", "surrogatepass")):
            reply = standing.client.request(method, path, content=encoded, headers={"Content-Type": "application/json"})
            assert (reply.status_code, "half a surrogate pair" in reply.text) == (422, True), (body, reply.text)


FUNCTION = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"model": "gpt-4o"}, 404, "model"),
        ({"messages": []}, 400, "messages"),
        ({"messages": None}, 400, "messages"),
        ({"messages": [REPLY]}, 400, "messages"),
        ({"messages": [USER, {"role": "user", "content": " "}]}, 400, "messages"),
        ({"messages": [{"role": "human", "content": "x"}]}, 400, "messages.0.role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            400,
            "messages",
        ),
        ({"n": 2}, 400, "n"),
        ({"function_call": {"name": "f"}}, 400, "function_call"),
        ({"tools": [FUNCTION], "tool_choice": "required"}, 400, "tool_choice"),
        ({"tool_choice": FUNCTION}, 400, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, 400, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}},
            400,
            "response_format",
        ),
        ({"logprobs": True}, 400, "logprobs"),
        ({"top_logprobs": 3}, 400, "top_logprobs"),
        ({"modalities": ["text", "audio"]}, 400, "modalities"),
        ({"audio": {"voice": "x"}}, 400, "audio"),
        ({"guided_json": {"type": "object"}}, 400, "guided_json"),
        ({"response_format": {"type": "", "schema": {"type": "object"}}}, 400, "response_format"),
        ({"grammar": "root ::= x"}, 400, "grammar"),
    ],
)
def test_what_the_agent_cannot_do_is_refused_by_name(
    change: dict[str, Any], status: int, param: str, standing: Served
) -> None:
    reply = sent(standing, **change)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (status, param)
    assert error.keys() == {"message", "type", "code", "param"}
    assert param in error["message"] or error["code"] != "malformed"


@pytest.mark.parametrize(
    ("method", "path", "status", "says"),
    [
        ("GET", "/v1/models/agent+sources", 200, '"id":"agent+sources"'),
        ("GET", "/v1/models/gpt-4o", 404, "model 'gpt-4o' is not one of agent, "),
        ("GET", "/v1/models/", 200, '"agent-direct"'),
        ("HEAD", "/v1/models", 200, ""),
        ("HEAD", "/v1/models/agent", 200, ""),
        ("HEAD", "/healthz", 200, ""),
        ("POST", "/v1/completions", 404, "POST '/v1/completions' is not served; ask POST /v1/chat/completions"),
        ("POST", "/v1/responses", 404, "ask POST /v1/chat/completions"),
        ("GET", "/v1/chat/completions", 405, "ask POST /v1/chat/completions"),
        ("POST", "/v1/v1/chat/completions", 404, "ask POST /v1/chat/completions"),
        *(
            ("POST", path, 404, f"POST '{path}' is not served; ask POST /v1/chat/completions")
            for path in (
                "/chat/completions",
                "/api/v1/chat/completions",
                "/openai/deployments/gpt-4o/chat/completions",
                "/api/chat/completions",
                "/api/chat",
                "/api/generate",
                "/v1beta/models/agent:generateContent",
                "/v1/engines/agent/completions",
                "/v1/messages",
            )
        ),
        ("GET", "/api/tags", 404, "or GET /v1/models (a client's base URL ends in /v1)"),
        ("POST", "/v1/chat/completions/", 400, "model: field required"),
        ("GET", "/nowhere", 404, "Not Found"),
    ],
)
def test_paths_say_what_is_served(method: str, path: str, status: int, says: str, standing: Served) -> None:
    reply = standing.client.request(method, path, json={})
    assert (reply.status_code, reply.headers["content-type"]) == (status, "application/json")
    assert says in reply.text.replace('\\"', '"')


@pytest.mark.parametrize("body", [b"{", b"\xff", b"\x1f\x8b\x08", b"[1]", b"null", b"[" * 50_000])
def test_a_body_that_is_no_object_is_said_to_be_none(body: bytes, standing: Served) -> None:
    for kind in ("application/json", "text/plain"):
        reply = standing.client.post("/v1/chat/completions", content=body, headers={"Content-Type": kind})
        assert reply.status_code == 400
        assert "the body is no JSON object in plain UTF-8" in reply.json()["error"]["message"]


def test_a_fault_that_nobody_foresaw_is_json_too() -> None:
    app = FastAPI()
    tell_errors(app)

    @app.get("/")
    async def faulty() -> None:
        raise KeyError("a secret")

    async def ask() -> httpx2.Response:
        transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://x") as asking:
            return await asking.get("/")

    reply = asyncio.run(ask())
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "fault")
    assert "secret" not in reply.text


@pytest.mark.parametrize(("headers", "status"), [
    ({}, 401),
    ({"Authorization": "Bearer wrong"}, 401),
    ({**BEARER, "Host": "evil.example"}, 403),
    ({**BEARER, "Host": "host.docker.internal:8100"}, 403),
    ({**BEARER, "Origin": "http://evil.example"}, 403),
    ({**BEARER, "Origin": "null"}, 403),
    ({**BEARER, "Sec-Fetch-Site": "cross-site"}, 403),
    ({"Cookie": "steprag=forged"}, 401),
    (BEARER, 200),
])  # fmt: skip
def test_who_may_ask(headers: dict[str, str], status: int) -> None:
    with chat(working()) as served:
        reply = httpx2.get(f"{served.url}/api/info", headers=headers)
    assert reply.status_code == status
    if "Host" in headers:
        message = reply.json()["error"]["message"]
        assert f"not answer to the name '{headers['Host']}'" in message
        assert "--serve.host 0.0.0.0" in message
    if "Origin" in headers:
        assert f"not to a page of '{headers['Origin']}'; ask from a program" in reply.text
    assert "default-src 'none'" in reply.headers["content-security-policy"]


def test_no_request_names_a_path() -> None:
    with chat(working()) as served:
        where = urlsplit(served.url)
        connection = http.client.HTTPConnection(str(where.hostname), where.port)
        for path in ("/page/../api.py", "/page/%2e%2e/api.py", "/vendor//etc/passwd", "/page/index.html%00.js"):
            connection.request("GET", path, headers=BEARER)
            reply = connection.getresponse()
            reply.read()
            assert reply.status == 404


def stream(reply: Callable[[dict[str, Any]], Any]) -> tuple[list[str], Any, list[dict[str, Any]]]:
    """What was heard, the sample or the error, and the requests that came."""
    heard: list[str] = []

    async def play(url: str) -> Any:
        config = PolicyConfig(engine="openai", model="double", base_url=url, retries=0, timeout=5)
        async with OpenAIPolicy(config, url, "double", TRANSCRIPT) as policy:
            try:
                return await policy.stream(asked(), ("query", "answer"), seed=3, listener=heard.append)
            except PolicyError as error:
                return error

    with streaming_endpoint(reply) as endpoint:
        return heard, asyncio.run(play(endpoint.url)), endpoint.requests


def chunk(text: str | None, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}


def test_a_streamed_reply_is_the_reply_and_is_heard_piece_by_piece() -> None:
    pieces = [query("Tirana")[start : start + 7] for start in range(0, len(query("Tirana")), 7)]
    usage = {"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 7, "total_tokens": 19}}
    heard, sample, requests = stream(lambda _: [*map(chunk, pieces), chunk(None, "stop"), usage])
    assert heard == pieces
    assert sample.completions[0].text == query("Tirana")
    assert (sample.usage.prompt_tokens, sample.usage.completion_tokens) == (12, 7)
    assert requests[0]["stream"] is True
    assert requests[0]["seed"] == 3


@pytest.mark.parametrize("chunks", [
    [chunk("So the"), "not json"],  # the engine dies in mid-sentence: no finish
    [chunk("So the"), '{"choices": ['],
    [chunk("So"), {"error": {"message": "out of memory"}}],
    [chunk("So"), []],
    [{"choices": {}}, {"choices": ["x"]}],
    [chunk("x" * 600_000), chunk("x" * 600_000), chunk(None, "stop")],
    [],
])  # fmt: skip
def test_a_stream_that_breaks_off_is_one_line(chunks: list[Any]) -> None:
    _, error, _ = stream(lambda _: chunks)
    assert isinstance(error, PolicyError)
    assert "\n" not in str(error)


def test_an_engine_that_repeats_what_it_writes_on_is_not_heard_doing_so() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for piece in ("So the ans", "wer is", " lek"):
            yield f"data: {json.dumps(chunk(piece, 'stop'))}\n\n".encode()

    heard: list[str] = []
    reply: Any = asyncio.run(whole_reply(chunks(), "So the answer is", heard.append))
    assert heard == [" lek"]
    assert reply["choices"][0]["message"]["content"] == "So the answer is lek"


def test_a_reader_of_a_byte_at_a_time_holds_nobody_up() -> None:
    with chat(working(), at_once=1) as served:
        where = urlsplit(served.url)
        slow = served.ask()
        with socket.create_connection((where.hostname, where.port)) as reader:
            head = f"GET /api/turns/{slow}/events HTTP/1.1\r\nHost: {where.netloc}\r\nAuthorization: Bearer {TOKEN}\r\n"
            reader.sendall(f"{head}Connection: close\r\n\r\n".encode())
            read = b"".join(reader.recv(1) for _ in range(40))
            served.policy.script = scripted(answer("lek"))
            assert served.whole(mode="direct")[-1]["finish"] == "answer"
            while part := reader.recv(1 << 16):
                read += part
    assert read.startswith(b"HTTP/1.1 200 OK")
    assert b'"type":"turn.finished"' in read


def test_a_thousand_conversations_are_listed_and_their_tokens_forgotten() -> None:
    policy = WritingPolicy(lambda messages: answer("lek"), hold=True)
    with chat(policy, at_once=1, waiting=1000) as served:
        first = served.client.post("/api/turns", json={"question": "first", "mode": "direct"}).json()
        for number in range(999):
            served.ask(f"question {number}", mode="direct")
        policy.hold = False
        policy.go.set()
        wait_for(lambda: served.client.get("/api/info").json() | {"waiting": 0, "playing": 0}
                 == served.client.get("/api/info").json(), seconds=120)  # fmt: skip
        rows = served.client.get("/api/conversations").json()["conversations"]
        assert len(rows) == 1000
        assert rows[0]["title"] == "question 998"
        told = served.events(first["turn"])
        assert told[-1]["finish"] == "answer"
        assert not [event for event in told if event["type"] == "step.delta"]  # told from its record: memory is bounded


TITLE = """### Task:
Generate a concise title summarizing the chat history.
### Guidelines:
- Keep it short: 2-4 words is best.
### Output:
JSON format: { "title": "your concise title here" }
### Chat History:
<chat_history>
USER: Which currency?
ASSISTANT: lek
</chat_history>"""
DOCUMENTS = """### Task:
Respond to the user query using the provided context, incorporating inline citations in the format [id].
### Output:
Provide a clear and direct response to the user's query.

<context>
<source id="1" name="notes.txt">Peru uses the sol.</source>
</context>

Which currency?"""


def completed(served: Served, text: str, **more: Any) -> dict[str, Any]:
    body = {"model": "agent", "messages": [{"role": "user", "content": text}], **more}
    reply = served.client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


@pytest.mark.parametrize("task", [TITLE, TITLE.replace("USER: Which currency?", f"USER: {DOCUMENTS}")])
def test_titles_tags_and_follow_ups_cost_no_turn_and_no_call(task: str) -> None:
    with chat(working()) as served:
        whole = completed(served, task, stream=False, max_tokens=1000, tools=[])
        body = {"model": "agent", "messages": [{"role": "user", "content": task}], "stream": True}
        with served.client.stream("POST", "/v1/chat/completions", json=body) as reply:
            lines = [line for line in reply.iter_lines() if line]
        assert served.client.get("/api/conversations").json()["conversations"] == []
    assert whole["choices"][0]["message"]["content"] == "{}"
    assert '"content":"{}"' in lines[0]
    assert lines[-1] == "data: [DONE]"
    assert served.policy.asked == 0


@pytest.mark.parametrize(("text", "asked"), [
    ("### Task: which currency has Albania?", None), ("### Task:\nWhich? As JSON, please.", None),
    ("### Task:\nName what </context> closes.", None), ("### Task:\nWhat is <context></context>", None),
    (f"### Task:\nAnswer.\n<context>{TITLE}</context>\n<user_query>\nWhich?\n</user_query>", "Which?"),
    (DOCUMENTS, "Which currency?"),
])  # fmt: skip
def test_a_question_is_found_in_tasks_of_a_person_s_own_and_behind_documents(text: str, asked: str | None) -> None:
    with chat(working()) as served:
        assert completed(served, text)["choices"][0]["message"]["content"].endswith("lek")  # or a guess
        (row,) = served.client.get("/api/conversations").json()["conversations"]
    assert row["title"] == " ".join((asked or text).split())


@pytest.mark.parametrize("said", [
    "<think>Peru? No.</think>\n\nAlbania.", "Peru? No.</think>Albania.", "[THINK]Peru?[/THINK]Albania.",
    "<|channel|>analysis<|message|>Peru?<|end|><|start|>assistant<|channel|>final<|message|>Albania.",
    [{"type": "text", "text": "<think>Peru?</think>"}, {"type": "text", "text": "Albania."}],
    [{"type": "reasoning_text", "text": "Peru?"}, {"type": "thinking", "text": "Peru?"}, "Albania."],
])  # fmt: skip
def test_thoughts_of_earlier_answers_are_no_history(said: Any) -> None:
    messages = [{"role": "user", "content": "Whose capital is Tirana?"}, {"role": "assistant", "content": said},
                {"role": "user", "content": "Which currency has it?"}]  # fmt: skip
    body = CompletionBody.model_validate({"model": "agent", "messages": messages})
    ((asked, answered),) = body.exchanges(10)
    assert (asked, answered.strip()) == ("Whose capital is Tirana?", "Albania.")


def test_tools_that_a_client_offers_are_ignored_and_said_to_be() -> None:
    offered = [{"type": "function", "function": {"name": "get_current_timestamp", "parameters": {}}}]
    with chat(working()) as served:
        whole = completed(served, "Which currency?", tools=offered, tool_choice="auto", temperature=0.7, user="me")
        told = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Which currency?"}]
        body = {"model": "agent", "messages": told, "stream": True}
        with served.client.stream("POST", "/v1/chat/completions", json=body) as reply:
            first = next(parsed(reply.iter_lines()))
    assert whole["choices"][0]["message"]["content"] == "lek"
    assert whole["steprag"]["ignored"] == ["temperature", "tools"]
    assert first["steprag"]["ignored"] == ["system"]


def test_a_long_history_with_tool_calls_of_another_model_is_read_from_its_end() -> None:
    old = [{"role": role, "content": f"{role} {n}"} for n in range(150) for role in ("user", "assistant")]
    messages = [
        *old,
        {"role": "system", "content": "You are a pirate."},
        {"role": "user", "content": "What time is it?"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": {}}]},
        {"role": "tool", "tool_call_id": "1", "content": "noon"},
        {"role": "assistant", "content": "It is noon."},
        {"role": "user", "content": [{"type": "text", "text": "Which currency?"}]},
    ]
    seen: list[Any] = []
    rewriter = WritingPolicy(lambda prompt: seen.append(prompt) or "Which currency has Albania?")
    with chat(working(), rewriter=rewriter) as served:
        reply = served.client.post("/v1/chat/completions", json={"model": "agent", "messages": messages})
        (row,) = served.client.get("/api/conversations").json()["conversations"]
    assert row["title"] == "Which currency?"
    assert reply.json()["choices"][0]["message"]["content"] == "lek"
    assert reply.json()["usage"]["prompt_tokens"] == 50
    assert "It is noon." in seen[0][1]["content"]
    assert "pirate" not in seen[0][1]["content"]
    assert "assistant 149" in seen[0][1]["content"]


def test_a_citation_links_to_its_passage_with_the_evidence_marked() -> None:
    with chat(working()) as served:
        message = completed(served, "Which currency?")["choices"][0]["message"]
        links = [one["url_citation"]["url"] for one in message["annotations"]]
        assert all(link.startswith(f"{served.url}/sources/") for link in links)
        assert "/sources/Tirana/" in links[0]
        page = httpx2.get(links[0])  # no token: the link is its own
        assert page.status_code == 200
        assert "<mark>Tirana is the capital of Albania</mark>" in page.text
        assert "default-src 'none'" in page.headers["content-security-policy"]
        for forged in (links[0][:-1] + ("0" if links[0][-1] != "0" else "1"), links[0].partition("?")[0]):
            assert httpx2.get(forged).status_code == 401
        number = urlsplit(links[0]).path.rpartition("/")[2]
        assert httpx2.get(links[0].replace(f"/{number}?", "/2?")).status_code == 401
        conversation = served.client.get("/api/conversations").json()["conversations"][0]["id"]
        assert served.client.delete(f"/api/conversations/{conversation}").status_code == 204
        assert httpx2.get(links[0]).status_code == 404


@pytest.mark.parametrize("stream", [True, False])
def test_clients_that_show_no_annotations_can_have_links_in_the_answer(stream: bool) -> None:
    body = {"model": "agent-local+sources", "messages": [{"role": "user", "content": "Which?"}], "stream": stream}
    with chat(working()) as served:
        reply = served.client.post("/v1/chat/completions", json=body)
        assert "agent+sources" in [row["id"] for row in served.client.get("/v1/models").json()["data"]]
    if stream:
        told = [one["choices"][0]["delta"].get("content") for one in parsed(iter(reply.text.splitlines()[:-2]))]
        content = "".join(filter(None, told))
    else:
        content = reply.json()["choices"][0]["message"]["content"]
    assert content.startswith("lek\n\nSources:\n\n1. [Tirana](<http://127.0.0.1:")
    assert len(content.splitlines()) == 6


PREFIX = "/user/me/proxy/8300"


@pytest.mark.parametrize(("headers", "strips", "root"), [
    ({"X-Forwarded-Prefix": PREFIX}, True, PREFIX), ({"X-Forwarded-Prefix": f"{PREFIX}/"}, False, PREFIX),
    ({"X-Forwarded-Context": PREFIX}, True, PREFIX), ({"X-Forwarded-Prefix": "/outer, /inner"}, True, "/outer/inner"),
    ({"X-Forwarded-Prefix": "//evil.example"}, True, ""), ({"X-Forwarded-Prefix": "/a/../b"}, True, ""),
    ({"X-Forwarded-Prefix": '/a";x'}, True, ""), ({}, True, ""),
])  # fmt: skip
def test_a_proxy_may_offer_the_service_below_a_path(headers: dict[str, str], strips: bool, root: str) -> None:
    with chat(working()) as served:
        at = "" if strips else root
        asked = {"model": "agent", "messages": [{"role": "user", "content": "Which?"}]}
        reply = served.client.post(f"{at}/v1/chat/completions", json=asked, headers=headers)
        link = reply.json()["choices"][0]["message"]["annotations"][0]["url_citation"]["url"]
        assert link.startswith(f"{served.url}{root}/sources/")
        assert httpx2.get(f"{served.url}{at}{link.removeprefix(served.url + root)}", headers=headers).status_code == 200
        shell = httpx2.get(f"{served.url}{at}/", headers=headers).text
        named = re.findall(r'(?:href|src)="([^"]+)"', shell)
        assert not any(address.startswith("/") for address in named)
        assert {httpx2.get(f"{served.url}{at}/{one}", headers=headers).status_code for one in named} == {200}
        signed = httpx2.post(f"{served.url}{at}/api/session", json={"token": TOKEN}, headers=headers)
        assert signed.headers["set-cookie"].endswith(f"; Path={root or '/'}")
        assert httpx2.get(f"{served.url}{at}/v1/models", headers=headers).status_code == 401
        told = served.client.get(f"{at}/v1/chat/completions", headers=headers)
        assert (told.status_code, told.json()["error"]["code"]) == (405, "not_found")


def test_a_passage_that_attacks_stays_text_on_its_page_and_in_other_clients() -> None:
    attack = "<img src=x onerror=alert(1)> ![](https://evil.example/?q=1) {title} <script>alert(1)</script>"
    world = DictRetriever((Passage("1", attack, f"{attack} Tirana is the capital of Albania."),))
    work = (
        query("Tirana"),
        evidence("Tirana is the capital of Albania."),
        answer("![](https://evil.example/) or 1 < 2 <b>lek</b>"),
    )
    with chat(WritingPolicy(scripted(*work)), retriever=world) as served:
        message = completed(served, "What?")["choices"][0]["message"]
        page = httpx2.get(message["annotations"][0]["url_citation"]["url"]).text
    assert message["content"] == "! [](https://evil.example/) or 1 < 2 ‹b>lek‹/b>"
    assert message["annotations"][0]["url_citation"]["end_index"] == len(message["content"])
    for text in (message["reasoning"], message["content"]):
        assert "![" not in text
    assert "<" not in message["reasoning"]
    assert re.findall(r"<(?:img|script)[^>]*>", page) == ['<script src="../../../page/theme.js">']
    assert "{title}" in page


@pytest.mark.parametrize("size", [1, 2, 3, 7, 400])
def test_reasoning_is_the_text_without_tags_however_it_is_cut(size: int) -> None:
    text = "I need it. So the next query is <query> a<b ![x](http://e/) </query>"
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    events: list[Any] = [{"type": "step.delta", "text": piece} for piece in pieces]
    told = reasoning_of([*events, {"type": "step.finished"}])
    assert told == "I need it. So the next query is a‹b ! [x] (http://e/)"
    lone = Reasoning()
    written = "".join(lone.of({"type": "step.delta", "text": piece}) for piece in ("<pl", "an>1. Who", "?</plan>"))
    assert written + lone.of({"type": "step.finished"}) == "plan: 1. Who?\n\n"
    assert inert("[a](b)") == "[a] (b)"
