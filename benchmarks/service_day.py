"""A service day: the chat service with the arrivals of 200 people, a day pressed into the minutes given.

    python -m benchmarks.service_day --out runs/day [--minutes 60]

People come as on a working day, ask, ask on, stop answers, leave, change steps, ask again, judge, add files, name,
export and delete. Meanwhile the service is restarted and killed, its engine dies, more people come at once than it
takes while thousands of connections lie open that sent half a head, and its disk is filled (a small tmpfs; without the
right to mount one this is left out and said). Every question, file and name holds a code word of its
conversation, and the engine's double repeats all code words that its prompt holds: one where it does not belong is a
leak. In the end each accepted turn must have its record, what was deleted must be in no file, and every file opens.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import multiprocessing
import random
import re
import resource
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from apps.chat.turns.events import ENDS, next_state
from benchmarks.loads import (
    TOKEN,
    Load,
    as_options,
    asking,
    begin,
    built,
    done,
    engine,
    loading,
    options,
    p95,
    resident,
    slope,
)  # fmt: skip
from steprag import atlas
from steprag.engines.launch import free_port
from steprag.records.inputs import read_questions
from steprag.records.jsonl import dump_line, read_records
from steprag.records.turns import Turn
from tests.fakes import answer, evidence, query

PEOPLE, VISITS = 200, 6
"""Visits: of a person in an hour of load."""
SLOTS, TOKEN_MS = 8, 15.0
DISK_MIB = 192
CODE = re.compile(r"kw\d{6}")
WARM, RISE = 260, 40
"""Turns after a start before memory is measured: 256 keep their events. KiB that it may then grow a turn."""
TROUBLES = {"disk full": 3, "engine dies": 3, "kill -9": 1, "restart": 2, "rush": 2}
RUSH, HALF = (150, 3_000), b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half: "
"""Visits that begin at once, and connections; what each of these sends."""
LOST = (aiohttp.ClientError, OSError, TimeoutError)


def say(messages: list[dict[str, str]]) -> str:
    """The engine's reply: the agent's next step, or a line; with all code words of the prompt."""
    prompt, codes = messages[-1]["content"], " ".join(dict.fromkeys(CODE.findall(json.dumps(messages))))
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
class Day:
    """The service and its engine, as processes that end and begin again, and what people did and saw of them.

    `codes`: of each conversation. `accepted`: the conversations of turns that were taken. `unsure`: conversations of
    which a request got no reply, so it may have been taken or not. `lives`: of each start of the service minutes, turns
    that ended since, MiB. `trouble`: what is happening.
    """

    load: Load
    index: Path
    disk: Path | None
    port: int = field(default_factory=lambda: free_port("127.0.0.1"))
    engine_port: int = field(default_factory=lambda: free_port("127.0.0.1"))
    codes: dict[str, str] = field(default_factory=dict)
    accepted: dict[str, str] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    unsure: set[str] = field(default_factory=set)
    became: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    lives: list[list[tuple[float, float, float]]] = field(default_factory=list)
    ended: int = 0
    trouble: str = ""

    def __post_init__(self) -> None:
        self.folder = (self.disk or self.load.folder) / "chat"

    def begin_engine(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.engine = spawn.Process(target=engine, args=(self.engine_port, SLOTS, TOKEN_MS, say), daemon=True)
        self.engine.start()

    async def begin(self) -> None:
        """Starts the service, and waits until it answers."""
        argv = as_options(asking(f"http://127.0.0.1:{self.engine_port}", SLOTS))
        self.process = begin(self.load.folder / "service.log", "serve", "--index", self.index, "--out", self.folder,
                             "--serve.port", self.port, "--rewriter.on", "true", *argv)  # fmt: skip
        base, headers = f"http://127.0.0.1:{self.port}", {"Authorization": f"Bearer {TOKEN}"}
        connector, timeout = aiohttp.TCPConnector(limit=0, force_close=True), aiohttp.ClientTimeout(total=180)
        if not self.lives:
            self.http = aiohttp.ClientSession(base, headers=headers, connector=connector, timeout=timeout)
        self.ended = 0
        self.lives.append([])
        while True:
            with contextlib.suppress(*LOST):
                async with self.http.get("/healthz"):
                    return
            if self.process.poll() is not None:
                raise SystemExit(f"the service ended with {self.process.returncode}: service.log")
            await asyncio.sleep(0.5)

    async def end(self, how: int = signal.SIGTERM) -> int:
        """Ends the service; its exit code."""
        self.process.send_signal(how)
        return await asyncio.to_thread(self.process.wait)

    def fault(self, words: str) -> None:
        self.faults.append(words[:300])
        self.load.say(f"FAULT {words[:300]}")

    def count(self, what: str) -> None:
        self.became[f"{what} ({self.trouble})" if self.trouble else what] += 1

    def see(self, conversation: str, text: str, where: str) -> None:
        """Looks for code words of others."""
        for code in set(CODE.findall(text)) - {self.codes[conversation]}:
            self.fault(f"LEAK: {where} of {self.codes[conversation]} shows {code}")

    async def ask(self, method: str, path: str, conversation: str, **more: Any) -> Any:
        """A request; its JSON, None where it was refused or not answered."""
        try:
            async with self.http.request(method, f"/api/{path}", **more) as reply:
                body = await reply.read()
        except LOST:
            self.unsure.add(conversation)
            return self.count("no reply")
        self.see(conversation, body.decode("utf-8", "replace"), f"{method} {path}")
        if reply.status < 300:
            return json.loads(body) if reply.content_type == "application/json" else {}
        self.count(str(reply.status))
        if reply.status not in (404, 409, 422, 429) and (reply.status, self.trouble) != (503, "disk full"):
            self.fault(f"{method} {path}: {reply.status} {body[:200]!r} {self.trouble}")
        return None

    async def events(self, turn: str) -> AsyncIterator[dict[str, Any]]:
        """The turn's events to its end, from where the stream breaks off, or told anew behind a restart."""
        state, last, event = "", {}, {}
        for _ in range(600):
            with contextlib.suppress(*LOST):
                async with self.http.get(f"/api/turns/{turn}/events", headers=last, raise_for_status=True) as reply:
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

    async def follow(self, turn: str, conversation: str, *, leave: int, stop: int) -> list[dict[str, Any]]:
        """Its events; [] where it was left behind so many. `stop`: behind so many it is cancelled."""
        start, seen, calm = time.monotonic(), list[dict[str, Any]](), not self.trouble
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
                    await self.ask("DELETE", f"turns/{turn}", conversation)
        except ValueError as error:
            self.fault(f"events of {turn}: {error}")
            return []
        self.count(seen[-1]["type"])
        self.ended += 1
        if calm and not self.trouble and seen[-1]["type"] == "turn.finished":
            self.whole.append(time.monotonic() - start)
        return seen


async def visit(day: Day, draw: random.Random, mine: list[str], questions: list[str]) -> None:
    """A person comes for some turns, in a new conversation or an old one of theirs."""
    old = mine and draw.random() < 0.3
    conversation = mine.pop(draw.randrange(len(mine))) if old else f"c{len(day.codes):06d}"
    code = day.codes.setdefault(conversation, f"kw{conversation[1:]}")
    if not old and draw.random() < 0.1:
        note = f"The meeting about {code} takes place in room {draw.randrange(900)}.\n" * 5
        await day.ask("POST", f"files/{conversation}", conversation, params={"name": f"{code}.txt"}, data=note)
    for number in range(1 + min(6, int(draw.expovariate(0.5)))):
        asked = f"And what of its neighbour, {code}?" if number else f"{draw.choice(questions)} I ask for {code}."
        (mode,) = draw.choices(["auto", "direct", "reasoning", "local"], [8, 1, 1, 1])
        body = {"question": asked, "conversation": conversation, "mode": mode}
        await asyncio.sleep(draw.expovariate(0.5) if await turn_of(day, draw, conversation, "turns", body) else 5)
    if draw.random() > 0.06:
        mine.append(conversation)
    elif await day.ask("DELETE", f"conversations/{conversation}", conversation) is not None:
        day.deleted.add(conversation)


async def turn_of(day: Day, draw: random.Random, conversation: str, path: str, body: dict[str, Any]) -> bool:
    """A turn, and what its person does with it; whether it ended well."""
    if (taken := await day.ask("POST", path, conversation, json=body)) is None:
        return False
    day.accepted[taken["turn"]] = conversation
    at, lot, code = f"turns/{taken['turn']}", draw.random(), day.codes[conversation]
    leave, stop = draw.randrange(2, 12) * (lot < 0.04), draw.randrange(2, 12) * (0.04 <= lot < 0.12)
    told = await day.follow(taken["turn"], conversation, leave=leave, stop=stop)
    if not told or told[-1]["type"] != "turn.finished":
        return False
    steps = [event["step"] for event in told if event["type"] == "step.finished" and event["action"] == "query"]
    if lot > 0.92 and path == "turns" and steps:
        changed = {"step": steps[0], "text": f"another fact of {code}"}
        return await turn_of(day, draw, conversation, f"{at}/fork", changed)
    if lot > 0.88 and path == "turns":
        return await turn_of(day, draw, conversation, f"{at}/again", {})
    its = f"conversations/{conversation}"
    ways = (("POST", f"{at}/feedback", {"right": lot < 0.6}), ("PATCH", its, {"title": f"About {code}"}),
            ("GET", f"{at}/steps/0", None), ("GET", its, None), ("GET", f"{its}/export", None))  # fmt: skip
    if lot > 0.5:
        method, where, said = draw.choice(ways)
        await day.ask(method, where, conversation, json=said)
    return True


def arrivals(minutes: float, draw: random.Random) -> list[tuple[float, int]]:
    """Seconds and people: few at night, most at ten and at three."""

    def busy(hour: float) -> float:
        return 0.05 + math.exp(-(((hour - 10) / 2) ** 2)) + 0.9 * math.exp(-(((hour - 15) / 2.2) ** 2))

    hours = random.Random(0).choices(range(24 * 60), [busy(minute / 60) for minute in range(24 * 60)],
                                     k=round(PEOPLE * VISITS * minutes / 60))  # fmt: skip
    return sorted((minute / 24 * minutes + draw.random(), draw.randrange(PEOPLE)) for minute in hours)


async def rush(day: Day, draw: random.Random) -> None:
    """More visits at once than the service takes, beside connections that never end their request."""
    questions, held = [one.question for one in read_questions(atlas.path("dev"))], list[asyncio.StreamWriter]()
    for _ in range(RUSH[1]):
        with contextlib.suppress(*LOST):
            held.append((await asyncio.open_connection("127.0.0.1", day.port))[1])
            held[-1].write(HALF)
    await asyncio.gather(*(visit(day, random.Random(draw.random()), [], questions) for _ in range(RUSH[0])))
    for writer in held:
        writer.transport.abort()


async def troubles(day: Day, draw: random.Random) -> Counter[str]:
    """Restarts, kills, a dying engine, a rush, a full disk, one after the other, about every four minutes."""
    happened = Counter[str]()
    kinds = [kind for kind in TROUBLES if day.disk or kind != "disk full"]
    for kind in [*kinds, *draw.choices(kinds, [TROUBLES[kind] for kind in kinds], k=1000)]:
        await asyncio.sleep(min(220.0, 4 * day.load.minutes) * draw.uniform(0.5, 1.5))
        if day.load.left(0.9) < 0:
            break
        day.trouble = kind
        happened[kind] += 1
        if kind == "engine dies":
            day.engine.kill()
            day.engine.join()
            await asyncio.sleep(draw.uniform(2, 15))
            day.begin_engine()
        elif kind == "rush":
            await rush(day, draw)
        elif kind == "disk full" and day.disk:
            ballast = day.disk / "ballast"
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as stream:
                while True:
                    stream.write(bytes(1 << 16 if draw.random() < 0.9 else 1))
            await asyncio.sleep(draw.uniform(5, 20))
            ballast.unlink()
        else:
            await day.end(signal.SIGTERM if kind == "restart" else signal.SIGKILL)
            await day.begin()
        await asyncio.sleep(10)
        day.trouble = ""
    return happened


async def live(day: Day) -> None:
    """The day, until all people are gone and everything that was taken has ended."""
    draw, load, files = random.Random(1), day.load, resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))  # for the connections of a rush; the service has it too
    questions = [one.question for one in read_questions(atlas.path("test"))]
    day.begin_engine()
    await day.begin()
    load.begun = time.monotonic()
    mischief = asyncio.create_task(troubles(day, random.Random(2)))
    people, visits = [list[str]() for _ in range(PEOPLE)], set[asyncio.Task[None]]()
    for at, person in arrivals(load.minutes * 0.95, draw):
        while (wait := at - load.seconds) > 0:
            day.lives[-1].append((load.seconds / 60, day.ended, resident(day.process.pid)))
            await asyncio.sleep(min(wait, 5))
        visits.add(asyncio.create_task(visit(day, random.Random(draw.random()), people[person], questions)))
    await asyncio.gather(*visits)
    happened = await mischief
    load.row("troubles", ", ".join(f"{count} × {kind}" for kind, count in happened.items()) or "none")
    await day.end()
    await day.begin()  # what could not be kept is played now
    told = {"waiting": 1, "playing": 1}
    while told["waiting"] + told["playing"]:
        await asyncio.sleep(1)
        async with day.http.get("/api/info") as reply:
            told = await reply.json()
    await look(day)
    code = await day.end()
    load.row("exit code of the service at its end", code, "0", code == 0)
    await day.http.close()


async def look(day: Day) -> None:
    """Each conversation once more: its turns are those that were accepted, and have ended."""
    for one in day.codes:
        mine = {turn for turn, its in day.accepted.items() if its == one}
        async with day.http.get(f"/api/conversations/{one}") as reply:
            body = await reply.text()
        rows = json.loads(body)["turns"] if reply.status == 200 else []
        found = {row["turn"] for row in rows}
        day.see(one, body, "the conversation at the end")
        for wrong, words in (
            (one in day.deleted and reply.status != 404, "was deleted and is there"),
            (one not in day.deleted and mine - found and (found or one not in day.unsure), f"LOST {mine - found}"),
            (found - mine and one not in day.unsure, f"has turns that nobody was told of: {found - mine}"),
            (any(row["status"] == "running" for row in rows), "has turns that run"),
        ):
            if wrong:
                day.fault(f"{one} {words}")


def reported(day: Day) -> None:
    """The rows of what people saw, of memory, and of the service's files, opened by our readers and by plain eyes."""
    load, folder, log = day.load, day.folder, day.load.folder / "commands.log"
    load.row("people, conversations, turns accepted", f"{PEOPLE}, {len(day.codes):,}, {len(day.accepted):,}")
    load.row("what requests and turns came to", ", ".join(f"{n:,} {what}" for what, n in day.became.most_common()))
    for name, seconds in (("first event", day.first), ("whole answer", day.whole)):
        middle, high = (statistics.median(seconds), p95(seconds)) if seconds else (math.nan, math.nan)
        load.row(f"{name} without trouble, s", f"median {middle:.2f}, p95 {high:.2f} (of {len(seconds):,})")
    for word, what in (("LEAK", "words of others seen"), ("LOST", "accepted and lost"), ("", "faults in all")):
        mine = [one for one in day.faults if word in one]
        load.row(what, f"{len(mine)}: {mine[0]}" if mine else 0, "0", not mine)
    lives = [life for one in day.lives if len(life := [point for point in one if point[1] >= WARM]) > 5]
    rise, error = slope([[(ended, mib * 1024) for _, ended, mib in life] for life in lives])
    load.row(f"memory after {WARM} turns of a start, KiB a turn", f"{rise:.1f} ± {error:.1f} ({len(lives)} starts)",
             f"at most {RISE}" if lives else "", not rise > RISE)  # fmt: skip
    turns = list(read_records(folder / "turns.jsonl", Turn))
    mixed = sum(bool(set(CODE.findall(dump_line(turn))) - {day.codes[turn.conversation]}) for turn in turns)
    load.row("turns in the files; with words of another conversation", f"{len(turns):,}; {mixed}", "none", not mixed)
    held = set(re.findall(rb"kw\d{6}", b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())))
    left = [one for one in day.deleted if day.codes[one].encode() in held]
    load.row("deleted conversations of which a word is in a file", f"{len(left)} of {len(day.deleted)}", "0", not left)
    with contextlib.closing(sqlite3.connect(folder / "calls.sqlite")) as db:
        sound = db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    opens = {"calls.sqlite": sound, "check": done(log, "check", folder),
             "view": done(log, "view", folder, "--out", load.folder / "day.html"),
             "pairs": done(log, "pairs", "people", folder, "--out", load.folder / "people")}  # fmt: skip
    bad = [what for what, good in opens.items() if not good]
    load.row("files that do not open", ", ".join(bad) or 0, "0", not bad)


@contextlib.contextmanager
def small_disk(load: Load) -> Iterator[Path | None]:
    """A tmpfs of `DISK_MIB`, in the end copied to `kept`; None where this user may mount none."""
    (folder := load.folder / "disk").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        load.row("a full disk", "left out: no right to mount a tmpfs")
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["cp", "-r", str(folder), str(load.folder / "kept")], check=False)
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


if __name__ == "__main__":
    with loading("A service day", options(__doc__)) as running, small_disk(running) as disk:
        (index,) = built(running, ["flat"])
        today = Day(running, index, disk)
        asyncio.run(live(today))
        reported(today)
    sys.exit(running.status)
