"""A service day: the chat service with the arrivals of 200 people, a day pressed into the minutes given.

    python -m benchmarks.service_day --out runs/day [--minutes 60]

People come as on a working day, ask, ask on, stop answers, leave, change steps, ask again, judge, add files, name,
export and delete. Meanwhile the service is restarted and killed, its engine dies, and its disk is filled (a small
tmpfs; without the right to mount one this is left out and said). Every question, file and name holds a code word of its
conversation, and the engine's double repeats all code words that its prompt holds: one where it does not belong is a
leak. In the end each accepted turn must have its record, what was deleted must be in no file, and every file opens.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import multiprocessing
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.loads import TOKEN, Load, atlas_corpus, begin, done, loading, mib_of, options, quantile, slope
from benchmarks.serve_load import engine, free_port
from inference.chat.turns.events import ENDS, next_state
from inference.chat.turns.store import TurnRequest
from steprag import atlas
from steprag.records.inputs import read_questions
from steprag.records.jsonl import dump_line, read_records
from steprag.types import Turn
from tests.fakes import answer, evidence, query

PEOPLE, VISITS = 200, 6
"""Visits: of a person in an hour of load."""
SLOTS, TOKEN_MS = 8, 15.0
DISK_MIB = 192
CODE = re.compile(r"kw\d{6}")
WARM = 260
"""Turns after a start before memory is measured: 256 turns keep their events (`REMEMBERED`), so it grows at first."""
WEIGHTS = {"restart": 2, "kill -9": 1, "engine dies": 3, "disk full": 3}


def say(messages: list[dict[str, str]]) -> str:
    """The engine's reply: the agent's next step, or a line; with all code words of the prompt."""
    prompt = messages[-1]["content"]
    codes = " ".join(dict.fromkeys(CODE.findall(json.dumps(messages))))
    match prompt.rsplit("\n", 1)[-1]:
        case "Read the passages.":
            lines = [line for line in prompt.rpartition("</query>")[2].split("\n")[1:-1] if ": " in line]
            return evidence(re.split(r"[.;<]", lines[0].split(": ", 1)[1])[0] if lines else f"nothing on {codes}")
        case "Search or answer." if "<evidence>" not in prompt:
            return query(prompt.partition("Question: ")[2].partition("\n")[0][:80])
        case "Search or answer." | "Answer now.":
            return answer(codes)
    return f"What of {codes} is meant?"


@dataclass
class Service:
    """The service and its engine, as processes that end and begin again; the folder that both outlive."""

    load: Load
    folder: Path
    index: Path
    port: int = field(default_factory=free_port)
    engine_port: int = field(default_factory=free_port)
    lives: list[list[tuple[float, float, float]]] = field(default_factory=list)
    """Of each life of the service: minutes, turns that ended in it, MiB."""
    ended: int = 0
    process: subprocess.Popen[bytes] | None = None
    engine: Any = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def begin_engine(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.engine = spawn.Process(target=engine, args=(self.engine_port, SLOTS, TOKEN_MS, say), daemon=True)
        self.engine.start()

    def kill_engine(self) -> None:
        self.engine.kill()
        self.engine.join()

    def begin(self) -> None:
        policy = {"base_url": f"http://127.0.0.1:{self.engine_port}/v1", "model": "double", "engine": "openai",
                  "concurrency": SLOTS}  # fmt: skip
        argv = [part for key, value in policy.items() for part in (f"--policy.{key}", value)]
        self.process = begin(self.load.folder / "service.log", "serve", "--index", self.index, "--out", self.folder,
                             "--serve.port", self.port, "--rewriter.on", "true", *argv)  # fmt: skip
        self.lives.append([])
        self.ended = 0

    async def up(self, seconds: float = 240) -> None:
        """Waits until it answers."""
        until = time.monotonic() + seconds
        async with aiohttp.ClientSession() as session:
            while time.monotonic() < until:
                with contextlib.suppress(aiohttp.ClientError, OSError):
                    async with session.get(f"{self.url}/healthz") as reply:
                        if reply.status == 200:
                            return
                assert self.process
                if self.process.poll() is not None:
                    raise SystemExit(f"the service ended with {self.process.returncode}: service.log")
                await asyncio.sleep(0.5)
        raise SystemExit("the service does not come up: service.log")

    async def end(self, how: int) -> int:
        """Ends it by a signal; its exit code."""
        assert self.process
        self.process.send_signal(how)
        return await asyncio.to_thread(self.process.wait)

    def measure(self) -> None:
        if self.process and self.process.poll() is None:
            self.lives[-1].append((self.load.seconds / 60, self.ended, mib_of(self.process.pid)))


@dataclass
class Day:
    """What the people did and saw. `accepted`: conversations of the turns that were taken; `calm`: no trouble now."""

    service: Service
    session: aiohttp.ClientSession
    accepted: dict[str, str] = field(default_factory=dict)
    codes: dict[str, str] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    unsure: set[str] = field(default_factory=set)
    """Conversations of which a request got no reply: it may have been taken or not."""
    became: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    trouble: str = ""
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def fault(self, words: str) -> None:
        self.faults.append(words[:300])
        self.service.load.say(f"FAULT {words[:300]}")

    def count(self, what: str) -> None:
        self.became[f"{what} ({self.trouble})" if self.trouble else what] += 1

    async def ask(self, method: str, path: str, conversation: str, *, good: int, **more: Any) -> Any:
        """A request; its JSON, None where it was refused or not answered."""
        what = f"{method} {path.split('/')[-1] if path.count('/') > 3 else path.split('/')[2]}"
        try:
            async with self.session.request(method, f"{self.service.url}{path}", **more) as reply:
                body = await reply.read()
        except (aiohttp.ClientError, OSError, TimeoutError):
            self.unsure.add(conversation)
            self.count("no reply")
            return None
        self.see(conversation, body.decode("utf-8", "replace"), what)
        if reply.status == good:
            return json.loads(body) if body and good != 204 and b"{" in body[:1] else {}
        self.count(str(reply.status))
        if reply.status not in (404, 409, 422, 429) and not (reply.status == 503 and self.trouble == "disk full"):
            self.fault(f"{what}: {reply.status} {body[:200]!r} {self.trouble}")
        return None

    def see(self, conversation: str, text: str, where: str) -> None:
        """Looks for code words of others."""
        for code in set(CODE.findall(text)) - {self.codes[conversation]}:
            self.fault(f"LEAK: {where} of {self.codes[conversation]} shows {code}")

    async def events(self, turn: str) -> AsyncIterator[dict[str, Any]]:
        """The turn's events to its end, from where the stream breaks off, or told anew behind a restart."""
        state, last, event = "", {}, {}
        for _ in range(600):
            with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                async with self.session.get(f"{self.service.url}/api/turns/{turn}/events", headers=last) as reply:
                    reply.raise_for_status()
                    async for line in reply.content:
                        if line.startswith(b"data: "):
                            event = json.loads(line[6:])
                        elif line.startswith(b"id: ") and event:
                            last = {"Last-Event-ID": line[4:].strip().decode()}
                            state = next_state("" if event["type"] == "turn.started" else state, event)
                            yield event
                            if state in ENDS:
                                return
            await asyncio.sleep(0.5)
        raise ValueError(f"not told to its end, last {state}")

    async def follow(self, turn: str, conversation: str, *, leave: int, stop: int) -> list[Any]:
        """Its events; [] where it was left behind so many. `stop`: behind so many it is cancelled."""
        start, seen, calm = time.monotonic(), [], not self.trouble
        try:
            async for event in self.events(turn):
                if event["type"] == "turn.started":
                    seen.clear()
                    self.first += [time.monotonic() - start] * calm
                seen.append(event)
                self.see(conversation, json.dumps(event), "an event")
                if len(seen) == leave:
                    return []
                if len(seen) == stop:
                    await self.ask("DELETE", f"/api/turns/{turn}", conversation, good=204)
        except ValueError as error:
            self.fault(f"events of {turn}: {error}")
            return []
        self.count(seen[-1]["type"])
        self.service.ended += 1
        if calm and not self.trouble and seen[-1]["type"] == "turn.finished":
            self.whole.append(time.monotonic() - start)
        return seen


async def visit(day: Day, draw: random.Random, mine: list[str], questions: list[str]) -> None:
    """A person comes for some turns, in a new conversation or an old one of theirs."""
    old = mine and draw.random() < 0.3
    conversation = mine.pop(draw.randrange(len(mine))) if old else f"c{next(day.numbers):06d}"
    if not old:
        day.codes[conversation] = code = f"kw{conversation[1:]}"
        if draw.random() < 0.1:
            note = f"The meeting about {code} takes place in room {draw.randrange(900)}.\n" * 5
            at = f"/api/files/{conversation}"
            await day.ask("POST", at, conversation, good=201, params={"name": f"{code}.txt"}, data=note)
    code = day.codes[conversation]
    for number in range(1 + min(6, int(draw.expovariate(0.5)))):
        asked = f"{draw.choice(questions)} I ask for {code}." if not number else f"And what of its neighbour, {code}?"
        mode = draw.choices(["auto", "direct", "reasoning", "local"], [8, 1, 1, 1])[0]
        body = {"question": asked, "conversation": conversation, "mode": mode}
        if not await turn_of(day, draw, conversation, "/api/turns", body):
            continue
        await asyncio.sleep(draw.expovariate(0.5))
    if draw.random() < 0.06:
        if await day.ask("DELETE", f"/api/conversations/{conversation}", conversation, good=204) is not None:
            day.deleted.add(conversation)
    else:
        mine.append(conversation)


async def turn_of(day: Day, draw: random.Random, conversation: str, path: str, body: dict[str, Any]) -> bool:
    """A turn, and what its person does with it; whether it ended well."""
    taken = await day.ask("POST", path, conversation, good=201, json=body)
    if taken is None:
        await asyncio.sleep(draw.uniform(2, 8))
        return False
    turn = taken["turn"]
    day.accepted[turn] = conversation
    lot = draw.random()
    leave, stop = draw.randrange(2, 12) * (lot < 0.04), draw.randrange(2, 12) * (0.04 <= lot < 0.12)
    told = await day.follow(turn, conversation, leave=leave, stop=stop)
    if not told or told[-1]["type"] != "turn.finished":
        return False
    at = f"/api/turns/{turn}"
    if lot > 0.92 and path == "/api/turns":
        steps = [event for event in told if event["type"] == "step.finished" and event["action"] == "query"]
        if steps:
            changed = {"step": steps[0]["step"], "text": f"another fact of {day.codes[conversation]}"}
            return await turn_of(day, draw, conversation, f"{at}/fork", changed)
    if 0.88 < lot <= 0.92 and path == "/api/turns":
        return await turn_of(day, draw, conversation, f"{at}/again", {})
    ways: list[tuple[str, str, dict[str, Any], int]] = [
        ("POST", f"{at}/feedback", {"json": {"right": draw.random() < 0.6}}, 204),
        ("PATCH", f"/api/conversations/{conversation}", {"json": {"title": f"About {day.codes[conversation]}"}}, 204),
        ("GET", f"/api/conversations/{conversation}/export", {}, 200),
        ("GET", f"/api/conversations/{conversation}", {}, 200), ("GET", f"{at}/steps/0", {}, 200),
    ]  # fmt: skip
    if 0.4 < lot < 0.7:
        method, where, more, good = draw.choice(ways)
        await day.ask(method, where, conversation, good=good, **more)
    return True


def arrivals(minutes: float, draw: random.Random) -> list[tuple[float, int]]:
    """Seconds and people: few at night, most at ten and at three."""

    def busy(hour: float) -> float:
        return 0.05 + math.exp(-(((hour - 10) / 2) ** 2)) + 0.9 * math.exp(-(((hour - 15) / 2.2) ** 2))

    wanted, found = PEOPLE * VISITS * minutes / 60, []
    while len(found) < wanted:
        hour = draw.uniform(0, 24)
        if draw.random() < busy(hour) / 1.05:
            found.append((hour / 24 * minutes * 60, draw.randrange(PEOPLE)))
    return sorted(found)


async def troubles(day: Day, draw: random.Random, disk: Path | None) -> Counter[str]:
    """Restarts, kills, a dying engine, a full disk, one after the other, about every four minutes."""
    happened, service = Counter[str](), day.service
    kinds = [kind for kind in WEIGHTS if disk or kind != "disk full"]
    order = [*reversed(kinds), *draw.choices(kinds, [WEIGHTS[kind] for kind in kinds], k=1000)]
    for kind in order:
        await asyncio.sleep(min(220.0, 4 * service.load.minutes) * draw.uniform(0.5, 1.5))
        if service.load.left(0.9) < 0:
            return happened
        day.trouble = kind
        happened[kind] += 1
        if kind == "engine dies":
            service.kill_engine()
            await asyncio.sleep(draw.uniform(2, 15))
            service.begin_engine()
        elif kind == "disk full" and disk:
            ballast = disk / "ballast"
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as stream:
                while True:
                    stream.write(bytes(1 << 16 if draw.random() < 0.9 else 1))
            await asyncio.sleep(draw.uniform(5, 20))
            ballast.unlink()
        else:
            await service.end(signal.SIGTERM if kind == "restart" else signal.SIGKILL)
            service.begin()
            await service.up()
        await asyncio.sleep(10)
        day.trouble = ""
    return happened


async def live(load: Load, service: Service, disk: Path | None) -> tuple[Day, Counter[str]]:
    """The day, until all people are gone and everything that was taken has ended."""
    draw = random.Random(1)
    questions = [one.question for one in read_questions(atlas.path("test"))]
    headers, timeout = {"Authorization": f"Bearer {TOKEN}"}, aiohttp.ClientTimeout(total=180)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout, connector=connector) as session:
        day = Day(service, session)
        mischief = asyncio.create_task(troubles(day, random.Random(2), disk))
        people: dict[int, list[str]] = {}
        visits: set[asyncio.Task[None]] = set()
        for at, person in arrivals(load.minutes * 0.95, draw):
            while (wait := at - load.seconds) > 0:
                service.measure()
                await asyncio.sleep(min(wait, 5))
            mine = people.setdefault(person, [])
            visits.add(asyncio.create_task(visit(day, random.Random(draw.random()), mine, questions)))
        await asyncio.gather(*visits, mischief)
        await service.end(signal.SIGTERM)  # what could not be kept is played now
        service.begin()
        await service.up()
        while await unplayed(day):  # noqa: ASYNC110 (another process)
            await asyncio.sleep(1)
        await look(day)
        return day, mischief.result()


async def unplayed(day: Day) -> int:
    async with day.session.get(f"{day.service.url}/api/info") as reply:
        told = await reply.json()
    return told["waiting"] + told["playing"]


async def look(day: Day) -> None:
    """Each conversation once more: its turns are those that were accepted, and have ended."""
    for conversation in day.codes:
        mine = {turn for turn, its in day.accepted.items() if its == conversation}
        async with day.session.get(f"{day.service.url}/api/conversations/{conversation}") as reply:
            body = await reply.text()
            rows = json.loads(body)["turns"] if reply.status == 200 else []
        found = {row["turn"] for row in rows}
        day.see(conversation, body, "the conversation at the end")
        gone = conversation in day.deleted
        if gone and reply.status != 404:
            day.fault(f"{conversation} was deleted and is there")
        if not gone and (mine - found if conversation not in day.unsure or found else ()):
            day.fault(f"LOST: {conversation} lacks {mine - found}")
        if found - mine and conversation not in day.unsure:
            day.fault(f"{conversation} has turns that nobody was told of: {found - mine}")
        if any(row["status"] == "running" for row in rows):
            day.fault(f"{conversation} has turns that run")


def files_of(day: Day, folder: Path, load: Load) -> None:
    """Opens the service's files once it has ended, by our readers and by plain eyes."""
    turns = list(read_records(folder / "turns.jsonl", Turn))
    unended = sum(1 for _ in read_records(folder / "accepted.jsonl", TurnRequest) if _.id not in {t.id for t in turns})
    mixed = sum(bool(set(CODE.findall(dump_line(turn))) - {day.codes[turn.conversation]}) for turn in turns)
    with sqlite3.connect(folder / "calls.sqlite") as db:
        sound = db.execute("PRAGMA integrity_check").fetchone()[0]
    held = set(re.findall(rb"kw\d{6}", b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())))
    left = [day.codes[one] for one in day.deleted if day.codes[one].encode() in held]
    log = load.folder / "commands.log"
    bad = [what for what, good in {
        "calls.sqlite": sound == "ok", "check": done(log, "check", folder),
        "view": done(log, "view", folder, "--out", load.folder / "day.html"),
        "pairs people": done(log, "pairs", "people", folder, "--out", load.folder / "people"),
    }.items() if not good]  # fmt: skip
    load.row("turns in the files", f"{len(turns):,}; without an end {unended}", "none without an end", not unended)
    load.row("turns with words of another conversation", mixed, "0", mixed == 0)
    load.row("deleted conversations of which a word is in a file", f"{len(left)} of {len(day.deleted)}", "0", not left)
    load.row("files that do not open", ", ".join(bad) or 0, "0", not bad)


def told(day: Day, happened: Counter[str], load: Load) -> None:
    """The rows of what people saw."""
    load.row("people, conversations, turns accepted", f"{PEOPLE}, {len(day.codes):,}, {len(day.accepted):,}")
    load.row("troubles", ", ".join(f"{count} × {kind}" for kind, count in happened.most_common()))
    load.row("what requests and turns came to", ", ".join(f"{n:,} {what}" for what, n in day.became.most_common()))
    for name, seconds in (("first event", day.first), ("whole answer", day.whole)):
        load.row(
            f"{name} without trouble, s",
            f"median {quantile(seconds, 0.5):.2f}, p95 {quantile(seconds, 0.95):.2f} (of {len(seconds):,})",
        )
    for kind in ("LEAK", "LOST", ""):
        mine = [one for one in day.faults if (one[:4] if one[:4] in ("LEAK", "LOST") else "") == kind]
        what = {"LEAK": "words of others seen", "LOST": "accepted and lost", "": "other faults"}[kind]
        load.row(what, f"{len(mine)}: {mine[0]}" if mine else 0, "0", not mine)
    lives = [[point for point in life if point[1] >= WARM] for life in day.service.lives]
    lives = [life for life in lives if len(life) > 5]
    by_turn, error = slope([[(ended, mib * 1024) for _, ended, mib in life] for life in lives])
    load.row(f"memory of the service after {WARM} turns, KiB a turn more", f"{by_turn:.1f} ± {error:.1f} "
             f"({len(lives)} lives)", "at most 40", not by_turn > 40)  # fmt: skip
    by_minute, error = slope([[(minute, mib) for minute, _, mib in life] for life in lives])
    load.row("the same, MiB a minute", f"{by_minute:+.2f} ± {error:.2f}")


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A tmpfs of `DISK_MIB` on `folder`; None where this user may mount none."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


def whole_day(load: Load) -> None:
    corpus, index = atlas_corpus(load.folder, load.minutes), load.folder / "index"
    if not done(load.folder / "commands.log", "index", "build", "--corpus", corpus, "--out", index, "--hybrid"):
        raise SystemExit("index build failed: commands.log")
    with small_disk(load.folder / "disk") as disk:
        service = Service(load, load.folder / "disk" / "chat", index)
        service.begin_engine()
        service.begin()
        try:
            asyncio.run(service.up())
            load.start()
            day, happened = asyncio.run(live(load, service, disk))
            ended = asyncio.run(service.end(signal.SIGTERM))
            load.row("exit code of the service at its end", ended, "0", ended == 0)
            if disk is None:
                load.row("a full disk", "left out: no right to mount a tmpfs")
            told(day, happened, load)
            files_of(day, service.folder, load)
            subprocess.run(["cp", "-r", str(service.folder), str(load.folder / "kept")], check=True)
        finally:
            service.kill_engine()
            if service.process and service.process.poll() is None:
                service.process.kill()


if __name__ == "__main__":
    with loading("A service day", options(__doc__)) as running:
        whole_day(running)
    sys.exit(running.status)
