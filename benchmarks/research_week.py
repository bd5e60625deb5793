"""A research week in small: days of `generate` with faults and kills, pairs, two trainings, `infer`, `compare`.

    python -m benchmarks.research_week --out runs/week [--minutes 60]

An hour has 5,000 questions, in seven days over three types of index. The provider is a double that takes its time and
fails as providers do: refusals for a while, resets, stalls, torn and senseless replies; a few questions trip its filter
each time. `generate` and `infer` are killed (SIGKILL, Ctrl-C, or one after the other) at random and started again until
they end. The viewer is open on all runs, and asked all the while. Each day is grown a second time without faults or
kills: the trees must be the same bytes, and the provider must have been paid once for each call, but for those that
were in flight at a kill. In the end every file is opened.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import multiprocessing
import random
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.loads import TOKEN, Load, atlas_corpus, begin, done, loading, mib_of, options, quantile, slope
from benchmarks.serve_load import free_port
from steprag import atlas
from steprag.batch.journal import JOURNAL
from steprag.records.inputs import read_questions
from steprag.records.jsonl import read_records, write_records
from steprag.records.training_rows import Pair, Trajectory
from steprag.runs.run import read_manifest
from steprag.tree import Failure, Tree
from steprag.types import Prediction, Question
from tests.fakes import BY_ROLLOUTS, answer, chat_reply, evidence, listening, query
from tests.models import make_llama
from tests.test_hostile_endpoints import Faulty, Resetting
from tests.training_parts import FAST, moved

QUESTIONS, DAYS = 5_000, 7
TYPES = ("flat", "hnsw-sq8", "ivf-sq8")
AT_ONCE = 32
SHARE, STALL, TIMEOUT = 0.08, 30.0, 25.0
FILTERED = re.compile(r"\(\d*77\)")
"""Questions that the provider's filter takes, by their number."""
HURTS = {"kill -9": 0.5, "Ctrl-C": 0.3, "Ctrl-C, kill -9": 0.2}
DONE, PARTIAL = 0, 3
"""Exit codes of a run that went through."""


class Student:
    """A policy of middling skill on any question of a file: searches, reads, knows the answer every other time."""

    def __init__(self, questions: Sequence[Question]) -> None:
        self._gold = {one.question: one.golden_answers[0] for one in questions}

    def __call__(self, prompt: str, draw: int) -> str:
        asked = prompt.partition("Question: ")[2].partition("\n")[0]
        gold, last = self._gold.get(asked, "none"), prompt.rsplit("\n", 1)[-1]
        if last == "Read the passages.":
            lines = [line for line in prompt.rpartition("</query>")[2].split("\n")[1:-1] if ": " in line]
            found = lines[draw % len(lines)].split(": ", 1)[1] if lines else "nothing"
            return evidence(re.split(r"[.;<]", found)[0])
        guess = answer(gold if draw % 2 else asked.split()[-2])
        if last == "Answer now." or draw % 7 > 4:
            return guess
        return query(" ".join(asked.split()[draw % 3 : 8 + draw % 5])) if draw % 7 else "I do not know."


def provider(port: int, questions: Path, log: Path, calm: bool) -> None:
    """Serves the double until it is killed. `log` gets a line for each call that was answered well, and so is paid."""
    reply, draws = chat_reply(Student(read_questions(questions))), random.Random(port)
    paid = log.open("a", buffering=1)

    def answered(request: dict[str, Any]) -> tuple[int, object]:
        if FILTERED.search(request["messages"][-1]["content"].split("\n")[0]):
            said = "The response was filtered due to the prompt triggering the content management policy."
            return 400, {"error": {"message": said, "type": None, "param": "prompt", "code": "content_filter"}}
        return reply(request)

    class Provider(Faulty):
        share, stall, rng, answer = 0.0 if calm else SHARE, STALL, draws, staticmethod(answered)

        def note(self, request: dict[str, Any], fault: str) -> None:
            if not calm:
                time.sleep(min(2.0, draws.lognormvariate(-1.2, 0.6)))
            if fault == "none" and answered(request)[0] == 200:
                what = json.dumps([request["messages"], request["seed"], request.get("n")])
                paid.write(f"{hashlib.sha256(what.encode()).hexdigest()[:31]}\n")

    with listening(Provider, Resetting, port):
        signal.pause()


@contextmanager
def provided(questions: Path, log: Path, *, calm: bool) -> Iterator[list[str]]:
    """The double in a process of its own; the options that lead to it."""
    port = free_port()
    process = multiprocessing.get_context("spawn").Process(target=provider, args=(port, questions, log, calm))
    process.start()
    try:
        yield ["--policy.base_url", f"http://127.0.0.1:{port}/v1", "--policy.model", "double",
               "--policy.engine", "openai", "--policy.concurrency", str(AT_ONCE),
               "--policy.timeout", str(TIMEOUT)]  # fmt: skip
    finally:
        process.kill()
        process.join()


def hurt(process: subprocess.Popen[bytes], draw: random.Random) -> str:
    """Ends a run as people and machines do; how."""
    (how,) = draw.choices([*HURTS], [*HURTS.values()])
    if how != "kill -9":
        process.send_signal(signal.SIGINT)
        time.sleep(draw.uniform(0.0, 1.0) if how != "Ctrl-C" else 0)
    if how != "Ctrl-C":
        process.kill()
    process.wait()
    return how


def disturbed(load: Load, draw: random.Random, most: int, out: Path, *argv: object) -> Counter[str]:
    """Starts a command until it has gone through and only the filter's questions failed; what happened meanwhile."""
    became: Counter[str] = Counter()
    while True:
        process = begin(load.folder / "commands.log", *argv)
        try:
            code = process.wait(
                draw.uniform(1, 20 + 1.2 * load.minutes) if sum(map(became.get, HURTS, [0] * 3)) < most else None
            )
        except subprocess.TimeoutExpired:
            became[hurt(process, draw)] += 1
            continue
        became[f"ended with {code}"] += 1
        if code not in (DONE, PARTIAL) or became[f"ended with {code}"] > 6:
            raise SystemExit(f"{argv[0]} ended with {code} once more: commands.log")
        open_still = [one for one in read_records(out / "failures.jsonl", Failure) if one.reason != "ContentFiltered"]
        if not open_still:
            return became
        became["questions asked again after their retries were used up"] += len(open_still)


class Watcher(threading.Thread):
    """The viewer on the week's folder, asked for its runs, trees and rows again and again."""

    def __init__(self, load: Load) -> None:
        super().__init__(daemon=True)
        self.over, self.became, self.took = threading.Event(), Counter[str](), list[float]()
        self.memory: list[tuple[float, float]] = []
        self._load, self._port = load, free_port()
        log = load.folder / "view.log"
        self.process = begin(log, "view", load.folder / "runs", "--port", self._port)

    def run(self) -> None:
        draw = random.Random(0)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with httpx2.Client(base_url=f"http://127.0.0.1:{self._port}", headers=headers, timeout=60) as client:
            while not self.over.wait(1):
                try:
                    runs = self._ask(client, "/api/runs")["runs"]
                    for run in draw.sample(runs, min(2, len(runs))):
                        for kind in ("trees", "predictions", "pairs"):
                            rows = self._ask(client, f"/api/rows/{kind}", run=run["key"]).get("rows", ())
                            if rows:
                                line = draw.choice(rows)["line"]
                                self._ask(client, f"/api/record/{kind}", run=run["key"], line=line)
                        self._ask(client, "/api/series", run=run["key"])
                except httpx2.HTTPError as error:
                    self.became[type(error).__name__] += bool(self.took)  # it may still be starting
                self.memory.append((self._load.seconds / 60, mib_of(self.process.pid)))

    def _ask(self, client: httpx2.Client, path: str, **asked: Any) -> dict[str, Any]:
        start = time.perf_counter()
        reply = client.get(path, params=asked)
        self.became[str(reply.status_code)] += 1
        if reply.status_code == 200:
            self.took.append(time.perf_counter() - start)
        elif reply.status_code != 404:  # 404: that run has no such file
            self._load.say(f"view: {path} {asked}: {reply.status_code} {reply.text[:200]}")
        return reply.json() if reply.status_code == 200 else {}

    def close(self) -> None:
        self.over.set()
        self.join()
        gone = self.process.poll()
        self.process.terminate()
        self.process.wait()
        faults = {what: count for what, count in self.became.items() if what not in ("200", "404")}
        self._load.row(
            "viewer: answers while runs grew", f"{self.became['200']:,}; p95 {1000 * quantile(self.took, 0.95):.0f} ms"
        )
        self._load.row("viewer: faults", faults or 0, "0", not faults and gone is None)
        rise, error = slope([self.memory[len(self.memory) // 4 :]])
        self._load.row(
            "viewer: memory, MiB a minute", f"{rise:+.2f} ± {error:.2f} (at the end {self.memory[-1][1]:.0f} MiB)"
        )


def tally(log: Path) -> Counter[str]:
    return Counter(log.read_text().splitlines())


def lost_calls(run: Path) -> int:
    """Calls of which the journal says that they were in flight at a kill."""
    with sqlite3.connect(run / JOURNAL) as db:
        return db.execute("SELECT COUNT(*) FROM lost").fetchone()[0]


def results(run: Path, questions: Sequence[Question]) -> int:
    """Questions without exactly one tree or failure, and results of none."""
    found = [tree.question.id for tree in read_records(run / "trees.jsonl", Tree)]
    found += [failure.id for failure in read_records(run / "failures.jsonl", Failure)]
    counts = Counter(found)
    return sum(counts[one.id] != 1 for one in questions) + len(counts.keys() - {one.id for one in questions})


def week(load: Load) -> None:
    draw, runs, calm_runs = random.Random(0), load.folder / "runs", load.folder / "calm"
    runs.mkdir()
    calm_runs.mkdir()
    log = load.folder / "commands.log"
    corpus = atlas_corpus(load.folder, load.minutes)
    for kind in TYPES:
        more = ["--vectors_from", load.folder / TYPES[0]] if kind != TYPES[0] else ["--hybrid"]
        if not done(log, "index", "build", "--corpus", corpus, "--out", load.folder / kind, "--type", kind, *more):
            raise SystemExit("index build failed: commands.log")
    load.start()
    watcher = Watcher(load)
    watcher.start()
    pool = itertools.cycle([*read_questions(atlas.path("train")), *read_questions(atlas.path("test"))])
    size = max(4, round(QUESTIONS * load.minutes / 60 / DAYS))
    days: list[Path] = []
    happened, paid, calls, lost, wrong, other, asked = Counter[str](), 0, 0, 0, 0, 0, 0
    for day in range(DAYS):
        if day >= len(TYPES) and load.left(0.7) < 0:
            load.say(f"no time for day {day + 1}")
            break
        name = f"day{day + 1}"
        mine = [replace(one, id=f"{name}-{number}", question=f"{one.question} ({day * size + number})")
                for number, one in enumerate(itertools.islice(pool, size))]  # fmt: skip
        file = load.folder / f"{name}.jsonl"
        write_records(file, mine)
        argv = ["generate", "--questions", file, "--index", load.folder / TYPES[day % len(TYPES)],
                "--search.preset", "fast", "--seed", day]  # fmt: skip
        out, calm = runs / name, calm_runs / name
        logs = load.folder / f"{name}.paid", load.folder / f"{name}.calm"
        with provided(file, logs[0], calm=False) as at:
            happened += disturbed(load, draw, 1 + round(load.minutes / 20), out, *argv, *at, "--out", out)
        with provided(file, logs[1], calm=True) as at:
            begin(log, *argv, *at, "--out", calm).wait()
        twice = tally(logs[0]) - tally(logs[1])
        asked, paid, calls = asked + size, paid + twice.total(), calls + tally(logs[1]).total()
        lost += lost_calls(out)
        wrong += results(out, mine) + len(tally(logs[1]) - tally(logs[0]))
        other += (out / "trees.jsonl").read_bytes() != (calm / "trees.jsonl").read_bytes()
        days.append(out)
        load.say(f"{name}: {size} questions, {tally(logs[1]).total()} calls, {twice.total()} twice; {dict(happened)}")
    kills = happened["kill -9"] + happened["Ctrl-C, kill -9"]
    load.row("questions searched", f"{asked:,} in {len(days)} days over {len(TYPES)} types of index")
    load.row("kills and starts", ", ".join(f"{count} × {what}" for what, count in sorted(happened.items())))
    load.row("questions without one tree or told failure; calls of no one", wrong, "0", wrong == 0)
    load.row("calls paid for", f"{calls:,}, and {paid} twice", f"twice at most the {lost} that journals tell as lost",
             paid <= lost)  # fmt: skip
    load.row("calls in flight at kills", lost, f"at most {kills} kills × {AT_ONCE}", lost <= kills * AT_ONCE)
    load.row("days whose trees differ from the undisturbed run's", other, "0", other == 0)
    trained(load, days)
    inferred(load, draw)
    watcher.close()
    opened(load, days)


def trained(load: Load, days: Sequence[Path]) -> None:
    """Pairs, and two trainings that are killed once each; the same without kills."""
    runs, log = load.folder / "runs", load.folder / "commands.log"
    good = done(log, "pairs", "--trees", *days, "--out", runs / "pairs", *BY_ROLLOUTS)
    pairs = [*read_records(runs / "pairs/pairs.train.jsonl", Pair)]
    sft = [*read_records(runs / "pairs/sft.train.jsonl", Trajectory)]
    load.row("pairs and supervised steps", f"{len(pairs):,} and {len(sft):,}", "some", good and bool(pairs and sft))
    model = make_llama(load.folder / "model", [json.dumps(list(row.prompt)) for row in sft[:200]])
    different = 0
    for stage in ("sft", "dpo"):
        argv = ["train", "--stage", stage, "--model", model, "--pairs", runs / "pairs", *FAST, "--max_steps", 40,
                "--save_steps", 10]  # fmt: skip
        process, out = begin(log, *argv, "--out", runs / stage), runs / stage
        while process.poll() is None and not [*out.glob("checkpoints/checkpoint-*0/trainer_state.json")]:
            time.sleep(0.05)
        process.kill()
        process.wait()
        ended = done(log, *argv, "--out", out) and done(log, *argv, "--out", load.folder / "calm" / stage)
        different += not ended or bool(moved(out, load.folder / "calm" / stage))
    load.row("trainings whose weights differ from those of one without a kill", different, "0 of 2", different == 0)


def inferred(load: Load, draw: random.Random) -> None:
    """Inference with faults and kills over each index, and with the trained model; their comparison."""
    runs, log, asked = load.folder / "runs", load.folder / "commands.log", load.folder / "dev.jsonl"
    write_records(asked, read_questions(atlas.path("dev"))[: max(8, round(2.5 * load.minutes))])
    with provided(asked, load.folder / "infer.paid", calm=False) as at:
        for kind in TYPES:
            out = runs / f"infer-{kind}"
            disturbed(load, draw, 1, out, "infer", "--questions", asked, "--index", load.folder / kind,
                                  "--out", out, *at)  # fmt: skip
    argv = ["infer", "--questions", asked, "--index", load.folder / TYPES[0], "--policy.engine", "transformers",
            "--policy.max_tokens", 16]  # fmt: skip
    code = begin(log, *argv, "--model", runs / "dpo", "--out", runs / "infer-dpo").wait()
    told = [run for run in runs.glob("infer-*")]
    there = [sum(1 for _ in read_records(run / "predictions.jsonl", Prediction)) for run in told]
    load.row("predictions of three indexes, and of the trained model", there,
             "each question's", code in (DONE, PARTIAL) and len({*there}) == 1)  # fmt: skip
    compared = done(log, "compare", *sorted(told), "--out", load.folder / "compared")
    load.row("runs compared", len(told), "a report", compared and (load.folder / "compared/compare.md").is_file())


def opened(load: Load, days: Sequence[Path]) -> None:
    """Opens every file of the week once more: by its manifest, by the viewer, by a replay of the calls."""
    runs, log = load.folder / "runs", load.folder / "commands.log"
    folders = [file.parent for file in runs.rglob("manifest.json")]
    bad = [run.name for run in [*folders, *(load.folder / kind for kind in TYPES)] if not done(log, "check", run)]
    bad += [run.name for run in folders if read_manifest(run)["status"] not in ("done", "partial")]
    for day in days:
        again = load.folder / "replayed" / day.name
        same = done(log, "replay", "--trees", day, "--out", again)
        if not same or (again / "trees.jsonl").read_bytes() != (day / "trees.jsonl").read_bytes():
            bad.append(f"{day.name} replayed")
    if not done(log, "view", runs, "--out", load.folder / "week.html"):
        bad.append("view")
    load.row(
        "folders checked, replayed and viewed",
        f"{len(folders) + len(TYPES)}; bad: {bad or 'none'}",
        "none bad",
        not bad,
    )


if __name__ == "__main__":
    with loading("A research week in small", options(__doc__)) as running:
        week(running)
    sys.exit(running.status)
