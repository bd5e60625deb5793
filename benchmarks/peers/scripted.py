"""A fixed world behind an OpenAI endpoint and Search-R1's `/retrieve`: who made gadget N lives in Town N, two facts.

The policy writes each method's own tags. Its next search is right six times of ten, its answer as far as the facts
stand in the prompt; at temperature 0 it says the same whenever a question has had as many searches. It takes from the
shortest to the longest seconds a call, drawn alike. Our Python serves it; all import from it.
"""

import asyncio
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

DIALECTS = {"<subquery>": ("<subquery> {} </subquery>", "<answer> {} </answer>"),
            "<search>": ("<think> Hm. </think> <search> {} </search>", "<think> Ah. </think> <answer> {} </answer>"),
            "": ("So the next query is <query> {} </query>", "So the answer is <answer> {} </answer>")}  # fmt: skip
"""A search and an answer, by the tag that the prompt explains."""
PROMPT = "Search with <search> query </search>, answer with <answer> town </answer>. Question: "
SEARCH = re.compile("</(?:search|query|subquery)>")


def question(number: int) -> str:
    return f"In which town lives the maker of gadget {number}?"


def write_questions(file: Path, count: int) -> None:
    rows = ({"id": f"q{i}", "question": question(i), "golden_answers": [f"Town{i}"]} for i in range(count))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def right(text: str) -> bool:
    """Whether a step is one of the way to the answer; nothing that the policy writes is right by half."""
    return not re.search("colour|nothing|Elsewhere", text)


def found(query: str) -> list[dict[str, Any]]:
    """What stands in the world about a query: its fact first, then two passages of no use."""
    number = (re.findall(r"\d+", query) or ["0"])[-1]
    fact = {"maker": f"Gadget {number} was made by Maker{number}.", "home": f"Maker{number} lives in Town{number}."}
    texts = [fact.get(query.strip().split()[0], f"Gadget {number} is red."), "Some gadgets are green.", "Gadgets rust."]
    return [{"document": {"id": f"{query} {place}", "title": query, "text": text, "contents": f"{query}\n{text}"},
             "score": 1 / (place + 1)} for place, text in enumerate(texts)]  # fmt: skip


def passages(query: str) -> str:
    return "\n".join(each["document"]["contents"] for each in found(query))


def searched(said: str) -> str:
    """What the search of a completion finds, as the next message; empty where it is none."""
    asked = re.findall("<search>(.*?)</search>", said)
    return passages(asked[-1]) if asked else ""


def said(prompt: str, draw: random.Random) -> str:
    """One completion."""
    number = re.findall(r"maker of gadget (\d+)\?", prompt)[-1]
    tail = prompt[prompt.rfind(question(int(number))) :]
    facts = (f"was made by Maker{number}" in tail) + (f"lives in Town{number}" in tail)
    searches, chance, shade = len(SEARCH.findall(tail)), draw.random(), draw.randrange(40)
    if "So the score is" in prompt:
        return f"So the score is {draw.randrange(50, 100) if right(tail) else draw.randrange(60)}"
    if "Read the passages." in tail[-40:] or "<reference>" in tail:
        there = re.findall(r"\w+ ?\d* (?:was made by|lives in) \w+", tail[-600:])
        kept = there[-1] if there and chance < 0.8 else f"nothing {shade}" if there else f"rust, {shade}"
        return f"Based on the query, the relevant evidence is <evidence> {kept} </evidence>"
    search, answer = next(words for tag, words in DIALECTS.items() if tag in prompt)
    forced = "final answer for the given" in prompt or "Answer now." in tail[-40:]
    if searches >= 4 or forced or chance < (0.1, 0.15, 0.85)[facts]:
        town = f"Town{number}" if draw.random() < (0.05, 0.1, 0.9)[facts] else f"Elsewhere{shade}"
        return answer.format(town)
    wanted = (f"maker of gadget {number}", f"home of Maker{number}", f"colour {shade} of gadget {number}")
    return search.format(wanted[min(facts, 2) if draw.random() < 0.6 else 2])


class World:
    """The server: what it was asked, and when."""

    def __init__(self, shortest: float, longest: float, hold: float) -> None:
        self.hold, self.thaw = hold, asyncio.Event()
        self.between, self.log = (shortest, longest), []  # completions, begun, seconds
        self.sent, self.arrived, self.again, self.repeated = set[str](), set[str](), 0, 0

    def told(self) -> dict[str, float]:
        """`again`: calls of prompts sent before; `repeated`: of those with an answer; `slots`: under way on average."""
        calls = self.log
        whole = max(begun + wait for _, begun, wait in calls) - calls[0][1] if calls else 1.0
        return {"calls": len(calls), "completions": sum(count for count, *_ in calls), "again": self.again,
                "repeated": self.repeated, "slots": sum(wait for *_, wait in calls) / whole}  # fmt: skip

    async def answer(self, path: str, asked: dict[str, Any], gone: Callable[[], bool]) -> Any:
        if path == "/thaw":
            self.thaw.set()
        if path in ("/told", "/thaw"):
            return self.told()
        if path.startswith("/retrieve"):
            return {"result": [found(query)[: asked.get("topk", 3)] for query in asked["queries"]]}
        if "completions" not in path:
            return {"data": [{"id": "double", "object": "model"}], "fingerprint": "world", "mode": "dense"}
        prompt = asked.get("prompt") or "\n".join(str(message["content"]) for message in asked["messages"])
        still = f"{re.findall(r'maker of gadget (.+)[?]', prompt)[-1:]} {len(SEARCH.findall(prompt))}"
        count, place, warm = asked.get("n") or 1, len(self.log), asked.get("temperature")
        self.log.append((count, time.perf_counter(), random.Random(still).uniform(*self.between)))
        self.again, self.repeated = self.again + (prompt in self.sent), self.repeated + (prompt in self.arrived)
        self.sent.add(prompt)
        await asyncio.sleep(0 if asked.get("stream") else self.log[place][-1])
        if place >= self.hold:
            await self.thaw.wait()
        if not gone():
            self.arrived.add(prompt)
        texts = [said(prompt, random.Random(f"{still} {each} {place if warm else ''}")) for each in range(count)]
        choices = [{"index": each, "finish_reason": "stop", "text": text, "message": {"role": "assistant",
                    "content": text}} for each, text in enumerate(texts)]  # fmt: skip
        usage = {"prompt_tokens": 400, "completion_tokens": 40 * count, "total_tokens": 400 + 40 * count}
        kind = "chat.completion" if "chat" in path else "text_completion"
        return {"id": "x", "object": kind, "created": 0, "model": "double", "choices": choices, "usage": usage}

    async def handle(self, request: Any) -> Any:
        asked = await request.json() if request.can_read_body else {}
        reply = await self.answer(request.path, asked, lambda: request.transport is None)
        if not asked.get("stream"):
            return web.json_response(reply)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        words = re.findall(r" ?\S+", reply["choices"][0]["text"])
        parts = [{"delta": {"content": word}, "finish_reason": None} for word in words]
        for part in [*parts, {"delta": {}, "finish_reason": "stop"}]:  # evenly over the longest call
            await asyncio.sleep(self.between[1] / (len(parts) + 1))
            chunk = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "double"}
            chunk["choices"] = [{"index": 0, **part}]
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    async def serve(self) -> None:
        """Until who started it is gone."""
        await (runner := web.ServerRunner(web.Server(self.handle))).setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
        sys.stdout.write(f"{runner.addresses[0][1]}\n")
        sys.stdout.flush()
        while os.path.exists(f"/proc/{sys.argv[1]}"):  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.5)


@contextmanager
def endpoint(shortest: float, longest: float, hold: float = 1e9) -> Iterator[str]:
    """Its address. Not a child of this process, so that its work is not counted as this one's. After `hold` calls it
    lets all wait until `/thaw` is asked.
    """
    line = f"exec {os.environ['PEERS_PYTHON']} {__file__} {os.getpid()} {shortest} {longest} {hold} &"
    with subprocess.Popen(["sh", "-c", line], stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout
        yield f"http://127.0.0.1:{shell.stdout.readline().strip()}"


def told(url: str, ask: str = "told") -> dict[str, float]:
    with urlopen(f"{url}/{ask}") as reply:
        return json.load(reply)


if __name__ == "__main__":
    from aiohttp import web

    asyncio.run(World(*map(float, sys.argv[2:])).serve())
