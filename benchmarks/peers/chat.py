"""Chat turns, 16 at a time: seconds to the first event, turns a second, the server's processor time.

64 questions of the fixed world of `scripted.py`, whose engine writes a call's words evenly over 100 ms, streamed; each
turn is one agent that searches until it answers, in Search-R1's tags. LangGraph: its development server, the agent as a
graph of two nodes, runs without a thread. `engine` is a bound and no peer: the client asks the engine itself, and the
processor time is the client's. Equal: the answers. LangGraph queues each run for one of its 16 workers.
"""

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
from urllib.request import Request, urlopen

from benchmarks.peers.pairing import OURS, Peer, Told, measured, serving, size
from benchmarks.peers.scripted import PROMPT, endpoint, question, searched

PEERS = {"engine": Peer(), "langgraph": Peer("langgraph-cli[inmem]==0.4.40 langchain-openai")}
BOUND, COUNT, TOKEN = "engine", size(64, 16), "a-token-of-the-benchmark"
GRAPH = """
import os
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from scripted import searched

model = ChatOpenAI(model="double", base_url=os.environ["URL"], api_key="none", temperature=0, streaming=True)

async def agent(state: MessagesState):
    return {"messages": [await model.ainvoke(state["messages"])]}

async def search(state: MessagesState):
    return {"messages": [("user", searched(state["messages"][-1].content))]}

graph = StateGraph(MessagesState).add_node(agent).add_node(search).add_edge(START, "agent").add_edge("search", "agent")
graph.add_conditional_edges("agent", lambda state: "search" if "</search>" in state["messages"][-1].content else END)
graph = graph.compile()
"""


def prepare(work: Path) -> None:
    (work / "graph.py").write_text(GRAPH)
    (work / "graph.json").write_text('{"dependencies": ["."], "graphs": {"agent": "./graph.py:graph"}}')
    shutil.copy(Path(__file__).with_name("scripted.py"), work)


def lines(url: str, body: Any = None) -> Iterator[str]:
    """The lines of an answer, as they come; of events those with data."""
    head = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
    with urlopen(Request(url, json.dumps(body).encode() if body else None, head), timeout=120) as reply:
        yield from (line.decode() for line in reply if line[:1] in b"d{")


def played(turn: Callable[[str], Iterator[str]], pid: int | None) -> Told:
    """64 turns by 16 clients; the last town that a turn names is its answer."""

    def one(number: int) -> tuple[float, str]:
        start, told = perf_counter(), turn(question(number))
        text, first = next(told), perf_counter() - start
        return 1000 * first, re.findall(r"(?:Town|Elsewhere)\d+", "".join([text, *told]))[-1]

    for number in range(COUNT, COUNT + 4):  # what a server does once
        one(number)
    with measured(pid) as run, ThreadPoolExecutor(16) as pool:
        firsts, answers = zip(*pool.map(one, range(COUNT)), strict=True)
    figures = {"turns a second": COUNT / run["wall"], "first event, ms": statistics.median(firsts),
               "95 % within, ms": sorted(firsts)[int(0.95 * COUNT) - 1]}  # fmt: skip
    return {**run, "figures": figures, "same": {"answers": answers}}


def ours(work: Path) -> Told:
    shutil.rmtree("chat", ignore_errors=True)
    with endpoint(0.1, 0.1) as world:
        line = (f"{OURS} serve --index {world} --out chat --base_url {world}/v1 --model double --policy.engine openai"
                " --policy.concurrency 16 --port PORT --prompt.profile search-r1")  # fmt: skip
        with serving(line, "/healthz", STEPRAG_TOKEN=TOKEN) as (url, pid):

            def turn(asked: str) -> Iterator[str]:
                (begun,) = lines(f"{url}/api/turns", {"question": asked, "mode": "local"})
                yield from lines(f"{url}/api/turns/{json.loads(begun)['turn']}/events")

            return played(turn, pid)


def langgraph(work: Path) -> Told:
    line = f"{sys.prefix}/bin/langgraph dev --no-browser --no-reload --config graph.json --port PORT"
    quiet = {"LANGSMITH_TRACING": "false", "LANGGRAPH_CLI_NO_ANALYTICS": "1"}
    with (
        endpoint(0.1, 0.1) as world,
        serving(f"{line} --n-jobs-per-worker 16", "/ok", **quiet, URL=f"{world}/v1") as (url, pid),
    ):

        def turn(asked: str) -> Iterator[str]:
            given = {"messages": [{"role": "user", "content": PROMPT + asked}]}
            body = {"assistant_id": "agent", "input": given, "stream_mode": ["messages-tuple", "updates"]}
            yield from lines(f"{url}/runs/stream", body)

        return played(turn, pid)


def engine(work: Path) -> Told:
    with endpoint(0.1, 0.1) as url:

        def turn(asked: str) -> Iterator[str]:
            talk, next_one = [], PROMPT + asked
            while next_one:
                talk, said = [*talk, {"role": "user", "content": next_one}], ""
                for line in lines(f"{url}/v1/chat/completions", {"messages": talk, "stream": True, "temperature": 0}):
                    said += "".join(re.findall(r'"content": "(.*?)"', line))
                    yield line
                talk, next_one = [*talk, {"role": "assistant", "content": said}], searched(said)

        return played(turn, None)
