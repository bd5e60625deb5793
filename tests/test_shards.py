"""Many writers and parts of a run: journals absorbed, shards merged, budgets shared out."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import sqlite3
import threading
import time
from contextlib import closing
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from apps.commands import main
from data_generation.config import GenerateConfig
from steprag.batch import database
from steprag.batch.database import Database, absorb, absorb_slots, slot_journal
from steprag.batch.journal import JOURNAL, Journal
from steprag.batch.shards import Share, share_of
from steprag.config.load import load_config
from steprag.errors import ConfigError, JournalError
from steprag.records.jsonl import read_json, write_json
from steprag.runs.run import read_manifest
from steprag.types import Completion, Question, Sample, Usage
from tests.fakes import Endpoint, Start, chat_reply, serve
from tests.test_journal import QUESTIONS, Counted, generate

SAMPLE = Sample((Completion("x", "stop"),), Usage(1, 2, 3))
TABLES = {
    "calls": "question, role, state, seed, n, reply, usage",
    "searches": "question, query, top_k, found",
    "passages": "id, title, text",
    "questions": "id, row",
}


def content(run: Path) -> dict[str, list[tuple[object, ...]]]:
    """What a run's journal holds, whatever the order in which calls of different questions were made."""
    with closing(sqlite3.connect(run / JOURNAL)) as db:
        held = {
            table: db.execute(f"SELECT {columns} FROM {table} ORDER BY {columns}").fetchall()
            for table, columns in TABLES.items()
        }
        held["in order"] = db.execute("SELECT id FROM questions ORDER BY rowid").fetchall()
        return held


def note(path: Path, question: str, *, seed: int = 0, reply: bool = True) -> None:
    """A journal in which a call of a question was made, and answered or not."""
    journal = Journal(path, exclusive=True)
    journal.question(Question(question, "Who?", ("she",)))
    journal.sent(question, ("policy", "state", seed, 1))
    if reply:
        journal.replied(question, ("policy", "state", seed, 1), SAMPLE)
    journal.close()


def hold(path: Path, begun: Event) -> None:
    journal = Journal(path, exclusive=True)
    journal.sent("q0", ("policy", "state", 7, 1))
    begun.set()
    time.sleep(60)


def test_what_slots_kept_is_the_run_s_and_lost_calls_are_counted_once(tmp_path: Path) -> None:
    """A part that has grown is absorbed again."""
    first, second = slot_journal(tmp_path, "a", 0), slot_journal(tmp_path, "a", 1)
    note(first, "q1")
    note(first, "q1", seed=1, reply=False)
    note(second, "q0")
    copy = shutil.copy(first, tmp_path / "copy.sqlite")
    absorb_slots(tmp_path, ["q0", "q1"])
    assert not list(tmp_path.glob("calls-*")), "absorbed journals are left behind"
    shutil.copy(copy, first)  # a kill came before the file was removed
    absorb_slots(tmp_path, ["q0", "q1"])
    with closing(Journal(tmp_path / JOURNAL)) as journal:
        assert [question.id for question in journal.questions()] == ["q0", "q1"]
        assert [len(journal.calls_of(each)) for each in ("q0", "q1")] == [1, 1]
        assert (journal.lost, journal.spending.usage) == (1, Usage(2, 4, 6))
    part = tmp_path / "part.sqlite"
    note(part, "q0", reply=False)
    for seed in range(2):
        note(part, "q0", seed=seed)
        note(part, "q0", seed=9, reply=False)
        with closing(Database(tmp_path / "whole.sqlite")) as into:
            absorb(into, part, "0/2")
            assert into.rows("SELECT COUNT(*) FROM calls") == [(seed + 1,)]
            assert into.rows("SELECT COUNT(*) FROM lost") == [(seed + 2,)]


def test_a_journal_that_another_process_has_is_waited_for_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once that process is dead, it is taken over."""
    file, context = slot_journal(tmp_path, "a", 0), multiprocessing.get_context("fork")
    note(file, "q0")
    begun = context.Event()
    holder = context.Process(target=hold, args=(file, begun))
    holder.start()
    assert begun.wait(30)
    assert not file.with_name(f"{file.name}-shm").exists(), "memory is shared with other processes"
    with monkeypatch.context() as patch:
        patch.setattr(database, "BUSY_TIMEOUT", 0.1)
        with pytest.raises(JournalError, match=r"calls-a-000\.sqlite: another process has it open"):
            absorb_slots(tmp_path, ())
    end = threading.Timer(0.5, holder.kill)
    end.start()
    with closing(Journal(file, exclusive=True)) as journal:
        assert not holder.is_alive(), "two processes had the file open"
        assert (journal.lost, len(journal.calls_of("q0"))) == (1, 1)
    end.join()
    holder.join()


def test_calls_of_slots_that_are_gone_are_not_paid_again(tmp_path: Path) -> None:
    """Slots end, one of them in the middle; the run goes on in this process, then beside other slots."""
    whole, run, log = tmp_path / "whole", tmp_path / "run", tmp_path / "log"
    generate(whole, Counted())
    generate(run, Counted())
    shutil.move(run / JOURNAL, slot_journal(run, "a", 3))
    (run / "trees.jsonl").unlink()
    log.touch()
    generate(run, Counted(log=log))
    assert (run / "trees.jsonl").read_bytes() == (whole / "trees.jsonl").read_bytes()
    assert not log.read_text(), "calls were made again"
    with (
        closing(Journal(run / JOURNAL, reading=True)) as base_journal,
        closing(Journal(slot_journal(run, "b", 0), exclusive=True, base_journal=base_journal)) as slot,
    ):
        assert slot.question(QUESTIONS[0])._known.keys() == dict(base_journal.calls_of("q0")).keys()


@pytest.fixture
def start(start: Start) -> Start:
    """As everywhere, with a smaller search."""
    small = ("--search.rollouts", "3", "--search.extra", "0")
    return lambda command, *more, **given: start(command, *more, *(small if command == "generate" else ()), **given)


@pytest.mark.parametrize(("command", "file"), [("generate", "trees.jsonl"), ("infer", "predictions.jsonl")])
def test_merged_shards_are_the_run_that_one_process_makes(
    start: Start, endpoint: Endpoint, tmp_path: Path, command: str, file: str
) -> None:
    assert start(command, "whole") == 0
    asked = len(endpoint.requests)
    for place in range(3):
        assert start(command, f"shard-{place}", "--shard", f"{place}/3") == 0
    assert len(endpoint.requests) == 2 * asked
    merged = [str(tmp_path / f"shard-{place}") for place in (2, 0, 1)]
    assert main(["merge", str(tmp_path / "merged"), *merged]) == 0
    whole, one = tmp_path / "whole", tmp_path / "merged"
    for name in (file, f"{file}.index", "failures.jsonl"):
        assert (one / name).read_bytes() == (whole / name).read_bytes()
    assert content(one) == content(whole)
    for key in ("identity", "status", "counts", "usage", "spent", "calls_lost"):
        assert read_manifest(one)[key] == read_manifest(whole)[key]
    if command == "infer":
        timeless = [{**read_json(run / "metrics.json"), "seconds": None} for run in (whole, one)]
        assert timeless[0] == timeless[1]
    else:
        assert main(["replay", "--trees", str(one), "--out", str(tmp_path / "again")]) == 0
        assert (tmp_path / "again" / file).read_bytes() == (whole / file).read_bytes()
    assert main(["run", "check", str(one), *merged]) == 0, "files are not those that the manifests list"
    (one / file).unlink()
    assert start(command, "merged") == 0, "the merged run does not go on"
    assert (one / file).read_bytes() == (whole / file).read_bytes()
    assert len(endpoint.requests) == 2 * asked, "the merged run paid again"


def test_shards_that_are_not_at_their_end_are_merged_and_go_on(
    start: Start, endpoint: Endpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start("generate", "whole") == 0
    asked = len(endpoint.requests)
    assert start("generate", "a", "--shard", "0/2") == 0
    assert start("generate", "b", "--shard", "1/2", "--budget.calls", "12") == 4
    shards = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert main(["merge", str(tmp_path / "merged"), *shards]) == 3
    assert "1/2 did not come to their end" in capsys.readouterr().err
    assert read_manifest(tmp_path / "merged")["status"] == "interrupted"
    assert start("generate", "b", "--shard", "1/2") == 0
    for _ in range(2):
        assert main(["merge", str(tmp_path / "merged"), *shards]) == 0
    assert read_manifest(tmp_path / "merged")["spent"] == read_manifest(tmp_path / "whole")["spent"]
    assert (tmp_path / "merged/trees.jsonl").read_bytes() == (tmp_path / "whole/trees.jsonl").read_bytes()
    events = [json.loads(line)["event"] for line in (tmp_path / "merged/metrics.jsonl").read_text().splitlines()]
    assert events.count("done") == 12
    assert len(endpoint.requests) == 2 * asked


def test_failed_questions_of_shards_are_the_merged_run_s(start: Start, tmp_path: Path) -> None:
    def failing(request: dict[str, object]) -> tuple[int, object]:
        bad = any(f"({n})" in json.dumps(request["messages"]) for n in (3, 4))
        return (400, {"error": {"message": "no"}}) if bad else chat_reply()(request)

    with serve(failing) as broken:
        for place in range(2):
            assert start("infer", str(place), "--shard", f"{place}/2", at=broken) == 3
    assert main(["merge", str(tmp_path / "merged"), str(tmp_path / "0"), str(tmp_path / "1")]) == 3
    failed = [json.loads(line)["id"] for line in (tmp_path / "merged/failures.jsonl").read_text().splitlines()]
    assert failed == ["q3", "q4"]
    assert read_json(tmp_path / "merged/metrics.json")["failed"] == 2
    assert read_manifest(tmp_path / "merged")["status"] == "partial"
    assert start("infer", "merged") == 0


def test_what_is_not_one_run_is_not_merged(start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = {name: str(tmp_path / name) for name in ("a", "b", "third", "seeded", "twin", "plain", "served", "merged")}
    assert start("infer", "a", "--shard", "0/2") == start("infer", "b", "--shard", "1/2") == 0
    assert start("infer", "third", "--shard", "1/3") == start("infer", "seeded", "--shard", "1/2", "--seed", "5") == 0
    assert start("infer", "plain") == 0
    shutil.copytree(run["a"], run["twin"])
    shutil.copytree(run["b"], run["served"])
    write_json(tmp_path / "served/manifest.json", {**read_manifest(run["b"]), "served": {"policy": {"root": "x"}}})
    for folders, said in (
        (["a"], "shards are missing: 1/2 (1 of 2)"),
        (["a", "twin", "b"], "are both shard 0/2"),
        (["a", "third"], "is shard 0/2"),
        (["a", "seeded"], "was made with seed = 0"),
        (["a", "served"], "with served policy.root = None"),
        (["a", "plain"], "plain is not a shard"),
    ):
        assert main(["merge", run["merged"], *(run[name] for name in folders)]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "merged").exists()
    for folder, shard, said in (
        ("a", "1/2", "was made with shard = '0/2'"),
        ("c", "2/2", "expected I/N"),
        ("c", "0/13", "there are 12 questions; make at most as many shards"),
    ):
        assert start("infer", folder, "--shard", shard) == 2
        assert said in capsys.readouterr().err


def test_limits_are_shared_out_to_the_last_call() -> None:
    keys = {"policy.base_url": "http://x", "policy.concurrency": 10, "policy.rate.requests": 601,
            "budget.calls": 1000, "budget.usd": 3.0, "policy.price.prompt": 1, "trees_at_once": 7}  # fmt: skip
    config = load_config(GenerateConfig, None, keys)
    parts = [share_of(config, Share(place, 3)) for place in range(3)]
    assert sum(part.policy.concurrency for part in parts) == 10
    assert sum(part.policy.rate.requests or 0 for part in parts) == 601
    assert [part.budget.calls for part in parts] == [334, 333, 333]
    assert [part.budget.usd for part in parts] == [1.0] * 3
    assert sum(part.trees_at_once or 0 for part in parts) == 7
    with pytest.raises(ConfigError, match="policy.concurrency 10 is for all 16 parts of the run; give at least 16"):
        share_of(config, Share(0, 16))
    started_here = load_config(GenerateConfig, None, {"policy.concurrency": 2})
    assert share_of(started_here, Share(0, 3)).policy.concurrency == 2
