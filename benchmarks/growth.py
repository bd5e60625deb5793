"""How time and memory grow with passages, questions, calls, nodes, turns and connections: curves and their steepness.

    OMP_NUM_THREADS=1 python -m benchmarks.growth --out docs/figures/growth [--parts vectors journal] [--most 10000000]

Each size is measured in a process of its own, in which the smallest was worked off before: processor seconds of the
work, and how much more memory the process held at the work's peak than before all work, mapped files included (Linux
counts it). Steepness is the exponent of the power law through the three largest sizes: 1 is a straight line. `--rows
FILE` keeps points, and measures none again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import itertools
import json
import math
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from steprag.engines.threads import return_freed_memory

Clock = Callable[[str], contextlib.AbstractContextManager[None]]
DIMENSION = 64
QUERIES = 50
LARGEST = {"flat": 10**6, "ivf-sq8": 10**6, "rabitq": 10**7}
"""Index types, and the most vectors that each is built of here."""


def vectors(size: int, folder: Path, clock: Clock) -> dict[str, float]:
    """Made unit vectors of 64 numbers: an index of each type built, then searched one query at a time."""
    import faiss
    import numpy as np

    from benchmarks.index_types import synthetic
    from indexes.config import AnnConfig
    from indexes.rows.vector_file import VECTORS, VectorFile
    from indexes.vectors.index_types import build_type, check_type, open_index
    from indexes.vectors.recall import make_probe
    from steprag.errors import ConfigError

    faiss.omp_set_num_threads(1)
    queries = synthetic(folder, size, DIMENSION)[:QUERIES]
    store, told = VectorFile(folder / VECTORS, size, DIMENSION), {}
    probe = make_probe(store, queries)
    for name in (name for name, most in LARGEST.items() if size <= most):
        try:
            check_type(name, size, DIMENSION, AnnConfig())
        except ConfigError:  # too few vectors for it
            continue
        with clock(f"{name}: built"):
            facts, measured = build_type(name, folder, store, AnnConfig(), probe)
        store.release()  # what measuring the recall touched
        index = open_index(folder, facts, size, DIMENSION)
        index.search(queries[:1], 10)
        with clock(f"{name}: {QUERIES} searches"):
            for query in queries:
                index.search(query[np.newaxis], 10)
        told[f"{name}: recall at 10"] = measured.recall_at_10
        del index  # its map would count as the next one's memory
    return told


def questions(size: int, folder: Path, clock: Clock) -> dict[str, float]:
    """Questions to trees by a scripted policy, 64 at once, journal and trees on disk; told: calls."""
    from benchmarks.scripted_search import InstantPolicy, generate

    policy = InstantPolicy()
    with clock("trees made"):
        generate(policy, size, {"policy.concurrency": 64})
    return {"calls": policy.calls}


def journal(size: int, folder: Path, clock: Clock) -> dict[str, float]:
    """A journal of so many calls, ten a question: written, and opened again as a run does that goes on."""
    from steprag.batch.journal import Journal
    from steprag.types import Completion, Question, Sample, Usage

    said = Sample((Completion("So the next query is <query> the capital of Albania </query>" * 3, "stop"),),
                  Usage(1, 900, 60, 0))  # fmt: skip
    file = folder / "calls.sqlite"
    with clock("calls written"):
        kept = Journal(file)
        for number in range(size):
            question = f"q{number // 10}"
            if number % 10 == 0:
                kept.question(Question(question, "Which currency is used in Albania?", ("lek",)))
            key = ("policy", f"{number % 10:032x}", 0, 1)
            kept.sent(question, key)
            kept.replied(question, key, said)
        kept.close()
    with clock("journal opened"):
        again = Journal(file)
    again.close()
    return {"bytes a call": round(file.stat().st_size / size), "calls": again.spending.usage.calls}


def nodes(size: int, folder: Path, clock: Clock) -> dict[str, float]:
    """One tree of about so many nodes, grown in memory."""
    from benchmarks.scripted_search import grown

    with clock("tree grown"):
        count = asyncio.run(grown(size))
    return {"nodes": count}


def turns(size: int, folder: Path, clock: Clock) -> dict[str, float]:
    """Turns of one conversation, one after the other, each with its events read; then all of them opened again."""
    from apps.chat.turns.store import TurnStore
    from tests.chat_parts import WORK, WritingPolicy, chat

    script = itertools.cycle(WORK)
    with chat(WritingPolicy(lambda messages: next(script)), folder) as served:
        more: dict[str, str] = {}
        with clock("turns played"):
            for _ in range(size):
                begun = served.client.post("/api/turns", json={"question": "Which currency?", **more}).json()
                served.events(begun["turn"])
                more = {"conversation": begun["conversation"]}
    with clock("turns opened again"):
        TurnStore(folder).close()
    return {}


def connections(size: int, folder: Path, clock: Clock) -> dict[str, float]:
    """Connections that are held open, three requests on each, all at once; client and service in one process."""
    from steprag.net.hosts import listen
    from steprag.web.listening import serve_app

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"{}"})

    async def one(port: int) -> asyncio.StreamWriter:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(3):
            writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            if b" 200 " not in head or await reader.readexactly(2) != b"{}":
                raise SystemExit(f"refused: {head!r}")
        return writer

    async def work() -> None:
        with listen("127.0.0.1", 0) as listening:
            serving = asyncio.create_task(serve_app(app, listening, grace=1))
            await asyncio.sleep(0.5)
            with clock("requests answered"):
                held = await asyncio.gather(*(one(listening.getsockname()[1]) for _ in range(size)))
            for writer in held:
                writer.close()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(work())
    return {}


PARTS: dict[str, tuple[Callable[[int, Path, Clock], dict[str, float]], str, tuple[int, ...]]] = {
    "vectors": (vectors, "passages", (1_000, 10_000, 100_000, 1_000_000, 10_000_000)),
    "questions": (questions, "questions", (10, 100, 1_000, 10_000)),
    "journal": (journal, "calls", (1_000, 10_000, 100_000)),
    "nodes": (nodes, "nodes", (100, 1_000, 10_000, 100_000)),
    "turns": (turns, "turns", (10, 100, 300)),
    "connections": (connections, "connections", (10, 100, 1_000, 3_000)),
}
"""What is measured, what it is measured against, and the sizes."""


def measured(part: str, size: int) -> None:
    """In a process of its own: prints a line for each curve, `{"curve", "size", "seconds", "mib"}`."""
    told: list[dict[str, Any]] = []

    @contextlib.contextmanager
    def clock(curve: str) -> Iterator[None]:
        forget_peak()
        start = time.process_time()
        yield
        seconds = time.process_time() - start
        told.append({"curve": curve, "seconds": seconds, "mib": max(0.0, peak() - held)})

    with tempfile.TemporaryDirectory() as warm, tempfile.TemporaryDirectory() as folder:
        PARTS[part][0](min(PARTS[part][2][0], size), Path(warm), lambda _: contextlib.nullcontext())  # imports, caches
        forget_peak()
        held = peak()
        more = PARTS[part][0](size, Path(folder), clock)
    for row in told:
        sys.stdout.write(json.dumps({"part": part, "size": size, **row, "told": more}) + "\n")


def forget_peak() -> None:
    """Frees what can be freed, and has Linux count the peak from here on."""
    gc.collect()
    return_freed_memory()
    Path("/proc/self/clear_refs").write_text("5")


def peak() -> float:
    """The most MiB that this process held since `forget_peak`."""
    told = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(told["VmHWM"].split()[0]) / 1024


def steepness(points: list[tuple[int, float]]) -> float | None:
    """The exponent of the power law through the three largest sizes; None where less was measured."""
    import numpy as np

    last = [(math.log(size), math.log(value)) for size, value in sorted(points)[-3:] if value > 0]
    return round(float(np.polyfit(*zip(*last, strict=True), 1)[0]), 2) if len(last) > 1 else None


def page(rows: list[dict[str, Any]], out: Path) -> str:
    """The curves as a table, the largest size last, with a steepness each; the pictures stand beside it."""
    curves: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        curves[row["part"], row["curve"]].append(row)
    lines = ["# How cost grows", "", (__doc__ or "").split("\n\n")[2].strip(), ""]
    for title, key in (("Processor seconds", "seconds"), ("Memory, MiB", "mib")):
        draw(curves, key, title, picture := out.with_name(f"{out.name}-{key}.png"))
        lines += [f"## {title}", "", f"![{title}]({picture.name})", "", "| curve | against | sizes | "
                  f"{title} | steepness |", "|---|---|---|---|---|"]  # fmt: skip
        for (part, curve), points in curves.items():
            points.sort(key=lambda row: row["size"])
            steep = steepness([(row["size"], row[key]) for row in points])
            told = [", ".join(f"{row[name]:{form}}" for row in points) for name, form in (("size", ","), (key, ".3g"))]
            lines.append(f"| {curve} | {PARTS[part][1]} | {told[0]} | {told[1]} | {'–' if steep is None else steep} |")
        lines.append("")
    return "\n".join(lines)


def draw(curves: dict[tuple[str, str], list[dict[str, Any]]], key: str, title: str, picture: Path) -> None:
    """A panel for each part, both axes logarithmic, with a straight line of steepness 1 for the eye."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6), layout="constrained")
    figure.suptitle(title)
    for place, part in enumerate(PARTS, 1):
        axes = figure.add_subplot(2, 3, place)
        axes.set(xscale="log", yscale="log", xlabel=PARTS[part][1])
        for (owner, curve), rows in curves.items():
            points = sorted((row["size"], row[key]) for row in rows if row[key] > 0)
            if owner == part and points:
                axes.plot(*zip(*points, strict=True), marker="o", label=curve)
        if axes.lines:
            x, y = PARTS[part][2][0], axes.get_ylim()[0]
            axes.axline((x, y), (10 * x, 10 * y), color="grey", linewidth=0.7, linestyle=":")
            axes.legend(fontsize=7)
    figure.savefig(picture, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/figures/growth"), help="OUT.md and OUT-*.png")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure [all]")
    parser.add_argument("--most", type=int, default=10**6, help="the largest size [1000000]")
    parser.add_argument("--rows", type=Path, help="keeps the points; those in it are not measured again")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        return measured(given.one[0], int(given.one[1]))
    lines = given.rows.read_text().splitlines() if given.rows and given.rows.exists() else []
    for part in given.parts:
        there = {row["size"] for row in map(json.loads, lines) if row["part"] == part}
        for size in sorted({size for size in PARTS[part][2] if size <= given.most} - there):
            command = [sys.executable, "-m", "benchmarks.growth", "--one", part, str(size)]
            told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            sys.stderr.write(told)
            lines += told.splitlines()
            if given.rows:
                given.rows.write_text("\n".join(lines) + "\n")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.with_suffix(".md").write_text(page(list(map(json.loads, lines)), given.out))


if __name__ == "__main__":
    main()
