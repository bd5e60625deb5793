"""The whole pipeline on the embedded model, index and trainer: minutes, so marked slow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from steprag.records.jsonl import read_records
from steprag.runs.run import read_manifest
from steprag.tree import Tree
from steprag.types import Prediction

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
SMALL = ("--train_questions", "6", "--test_questions", "4", "--sft_steps", "2", "--dpo_steps", "2")


def demo(out: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "steprag.cli", "demo", "--out", str(out), *SMALL, *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A demo that was killed in the middle of its search, then run to its end."""
    out = tmp_path_factory.mktemp("demo")
    killed = demo(out)
    assert killed.stderr is not None
    trees = out / "generate" / "trees.jsonl"
    for _ in killed.stderr:
        if trees.exists() and trees.read_bytes().count(b"\n") >= 2:
            break
        if killed.poll() is not None:
            break
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    kept = trees.read_bytes().rsplit(b"\n", 1)[0].split(b"\n") if trees.exists() else []
    process = demo(out)
    table, words = process.communicate()
    assert process.returncode == 0, words
    now = trees.read_bytes()
    assert all(line in now for line in kept), "a finished tree was searched again"
    return out, table


def test_the_demo_ends_with_a_table_of_what_it_did(finished: tuple[Path, str]) -> None:
    out, table = finished
    report = json.loads((out / "report.json").read_text())
    assert report["passages"] > 1500
    assert report["trees"]["trees"] == 6
    assert report["usage"]["calls"] > 20
    assert [score["questions"] for score in report["scores"].values()] == [4, 4, 4]
    for words in ("bare model", "warm start", "trained", "95 % interval", "questions"):
        assert words in table


def test_the_embedded_policy_follows_the_grammar(finished: tuple[Path, str]) -> None:
    nodes = [node for tree in read_records(finished[0] / "generate/trees.jsonl", Tree) for node in tree.nodes[1:]]
    refused = [node for node in nodes if node.failure is not None]
    assert len(refused) <= 0.1 * len(nodes)
    assert {node.action for node in nodes if node.failure is None} == {"query", "evidence", "answer"}


def test_the_trained_adapter_is_the_one_that_answered(finished: tuple[Path, str]) -> None:
    out = finished[0]
    identities = [
        read_manifest(out / name)["identity"]["policy"] for name in ("infer-bare", "infer-warm", "infer-trained")
    ]
    assert "adapter" not in identities[0]
    assert len({identity.get("adapter") for identity in identities}) == 3
    assert read_manifest(out / "dpo")["starting_adapter"]["sha256"]
    assert all(
        p.steps for p in read_records(out / "infer-trained/predictions.jsonl", Prediction) if p.finish == "answer"
    )


def test_a_second_demo_reuses_everything(finished: tuple[Path, str]) -> None:
    out, _ = finished
    before = {path: path.read_bytes() for path in out.rglob("*.jsonl") if path.name != "metrics.jsonl"}
    process = demo(out)
    _, words = process.communicate()
    assert process.returncode == 0
    assert "reused" in words or "there already" in words
    assert before == {path: path.read_bytes() for path in before}
