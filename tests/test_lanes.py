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
from steprag.experiments.stages import StageBook, seconds, stage


def test_two_lanes_work_at_once_on_cores_of_their_own() -> None:
    meet = threading.Barrier(2, timeout=30)
    held: list[set[int]] = []

    def hold(cores: Sequence[int]) -> None:
        meet.wait()  # neither passes where the other cannot come
        held.append(set(cores))

    Lanes(2).together([hold, hold])
    assert held[0] | held[1] == os.sched_getaffinity(0)
    assert not held[0] & held[1] or len(os.sched_getaffinity(0)) == 1


def test_chains_wait_for_a_lane_in_their_order() -> None:
    seen, both = list[str](), threading.Barrier(2, timeout=30)

    def first(cores: Sequence[int]) -> None:
        both.wait()

    def later(name: str, cores: Sequence[int]) -> None:
        seen.append(name)

    Lanes(2).together([first, first, *(partial(later, name) for name in "c")])
    Lanes(1).together([partial(later, name) for name in "def"])
    assert seen == ["c", "d", "e", "f"]


def test_a_stage_in_a_lane_writes_a_log_and_fails_by_name(tmp_path: Path) -> None:
    book = StageBook(tmp_path / "stages.json", Lanes(2))
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "1", "title": "A", "text": "One river."}\n')
    with pytest.raises(StepragError, match=r"bad ended with exit code 2: steprag: .*none.*\(.*logs/bad\.log\)"):
        book.together([
            [stage(tmp_path / "bad", "pairs", trees=tmp_path / "none"), stage(tmp_path / "never", "doctor")],
            [stage(tmp_path / name, "index build", "--encoder", "none", corpus=corpus) for name in ("good", "better")],
        ])  # fmt: skip
    stages = json.loads((tmp_path / "stages.json").read_text())
    assert stages.keys() == {"bad", "good", "better"}, "a chain's error ends that chain alone"
    assert stages["good"]["done"]
    assert stages["better"]["done"]
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
        "def serve(cores):\n"
        f"    lanes.run(['policy', 'serve', '--port', '0'], cores, Path({str(tmp_path / 'log')!r}))\n"
        f"lanes.together([serve, serve, lambda cores: Path({str(tmp_path / 'never')!r}).touch()])\n"
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
