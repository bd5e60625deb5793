"""Stages side by side: cores of their own, the first chain first, and errors that name the stage."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from steprag.errors import StepragError
from steprag.experiments.lanes import Lanes
from steprag.experiments.stages import StageBook, seconds


def test_two_lanes_work_at_once_on_cores_of_their_own() -> None:
    lanes, meet = Lanes(2), threading.Barrier(2, timeout=30)
    held: list[set[int]] = []

    def hold() -> None:
        meet.wait()  # neither passes where the other cannot come
        held.append(set(lanes.cores or ()))

    assert lanes.cores is None, "what is alone has all cores"
    lanes.together(hold, hold)
    assert held[0] | held[1] == os.sched_getaffinity(0)
    assert not held[0] & held[1] or len(os.sched_getaffinity(0)) == 1


def test_one_lane_is_one_chain_after_another_on_all_cores() -> None:
    lanes, seen = Lanes(1), list[tuple[str, object]]()
    lanes.together(lambda: seen.append(("a", lanes.cores)), lambda: seen.append(("b", lanes.cores)))
    assert seen == [("a", None), ("b", None)]


def test_chains_keep_their_lanes_and_earlier_ones_go_first() -> None:
    lanes, seen = Lanes(2), list[str]()
    long_one = threading.Event()

    def a() -> None:
        waiting.acquire(timeout=30)  # c waits for a lane
        time.sleep(0.2)
        lanes.together(partial(first, lanes.cores), lambda: seen.append("second of a"))
        seen.append(f"a {bool(lanes.cores)}")

    def first(before: Sequence[int] | None) -> None:
        time.sleep(0.2)  # its sister waits for a lane
        seen.append(f"first of a {lanes.cores == before}")

    def other() -> None:
        waiting.release()
        long_one.wait(30)

    def c() -> None:
        seen.append("c")
        long_one.set()

    waiting = threading.Semaphore(0)
    lanes.together(a, other, c)
    assert seen[0] == "first of a True"
    assert seen.index("second of a") < seen.index("c")
    assert "a True" in seen


def test_what_the_next_stage_needs_goes_before_what_nothing_needs() -> None:
    """The second half of a search inside the first chain, and the score of an earlier policy beside that chain."""
    lanes, seen = Lanes(2), list[str]()
    registered = threading.Event()

    def search() -> None:
        lanes.together(lambda: registered.wait(0.5) and None, lambda: seen.append("half"))

    def both_rounds() -> None:
        lanes.together(search, lambda: seen.append("score"))

    def other() -> None:
        registered.wait(0.3)

    lanes.together(both_rounds, other)
    assert seen == ["half", "score"]


def test_a_stage_in_a_lane_writes_a_log_and_fails_by_name(tmp_path: Path) -> None:
    book, ends = StageBook(tmp_path / "stages.json", Lanes(2)), list[str]()

    def fails() -> None:
        book.run(tmp_path / "bad", "pairs", trees=tmp_path / "none")
        ends.append("never")

    def works() -> None:
        book.run(tmp_path / "good", "index build", "--encoder", "none", corpus=corpus)
        ends.append("good")

    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "1", "title": "A", "text": "One river."}\n')
    with pytest.raises(StepragError, match=r"bad ended with exit code 2: steprag: .*none.*\(.*logs/bad\.log\)"):
        book.together(fails, works)
    assert ends == ["good"], "a chain's error ends that chain alone"
    stages = json.loads((tmp_path / "stages.json").read_text())
    assert stages["good"]["done"]
    assert not stages["bad"]["done"]
    assert stages["good"]["command"].startswith("steprag index build --encoder none --corpus ")
    assert "passages" in (tmp_path / "logs" / "good.log").read_text()


def test_ctrl_c_ends_what_runs_in_the_lanes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import signal\n"
        "from pathlib import Path\n"
        "from steprag.experiments.lanes import Lanes\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background jobs ignore it
        "lanes = Lanes(2)\n"
        "def serve():\n"
        f"    lanes.run(['policy', 'serve', '--engine', 'llamacpp'], Path({str(tmp_path / 'log')!r}))\n"
        f"lanes.together(serve, serve, lambda: Path({str(tmp_path / 'never')!r}).touch())\n"
    )
    process = subprocess.Popen([sys.executable, script], start_new_session=True, stderr=subprocess.PIPE)
    wait_until(lambda: len(descendants(process.pid)) >= 4)
    children = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert b"KeyboardInterrupt" in said
    assert not (tmp_path / "never").exists(), "what waited for a lane is not begun"
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))


def descendants(pid: int) -> list[int]:
    children = [int(word) for file in Path(f"/proc/{pid}/task").glob("*/children") for word in file.read_text().split()]
    return children + [each for child in children for each in descendants(child)]


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_time_by_the_clock_counts_what_overlaps_once() -> None:
    assert seconds([]) == 0
    assert seconds([[0, 10], [5, 12], [6, 7], [20, 21]]) == 13
