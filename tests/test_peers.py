"""The frame of the comparisons with peers, on two small functions that run in this environment."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.peers import __main__ as frame
from benchmarks.peers.pairing import Peer, measured, ranked

FAKE = '''"""sums

Equal: the sum.
"""
from benchmarks.peers.pairing import Peer, size

HEADLINE = "steps"
PEERS = {"slow": Peer(), "wrong": Peer(), "broken": Peer()}

def prepare(work):
    (work / "n").write_text(str(size(10**6, 10)))

def ours(work, steps=1.0, more=0):
    n = int((work / "n").read_text())
    return {"figures": {"steps": steps}, "same": {"the sum": sum(range(n)) + more}}

def slow_built(work):
    (work / "steps").write_text("3.0")

def slow(work):
    return ours(work, float((work / "steps").read_text()))

def wrong(work):
    return ours(work, more=1)

def broken(work):
    raise ValueError("no luck | here")
'''


def test_a_comparison_runs_sides_in_turn_and_tells_no_ratio_of_unequal_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fake.py").write_text(FAKE)
    monkeypatch.setattr(frame, "NAMES", ())
    given = [str(tmp_path / "fake.py"), "--quick", "--rounds", "1", "--out", str(tmp_path / "page.md")]
    monkeypatch.setattr(sys, "argv", ["peers", *given])
    monkeypatch.setenv("PEERS_QUICK", "")
    monkeypatch.setattr(frame, "RUNS", tmp_path / "peers")
    frame.main()
    page = (tmp_path / "page.md").read_text()
    assert "| 3 / 1: **3.00** |" in page
    assert "**Where ours is behind**" in page
    assert "| 45 the sum |" in page
    assert "| wrong | not equal: the sum: 46, ours 45 |" in page
    assert "| broken | not run: ValueError: no luck / here (exit 1) |" in page
    told = json.loads((tmp_path / "peers-quick" / "fake.json").read_text())
    ((ours, slow),) = told["pairs"]["slow"]
    assert slow["figures"] == {"steps": 3.0}
    assert min(ours["wall"], ours["cpu"], ours["peak"]) > 0
    assert "wrong" not in told["pairs"]


def test_a_peer_that_cannot_be_installed_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "ROOMS", tmp_path)
    room = tmp_path / "peer" / "bin"
    room.mkdir(parents=True)
    (room / "python").write_text("#!/bin/sh\necho 'ERROR: No matching distribution' >&2; exit 1\n")
    (room / "python").chmod(0o755)
    called = frame.called
    monkeypatch.setattr(frame, "called", lambda command, **more: "venv" in command or called(command, **more))
    with pytest.raises(frame.Unavailable, match="not installed: ERROR: No matching distribution"):
        frame.installed("peer", Peer("no-such==1.0"))


def test_rankings_are_equal_but_for_near_scores() -> None:
    mine = {"found": [[["a", 2.0], ["b", 1.0]]]}
    assert ranked(mine, {"found": [[["a", 2.0], ["c", 1.00001]]]}, 1e-4) == "the order of 1 rankings"
    for other in ([["a", 2.0], ["c", 0.9]], [["a", 2.0]]):
        with pytest.raises(AssertionError, match="ranking 0: "):
            ranked(mine, {"found": [other]}, 1e-4)


def test_what_is_measured_is_the_block_and_its_children() -> None:
    import subprocess

    with measured() as told:
        subprocess.run([sys.executable, "-c", "sum(range(10**7)); b' ' * 2**26"], check=True)
    assert told["cpu"] > 0.05
    assert told["peak"] > 64
