"""Clients of others: what Open WebUI 0.12 sends (its requests, recorded), what curl leaves behind, what links open."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from inference.chat.http.openai_api import Reasoning, inert, reasoning_of
from steprag.types import Passage
from tests.chat_parts import Served, WritingPolicy, chat, parsed, scripted
from tests.fakes import DictRetriever, answer, evidence, query
from tests.test_chat import working

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


def test_titles_tags_and_follow_ups_cost_no_turn_and_no_call() -> None:
    with chat(working()) as served:
        whole = completed(served, TITLE, stream=False, max_tokens=1000, tools=[])
        body = {"model": "agent", "messages": [{"role": "user", "content": TITLE}], "stream": True}
        with served.client.stream("POST", "/v1/chat/completions", json=body) as reply:
            lines = [line for line in reply.iter_lines() if line]
        assert served.client.get("/api/conversations").json()["conversations"] == []
    assert whole["choices"][0]["message"]["content"] == "{}"
    assert '"content":"{}"' in lines[0]
    assert lines[-1] == "data: [DONE]"
    assert served.policy.asked == 0


def test_documents_before_a_question_leave_the_question() -> None:
    with chat(working()) as served:
        assert completed(served, DOCUMENTS)["choices"][0]["message"]["content"] == "lek"
        rows = served.client.get("/api/conversations").json()["conversations"]
    assert [row["title"] for row in rows] == ["Which currency?"]


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
        {"role": "user", "content": "What time is it?"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": {}}]},
        {"role": "tool", "tool_call_id": "1", "content": "noon"},
        {"role": "assistant", "content": "It is noon."},
        {"role": "user", "content": "Which currency?"},
    ]
    seen: list[Any] = []
    rewriter = WritingPolicy(lambda prompt: seen.append(prompt) or "Which currency has Albania?")
    with chat(working(), rewriter=rewriter) as served:
        reply = served.client.post("/v1/chat/completions", json={"model": "agent", "messages": messages})
    assert reply.json()["choices"][0]["message"]["content"] == "lek"
    assert reply.json()["usage"]["prompt_tokens"] == 50
    assert "It is noon." in seen[0][1]["content"]
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
    assert re.findall(r"<(?:img|script)[^>]*>", page) == ['<script src="/page/theme.js">']
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
