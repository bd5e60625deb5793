"""Chat turns, 16 at a time: seconds to the first event, turns a second, the server's processor time.

64 questions of the fixed world of `scripted.py`, whose engine writes a call's words evenly over 100 ms, streamed; each
turn is one agent that searches until it answers, in Search-R1's tags. LangGraph: its development server, the agent as a
graph of two nodes, runs without a thread. `engine` is a bound and no peer: the same turns without any service, the
client asks the engine itself, and its processor time is the client's. Equal: the answers. LangGraph
queues each run for one of its 16 workers; where the rest of its time goes was not looked at.
"""

import http.client
import json
import re
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.peers.pairing import Peer, Told, measured, serving, size
from benchmarks.peers.scripted import PROMPT, endpoint, found, free, question

PEERS = {"engine": Peer(), "langgraph": Peer("langgraph-cli[inmem]==0.4.40 langchain-openai")}
UNIT, BOUND, COUNT, TOKEN = "turns", "engine", size(64, 16), "a-token-of-the-benchmark"
GRAPH = """
import os, re
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from scripted import found

model = ChatOpenAI(model="double", base_url=os.environ["URL"], api_key="none", temperature=0, streaming=True)

async def agent(state: MessagesState):
    return {"messages": [await model.ainvoke(state["messages"])]}

async def search(state: MessagesState):
    query = re.findall("<search> (.*?) </search>", state["messages"][-1].content)[-1]
    return {"messages": [("user", "\\n".join(each["document"]["contents"] for each in found(query)))]}

graph = StateGraph(MessagesState)
graph.add_node(agent)
graph.add_node(search)
graph.add_edge(START, "agent")
graph.add_edge("search", "agent")
graph.add_conditional_edges("agent", lambda state: "search" if "</search>" in state["messages"][-1].content else END)
graph = graph.compile()
"""


def prepare(work: Path) -> None:
    (work / "graph.py").write_text(GRAPH)
    (work / "graph.json").write_text('{"dependencies": ["."], "graphs": {"agent": "./graph.py:graph"}}')
    shutil.copy(Path(__file__).with_name("scripted.py"), work)


def lines(url: str, method: str, path: str, body: Any = None) -> Iterator[str]:
    """The lines of an answer, as they come."""
    to = http.client.HTTPConnection(url.partition("://")[2], timeout=120)
    to.request(method, path, json.dumps(body), {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"})
    reply = to.getresponse()
    assert reply.status < 300, f"{reply.status} {reply.read(300)!r}"
    yield from map(bytes.decode, iter(reply.readline, b""))
    to.close()


def played(turn: Callable[[str], Iterator[str]], pid: int | None) -> Told:
    """64 turns by 16 clients; the last town that a turn names is its answer."""
    firsts: list[float] = []

    def one(number: int) -> str:
        start, town = perf_counter(), ""
        for place, line in enumerate(turn(question(number))):
            if not place:
                firsts.append(1000 * (perf_counter() - start))
            town = ([town, *re.findall(r"(?:Town|Elsewhere)\d+", line)])[-1]
        return town

    for number in range(COUNT, COUNT + 4):  # what a server does once
        one(number)
    firsts.clear()
    with measured(pid) as run, ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(one, range(COUNT)))
    figures = {"turns a second": COUNT / run["wall"], "first event, ms": statistics.median(firsts),
               "95 % within, ms": sorted(firsts)[int(0.95 * COUNT) - 1]}  # fmt: skip
    return {**run, "units": COUNT, "figures": figures, "answers": answers}


def ours(work: Path) -> Told:
    url = f"http://127.0.0.1:{(port := free())}"
    with endpoint(0.1, 0.1) as world:
        command = [sys.executable, "-m", "steprag.cli", "serve", "--index", world, "--out", str(work / f"chat-{port}"),
                   "--base_url", f"{world}/v1", "--model", "double", "--policy.engine", "openai",
                   "--policy.concurrency", "16", "--port", str(port), "--prompt.profile", "search-r1"]  # fmt: skip

        def turn(asked: str) -> Iterator[str]:
            begun = json.loads("".join(lines(url, "POST", "/api/turns", {"question": asked, "mode": "local"})))
            yield from (line for line in lines(url, "GET", f"/api/turns/{begun['turn']}/events") if line[:4] == "data")

        with serving(command, f"{url}/healthz", STEPRAG_TOKEN=TOKEN) as server:
            return played(turn, server.pid)


def langgraph(work: Path) -> Told:
    url = f"http://127.0.0.1:{(port := free())}"
    command = [f"{sys.prefix}/bin/langgraph", "dev", "--no-browser", "--no-reload", "--config", "graph.json", "--port",
               str(port), "--n-jobs-per-worker", "16"]  # fmt: skip

    def turn(asked: str) -> Iterator[str]:
        given = {"messages": [{"role": "user", "content": PROMPT + asked}]}
        body = {"assistant_id": "agent", "input": given, "stream_mode": ["messages-tuple", "updates"]}
        yield from (line for line in lines(url, "POST", "/runs/stream", body) if line[:4] == "data")

    quiet = {"LANGSMITH_TRACING": "false", "LANGGRAPH_CLI_NO_ANALYTICS": "1"}
    with endpoint(0.1, 0.1) as world, serving(command, f"{url}/ok", **quiet, URL=f"{world}/v1") as it:
        return played(turn, it.pid)


def engine(work: Path) -> Told:
    with endpoint(0.1, 0.1) as url:

        def turn(asked: str) -> Iterator[str]:
            talk = [{"role": "user", "content": PROMPT + asked}]
            while talk:
                said = []
                body = {"messages": talk, "stream": True, "temperature": 0}
                for line in lines(url, "POST", "/v1/chat/completions", body):
                    said += re.findall(r'"content": "(.*?)"', line)
                    yield line
                query = re.findall("<search> (.*?) </search>", "".join(said))
                talk = [*talk, {"role": "assistant", "content": "".join(said)}] if query else []
                if query:
                    passages = "\n".join(each["document"]["contents"] for each in found(query[-1]))
                    talk.append({"role": "user", "content": passages})

        return played(turn, None)


def equal(ours: Told, theirs: Told) -> str:
    unlike = sum(a != b for a, b in zip(ours["answers"], theirs["answers"], strict=True))
    assert not unlike, f"{unlike} of {COUNT} answers"
    return f"{COUNT} answers"
