"""A chat service over fakes, on a real socket: its agent, its server in a thread, a client that reads its streams; an
HTTP double that streams chat completions as engines do.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import uvicorn

from apps.chat.config import ChatServiceConfig
from apps.chat.http.routes import FREE, create_chat_app
from apps.chat.http.service import ChatService
from apps.chat.memory import Rewriter
from apps.chat.serve import modes_of
from apps.chat.turns.desk import Desk
from apps.chat.turns.events import ENDS
from apps.chat.turns.files import ConversationFiles
from apps.chat.turns.player import ChatAgent
from apps.chat.turns.store import TurnStore
from steprag.agent.open import make_environment
from steprag.agent.profiles import load_profile
from steprag.agent.reader import Reader
from steprag.batch.database import IN_MEMORY
from steprag.batch.journal import JOURNAL, Journal
from steprag.config.sections import EpisodeConfig, PolicyConfig
from steprag.net.hosts import listen, url_of
from steprag.policy.gate import Gate
from steprag.policy.open import Model
from steprag.policy.protocols import Listener
from steprag.types import Completion, Message, Sample, Usage
from steprag.web.app import FREE as PAGE_FREE
from steprag.web.guard import Access
from tests.fakes import DictRetriever, Endpoint, Replying, answer, evidence, listening, query

TOKEN = "a-token"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@dataclass
class WritingPolicy:
    """Writes a script's completions word by word. `hold`: stops before a completion's last word until `go` is set."""

    script: Callable[[tuple[Message, ...]], str]
    hold: bool = False
    go: threading.Event = field(default_factory=threading.Event)
    prompts: list[tuple[Message, ...]] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    asked: int = 0

    async def sample(self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, n: int, seed: int) -> Sample:
        self.asked += 1
        return Sample((Completion(self.script(messages), "stop"),) * n, Usage(1, 10, 5))

    async def stream(
        self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, seed: int, listener: Listener
    ) -> Sample:
        self.asked += 1
        self.prompts.append(messages)
        text = self.script(messages)
        words = text.split(" ")
        self.begun.append(text)
        try:
            for place, word in enumerate(words):
                while self.hold and place == len(words) - 1 and not self.go.is_set():
                    await asyncio.sleep(0.005)
                await asyncio.sleep(0)
                listener(f" {word}" if place else word)
        except asyncio.CancelledError:
            self.cancelled.append(text)
            raise
        return Sample((Completion(text, "stop"),), Usage(1, 10, 5))


def scripted(*texts: str) -> Callable[[tuple[Message, ...]], str]:
    """Completions in this order, then the last one again."""
    rest = list(texts)
    return lambda messages: rest.pop(0) if len(rest) > 1 else rest[0]


WORK = (query("Tirana"), evidence("Tirana is the capital of Albania."), query("Albania"),
        evidence("Prices in Albania are quoted in the lek."), answer("lek"))  # fmt: skip


def working(**more: Any) -> WritingPolicy:
    """A policy that plays `WORK`."""
    return WritingPolicy(scripted(*WORK), **more)


@dataclass
class Served:
    """A running service. `retriever` and `policy` are its fakes, `desk` its queue."""

    url: str
    client: httpx2.Client
    policy: Any
    retriever: DictRetriever
    desk: Desk

    def ask(self, question: str = "Which currency?", **more: Any) -> str:
        """The id of a new turn."""
        reply = self.client.post("/api/turns", json={"question": question, **more})
        assert reply.status_code == 201, reply.text
        return reply.json()["turn"]

    def events(self, turn: str, after: str | None = None, most: int | None = None) -> list[dict[str, Any]]:
        """The turn's events until its end, or the first `most`; each with its `id`."""
        headers = {"Last-Event-ID": after} if after else {}
        told: list[dict[str, Any]] = []
        with self.client.stream("GET", f"/api/turns/{turn}/events", headers=headers) as reply:
            assert reply.status_code == 200, reply.read()
            for event in parsed(reply.iter_lines()):
                told.append(event)
                if len(told) == most:
                    break
        return told

    def whole(self, question: str = "Which currency?", **more: Any) -> list[dict[str, Any]]:
        """All events of a new turn."""
        told = self.events(self.ask(question, **more))
        assert told[-1]["type"] in ENDS
        return told


def parsed(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The events of an event stream."""
    event: dict[str, Any] = {}
    for line in lines:
        if line.startswith("data: "):
            event |= json.loads(line.removeprefix("data: "))
        elif line.startswith("id: "):
            event["id"] = line.removeprefix("id: ")
        elif not line and event:
            yield event
            event = {}


@contextmanager
def in_a_thread(opened: Callable[[], AbstractAsyncContextManager[Any]], listening: socket.socket) -> Iterator[str]:
    """The address of the app that `opened` gives, served until the end by a loop in a thread."""
    ready, servers = threading.Event(), list[uvicorn.Server]()

    async def run() -> None:
        async with opened() as app:
            server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
            server.install_signal_handlers = lambda: None  # type: ignore[method-assign]
            servers.append(server)
            serving = asyncio.create_task(server.serve(sockets=[listening]))
            while not server.started:
                await asyncio.sleep(0.005)
            ready.set()
            await serving

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield url_of(listening)
    finally:
        servers[0].should_exit = True
        thread.join(15)
        listening.close()


@contextmanager
def chat(
    policy: Any, folder: Path | None = None, *, at_once: int = 2, rewriter: Any = None, choose: bool = False,
    retriever: Any = None, port: int = 0, profile: str = "transcript", doors: Any = None, reads: bool = False,
    **limits: Any,
) -> Iterator[Served]:  # fmt: skip
    """The service on `port`, or on a free one; its loop runs in a thread. `reads`: the reader answers from files."""
    retriever, desks = retriever or DictRetriever(), list[Desk]()
    environment = make_environment(load_profile(profile), retriever, EpisodeConfig())
    config = ChatServiceConfig(**limits)
    listening = listen("127.0.0.1", port)

    @asynccontextmanager
    async def opened() -> AsyncIterator[Any]:
        gate = Gate(PolicyConfig(concurrency=at_once))
        async with Journal(folder / JOURNAL if folder else IN_MEMORY) as journal:
            store = TurnStore(folder)
            second = Rewriter(Model(rewriter, gate), choose) if rewriter else None
            files = ConversationFiles(folder, config) if config.files else None
            reader = Model(Reader(environment.profile.grammar, retriever), gate) if reads else None
            agent = ChatAgent(modes_of(environment), Model(policy, gate), second, journal, store, config.history, 0,
                              files=files, reader=reader)  # fmt: skip
            desks.append(desk := Desk(agent, config, at_once))
            access = Access(TOKEN, True, (*PAGE_FREE, *FREE), config.body_bytes, "steprag")
            service = ChatService(
                desk, access, config, "double", "world", next(iter(agent.modes)), "test", config.examples
            )
            app = create_chat_app(service)
            async with doors(app, service) if doors else nullcontext():
                yield app
            await desk.close()
            store.close()

    with in_a_thread(opened, listening) as url, httpx2.Client(base_url=url, headers=BEARER, timeout=30) as client:
        yield Served(url, client, policy, retriever, desks[0])


@contextmanager
def streaming_endpoint(chunks: Callable[[dict[str, Any]], Iterable[Any]]) -> Iterator[Endpoint]:
    """`chunks(request)` are sent as events, then `[DONE]`; a text goes out as it is, all else as JSON."""
    seen: list[dict[str, Any]] = []

    class Handler(Replying):
        def do_POST(self) -> None:
            request = json.loads(self.given())
            seen.append(request)
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            for each in chunks(request):
                text = each if isinstance(each, str) else json.dumps(each)
                self.wfile.write(f"data: {text}\n\n".encode())
                self.wfile.flush()
            self.wfile.write(b"data: [DONE]\n\n")

    with listening(Handler) as address:
        yield Endpoint(f"{address}/v1", seen)
