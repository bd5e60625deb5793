"""The agent as an MCP server, asked by the official client: over HTTP from fakes, by stdio as a client starts it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from apps import commands
from apps.mcp.service import doors
from steprag.records.jsonl import write_records
from tests.chat_parts import BEARER, WORK, Served, WritingPolicy, chat, scripted, working
from tests.fakes import WORLD, DictRetriever, answer, by_turn, chat_reply, descendants, evidence, query, serve, wait_for


async def over_http(served: Served, work: Callable[[Client], Awaitable[Any]], **headers: str) -> Any:
    async with httpx2.AsyncClient(headers=headers or BEARER, timeout=30) as http:
        async with Client(streamable_http_client(f"{served.url}/mcp", http_client=http)) as client:
            return await work(client)


def test_the_three_tools_over_http() -> None:
    told: list[tuple[float, str | None]] = []

    async def heard(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, message))

    async def work(client: Client) -> list[Any]:
        names = [tool.name for tool in (await client.list_tools()).tools]
        asked = await client.call_tool("ask", {"question": "Which currency?"}, progress_callback=heard)
        found = await client.call_tool("search", {"query": "Tirana", "top_k": 1})
        whole = await client.call_tool("fetch", {"id": (found.structured_content or {})["results"][0]["id"]})
        return [names, asked, found.structured_content, whole.structured_content]

    with chat(working(), doors=doors) as served:
        names, asked, found, whole = asyncio.run(over_http(served, work))
    assert names == ["ask", "search", "fetch"]
    said = asked.structured_content
    assert [one["action"] for one in said["steps"]] == ["query", "evidence", "query", "evidence", "answer"]
    assert said["steps"][1]["content"] == "Tirana is the capital of Albania."
    assert (said["answer"], said["finish"]) == ("lek", "answer")
    assert [one["cited"] for one in said["sources"]].count(True) == asked.content[0].text.count("\n") - 2
    assert [place for place, _ in told] == [1, 2, 3, 4, 5, 6, 7]  # each step, and what each search found
    assert told[0][1] == "query: Tirana"
    assert str(told[1][1]).startswith("found: [1] ")
    (row,) = found["results"]
    assert whole == {**row, "text": whole["text"], "metadata": {"index": "world"}}


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("fetch", {"id": "7"}, "no search has found '7' lately"),
        ("search", {"query": "Tirana"}, "the index is gone"),
        ("search", {"query": "x" * 30}, "30 characters; at most 20"),
        ("ask", {"question": "  "}, "at least 1 character"),
        ("ask", {"question": "x" * 30}, "30 characters; at most 20"),
        ("ask", {"question": "Which?", "mode": "web"}, "is not one of"),
        ("ask", {"question": "Which currency?"}, "the index is gone"),
    ],
)
def test_what_cannot_be_done_is_told_to_the_model(tool: str, arguments: dict[str, Any], said: str) -> None:
    with chat(working(), doors=doors, retriever=DictRetriever(lasts=0), question_chars=20) as served:
        reply = asyncio.run(over_http(served, lambda client: client.call_tool(tool, arguments)))
    assert reply.is_error
    assert said in reply.content[0].text


def test_an_answer_that_nothing_supports_says_so() -> None:
    policy = WritingPolicy(scripted(*WORK[:-1], answer("Oslo")))
    with chat(policy, doors=doors) as served:
        reply = asyncio.run(over_http(served, lambda client: client.call_tool("ask", {"question": "Which?"})))
    assert reply.content[0].text == "Not found in these documents. A guess: Oslo"  # which rests on no source


def test_a_client_that_leaves_ends_its_turn() -> None:
    policy = working(hold=True)

    async def work(client: Client) -> None:
        asking = asyncio.create_task(client.call_tool("ask", {"question": "Which currency?"}))
        await asyncio.to_thread(wait_for, lambda: policy.begun)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await asyncio.to_thread(wait_for, lambda: policy.cancelled)

    with chat(policy, doors=doors) as served:
        asyncio.run(over_http(served, work))


def rpc(method: str, params: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params, **more}


@pytest.mark.parametrize(("id", "named", "agents", "status"), [
    (3, 3, ("a", "a"), 202), ("x-3", "x-3", ("a", "a"), 202), (3, "3", ("a", "a"), None), (3, 4, ("a", "a"), None),
    (3, 3, ("a", "b"), None), (3, [3], ("a", "a"), None),
])  # fmt: skip
def test_a_cancelled_notification_ends_the_turn_that_it_names_and_no_other(
    id: Any, named: Any, agents: tuple[str, str], status: int | None
) -> None:
    policy = working(hold=True)
    kind = {**BEARER, "Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-06-18"}
    call = rpc("tools/call", {"name": "ask", "arguments": {"question": "Which currency?"}}, id=id)
    with chat(policy, doors=doors) as served, ThreadPoolExecutor(1) as thread:
        at = f"{served.url}/mcp"
        asked = thread.submit(httpx2.post, at, json=call, headers={**kind, "User-Agent": agents[0]}, timeout=30)
        wait_for(lambda: policy.begun)
        note = rpc("notifications/cancelled", {"requestId": named})
        told = httpx2.post(at, json=note, headers={**kind, "User-Agent": agents[1]})
        if status is None:
            assert not policy.cancelled
            policy.go.set()
        else:
            assert told.status_code == status
            wait_for(lambda: policy.cancelled)
        assert ("the turn was cancelled" in asked.result().text) == (status == 202)
    assert len(policy.begun) == (1 if status else 5)


def test_an_id_that_two_clients_ask_with_cancels_neither() -> None:
    policy = working(hold=True)
    kind = {**BEARER, "Accept": "application/json, text/event-stream"}
    call = rpc("tools/call", {"name": "ask", "arguments": {"question": "Which currency?"}}, id=3)
    with chat(policy, doors=doors) as served, ThreadPoolExecutor(2) as threads:
        at = f"{served.url}/mcp"
        asked = [threads.submit(httpx2.post, at, json=call, headers=kind, timeout=30) for _ in range(2)]
        wait_for(lambda: len(policy.begun) == 2)
        note = rpc("notifications/cancelled", {"requestId": 3})
        assert httpx2.post(at, json=note, headers=kind).status_code == 409
        policy.go.set()
        assert not any("cancelled" in one.result().text for one in asked)


@pytest.mark.parametrize(
    ("headers", "status"),
    [({}, 401), ({"Authorization": "Bearer other"}, 401), ({**BEARER, "Origin": "http://evil.example"}, 403),
     ({**BEARER, "Host": "evil.example"}, 403)],
)  # fmt: skip
def test_strangers_reach_no_tool(headers: dict[str, str], status: int) -> None:
    with chat(working(), doors=doors) as served:
        assert httpx2.post(f"{served.url}/mcp", json={}, headers=headers).status_code == status


@pytest.mark.parametrize(
    ("typed", "given"),
    [
        ("serve --mcp", []),
        ("serve --index i --mcp", ["--index", "i"]),
        ("serve --mcp http --index i", ["http", "--index", "i"]),
        ("serve --index i --mcp=http", ["--index", "i", "http"]),
    ],
)
def test_the_flag_may_stand_anywhere(typed: str, given: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr("apps.mcp.command.main", lambda argv: seen.append(argv) or 0)
    assert commands.run(typed.split()) == 0
    assert seen == [given]


@pytest.mark.slow
def test_a_client_starts_it_by_stdio(tmp_path: Path) -> None:
    write_records(tmp_path / "corpus.jsonl", [{"id": p.id, "title": p.title, "text": p.text} for p in WORLD])
    index, script = tmp_path / "index", by_turn(query("Tirana"), evidence("Prices are in lek."), answer("lek"))
    assert commands.run(f"index build --corpus {tmp_path / 'corpus.jsonl'} --encoder none --out {index}".split()) == 0
    arguments = ["--index", str(index), "--model", "m", "--policy.engine", "openai"]

    async def work() -> Any:
        command = ["-m", "apps.commands", "serve", *arguments, "--base_url", endpoint.url, "--mcp"]
        parts = StdioServerParameters(
            command=sys.executable, args=command, cwd=tmp_path, env={"PYTHONPATH": str(Path(__file__).parents[1])}
        )
        before = {*descendants(os.getpid())}  # of tests before this one
        async with Client(stdio_client(parts)) as client:
            asked = await client.call_tool("ask", {"question": "Which currency is used in Albania?"})
            (process,) = {*descendants(os.getpid())} - before
            os.kill(process, signal.SIGTERM)  # its input stays open
            await asyncio.to_thread(wait_for, lambda: process not in descendants(os.getpid()), 20)
            return asked

    with serve(chat_reply(script)) as endpoint:
        reply = asyncio.run(work())
    assert reply.structured_content["answer"] == "lek"
    assert not any(tmp_path.glob("runs"))  # nothing is kept where no folder is named
