"""A research week in small: days of `generate` with faults and kills, pairs, two trainings, `infer`, `compare`.

    python -m benchmarks.research_week --out runs/week [--minutes 60]

An hour has 5,000 questions, in seven days over three types of index. The provider is a double that takes its time and
fails as providers do: refusals for a while, resets, stalls, torn and senseless replies; a few questions trip its filter
each time. `generate` and `infer` are killed (SIGKILL, Ctrl-C, or one after the other) at random and started again until
they end. The viewer is open on all runs, and asked all the while. Each day is grown a second time without faults or
kills: the trees must be the same but for rounding, and the provider must have been paid once for each call, but for
those that were in flight at a kill. In the end every file is opened.
"""

from __future__ import annotations

import hashlib
import itertools
import json
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
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.loads import (
    TOKEN,
    Load,
    apart,
    as_options,
    asking,
    begin,
    built,
    done,
    loading,
    options,
    p95,
    resident,
    slope,
)  # fmt: skip
from steprag import atlas
from steprag.batch.journal import JOURNAL
from steprag.engines.launch import free_port
from steprag.records.inputs import read_questions
from steprag.records.jsonl import read_records, write_records
from steprag.records.training_rows import Pair, Trajectory
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
SCORE = re.compile(r'"score":[0-9.e-]+')
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
    with apart(provider, questions, log, calm) as port:
        keys = asking(f"http://127.0.0.1:{port}", AT_ONCE) | {"policy.timeout": str(TIMEOUT)}
        yield as_options(keys)


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


def disturbed(load: Load, draw: random.Random, hurts: int, out: Path, *argv: object) -> Counter[str]:
    """Starts a command until it has gone through and only the filter's questions failed; what happened meanwhile."""
    became = Counter[str]()
    for _ in range(hurts + 8):
        process = begin(load.folder / "commands.log", *argv)
        try:
            code = process.wait(draw.uniform(1, 20 + 1.2 * load.minutes) if hurts else None)
        except subprocess.TimeoutExpired:
            hurts -= 1
            became[hurt(process, draw)] += 1
            continue
        became[f"ended with {code}"] += 1
        if code not in (DONE, PARTIAL):
            break
        again = sum(one.reason != "ContentFiltered" for one in read_records(out / "failures.jsonl", Failure))
        if not again:
            return became
        became["questions asked again, their retries used up"] += again
    raise SystemExit(f"{argv[0]} does not go through, {dict(became)}: commands.log")


class Watcher(threading.Thread):
    """The viewer on the week's folder, asked for its runs, rows and records again and again."""

    def __init__(self, load: Load) -> None:
        super().__init__(daemon=True)
        self.over, self.became, self.took = threading.Event(), Counter[str](), list[float]()
        self.memory, self._load, self._port = list[tuple[float, float]](), load, free_port("127.0.0.1")

    def run(self) -> None:
        runs = self._load.folder / "runs"
        while not [*runs.glob("*/manifest.json")] and not self.over.wait(1):
            pass  # the viewer wants a run
        self.process = begin(self._load.folder / "view.log", "view", runs, "--port", self._port)
        draw, headers = random.Random(0), {"Authorization": f"Bearer {TOKEN}"}
        with httpx2.Client(base_url=f"http://127.0.0.1:{self._port}", headers=headers, timeout=60) as client:
            while not self.over.wait(1):
                try:
                    for run in self._ask(client, "runs")["runs"][-2:]:
                        kind = draw.choice(("trees", "predictions", "pairs"))
                        if rows := self._ask(client, f"rows/{kind}", run=run["key"]).get("rows"):
                            self._ask(client, f"record/{kind}", run=run["key"], line=draw.choice(rows)["line"])
                        self._ask(client, "series", run=run["key"])
                except httpx2.HTTPError as error:
                    self.became[type(error).__name__] += bool(self.took)  # before, it is still starting
                self.memory.append((self._load.seconds / 60, resident(self.process.pid)))

    def _ask(self, client: httpx2.Client, path: str, **asked: Any) -> dict[str, Any]:
        start = time.perf_counter()
        reply = client.get(f"/api/{path}", params=asked)
        if reply.status_code == 404:  # that run has no such file
            return {}
        self.became[str(reply.status_code)] += 1
        self.took.append(time.perf_counter() - start)
        return reply.json()

    def close(self) -> None:
        self.over.set()
        self.join()
        fine = self.process.poll() is None and {*+self.became} == {"200"}
        self._load.row("viewer: answers while runs grew", dict(+self.became), "200 each", fine)
        rise, error = slope([self.memory[len(self.memory) // 4 :]])
        self._load.row("viewer: p95, ms; MiB; MiB a minute", f"{1000 * p95(self.took):.0f}; {self.memory[-1][1]:.0f}; "
                       f"{rise:+.2f} ± {error:.2f}")  # fmt: skip
        self.process.terminate()
        self.process.wait()


def unanswered(run: Path, questions: Sequence[Question]) -> int:
    """Questions without exactly one tree or failure, and results of none."""
    counts = Counter(tree.question.id for tree in read_records(run / "trees.jsonl", Tree))
    counts.update(failure.id for failure in read_records(run / "failures.jsonl", Failure))
    return sum(counts.pop(one.id, 0) != 1 for one in questions) + len(counts)


def unlike(run: Path, other: Path) -> tuple[int, int]:
    """How many trees another run has not to the byte: by more than scores, and by scores of passages alone, since a
    query's vector depends on its batch by rounding.
    """
    mine, theirs = ({*(folder / "trees.jsonl").read_text().splitlines()} for folder in (run, other))
    bare, left = {SCORE.sub("", line) for line in theirs}, mine - theirs
    more = sum(SCORE.sub("", line) not in bare for line in left)
    return more, len(left) - more


def week(load: Load) -> None:
    draw, log = random.Random(0), load.folder / "commands.log"
    size = max(4, round(QUESTIONS * load.minutes / 60 / DAYS))
    indexes = built(load, TYPES)
    for name in ("runs", "calm", "replayed"):
        (load.folder / name).mkdir()
    watcher = Watcher(load)
    watcher.start()
    pool = itertools.cycle([*read_questions(atlas.path("train")), *read_questions(atlas.path("test"))])
    days, happened, total = list[Path](), Counter[str](), Counter[str]()
    for day in range(DAYS):
        if day >= len(TYPES) and load.left(0.7) < 0:
            break
        file = load.folder / f"day{day + 1}.jsonl"
        mine = [replace(one, id=f"{file.stem}-{place}", question=f"{one.question} ({day * size + place})")
                for place, one in enumerate(itertools.islice(pool, size))]  # fmt: skip
        write_records(file, mine)
        argv = ["generate", "--questions", file, "--index", indexes[day % len(TYPES)], "--search.preset", "fast",
                "--seed", day]  # fmt: skip
        days.append(load.folder / "runs" / file.stem)
        with provided(file, paid := file.with_suffix(".paid"), calm=False) as at:
            happened += disturbed(load, draw, 1 + round(load.minutes / 20), days[-1], *argv, *at, "--out", days[-1])
        with provided(file, once := file.with_suffix(".calm"), calm=True) as at:
            begin(log, *argv, *at, "--out", load.folder / "calm" / file.stem).wait()
        made, wanted = (Counter(kept.read_text().splitlines()) for kept in (paid, once))
        other, rounded = unlike(days[-1], load.folder / "calm" / file.stem)
        with closing(sqlite3.connect(days[-1] / JOURNAL)) as db:
            lost = db.execute("SELECT COUNT(*) FROM lost").fetchone()[0]
        total += Counter(asked=size, calls=wanted.total(), twice=(made - wanted).total(), lost=lost, other=other,
                         rounded=rounded, missing=len(wanted - made), wrong=unanswered(days[-1], mine))  # fmt: skip
        load.say(f"{file.stem}: {dict(total)}, {dict(happened)}")
    kills = happened["kill -9"] + happened["Ctrl-C, kill -9"]
    load.row("questions searched", f"{total['asked']:,} in {len(days)} days over {len(TYPES)} types of index")
    load.row("what happened to these runs", ", ".join(f"{count} × {what}" for what, count in sorted(happened.items())))
    load.row("questions without one tree or told failure", total["wrong"], "0", not total["wrong"])
    load.row("calls paid for", f"{total['calls']:,}, of them twice {total['twice']}; missing {total['missing']}",
             f"twice at most the {total['lost']} that journals tell as lost",
             total["twice"] <= total["lost"] and not total["missing"])  # fmt: skip
    load.row("calls lost in kills", total["lost"], f"at most {kills} × {AT_ONCE}", total["lost"] <= kills * AT_ONCE)
    load.row("trees that an undisturbed run grew otherwise; with other last digits of a score alone",
             f"{total['other']}; {total['rounded']}", "0", not total["other"])  # fmt: skip
    trained(load, days)
    inferred(load, draw, indexes)
    watcher.close()
    opened(load, days, indexes)


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


def inferred(load: Load, draw: random.Random, indexes: Sequence[Path]) -> None:
    """Inference with faults and kills over each index, and with the trained model; their comparison."""
    runs, log, asked = load.folder / "runs", load.folder / "commands.log", load.folder / "dev.jsonl"
    write_records(asked, read_questions(atlas.path("dev"))[: max(8, round(2.5 * load.minutes))])
    outs = [runs / f"infer-{name}" for name in (*TYPES, "dpo")]
    with provided(asked, load.folder / "dev.paid", calm=False) as at:
        for index, out in zip(indexes, outs, strict=False):
            disturbed(load, draw, 1, out, "infer", "--questions", asked, "--index", index, "--out", out, *at)
    begin(log, "infer", "--questions", asked, "--index", indexes[0], "--out", outs[-1], "--model", runs / "dpo",
          "--policy.engine", "transformers", "--policy.max_tokens", 16).wait()  # fmt: skip
    there = [len(list(read_records(out / "predictions.jsonl", Prediction))) for out in outs]
    load.row("predictions of three indexes, and of the trained model", there, "equal", len({*there}) == 1)
    compared = done(log, "compare", *outs, "--force", "--out", load.folder / "compared")  # of several indexes
    load.row("runs compared", len(outs), "a report", compared and (load.folder / "compared/compare.md").is_file())


def opened(load: Load, days: Sequence[Path], indexes: Sequence[Path]) -> None:
    """Opens every file of the week once more: by its manifest, by the viewer, by a replay of the calls."""
    log, runs = load.folder / "commands.log", load.folder / "runs"
    folders = [*(file.parent for file in runs.rglob("manifest.json")), *indexes]
    bad = [run.name for run in folders if not done(log, "check", run)]
    for day in days:
        again = load.folder / "replayed" / day.name
        begin(log, "replay", "--trees", day, "--out", again).wait()
        bad += [f"{day.name} replayed"] if any(unlike(day, again)) else []
    bad += [] if done(log, "view", runs, "--out", load.folder / "week.html") else ["view"]
    load.row("folders checked, replayed and viewed", f"{len(folders)}; bad: {len(bad)} {bad}", "none bad", not bad)


if __name__ == "__main__":
    with loading("A research week in small", options(__doc__)) as running:
        week(running)
    sys.exit(running.status)
