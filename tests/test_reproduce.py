"""The proof: that it runs from end to end, and that its sentences say what the figures bear."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import steprag.pipeline
from steprag import atlas
from steprag.cli import main
from steprag.errors import StepragError
from steprag.files import read_records
from steprag.pipeline import StageBook
from steprag.reproduce import FULL, question_files
from steprag.reproduce_report import verdict
from steprag.types import Question


def compared(em: float, low: float, high: float, better_from: float) -> dict[str, Any]:
    gain = {"em": em, "low": low, "high": high, "p": 0.5, "better": 3, "worse": 1, "questions": 40}
    runs = {"a": {"em_low": better_from, "em_high": 0.9}, "b": {"em_low": 0.1, "em_high": 0.3}}
    return {"runs": runs, "differences": {"a": {"b": gain}}}


@pytest.mark.parametrize(("figures", "said"), [
    (compared(0.2, 0.1, 0.3, 0.35), "+20.0 points of EM, 95 % interval +10.0 to +30.0 (paired bootstrap), exact "
     "McNemar p 0.5 (3 questions better, 1 worse of 40): a gain; the two 95 % intervals of EM are disjoint."),
    (compared(0.2, 0.1, 0.3, 0.25), "of 40): a gain."),
    (compared(0.1, -0.1, 0.3, 0.2), "of 40): no difference shown."),
    (compared(-0.2, -0.3, -0.1, 0.0), "-20.0 points of EM, 95 % interval -30.0 to -10.0"),
    (compared(-0.2, -0.3, -0.1, 0.0), "of 40): a loss."),
])  # fmt: skip
def test_a_sentence_says_no_more_than_its_interval(figures: dict[str, Any], said: str) -> None:
    assert said in verdict("a", "b", "one over the other", figures)


def test_the_rounds_search_different_questions(tmp_path: Path) -> None:
    sizes = replace(FULL, train=5, second=4)
    ids = [{question.id for question in read_records(file, Question)} for file in question_files(tmp_path, sizes)]
    assert [len(names) for names in ids] == [5, 4]
    assert not ids[0] & ids[1]


def test_the_book_adds_up_interrupted_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = True

    def run(argv: list[str]) -> int:
        if fails:
            raise StepragError("cut off")
        return 0

    clock = iter(range(0, 100, 7))
    monkeypatch.setattr(steprag.pipeline, "run", run)
    monkeypatch.setattr(steprag.pipeline.time, "monotonic", lambda: next(clock))
    with pytest.raises(StepragError, match="cut off"):
        StageBook(tmp_path / "stages.json").run(tmp_path / "x", "pairs", trees="t t")
    fails = False
    for _ in range(2):  # the second time it is done already
        StageBook(tmp_path / "stages.json").run(tmp_path / "x", "pairs", trees="t t")
    assert json.loads((tmp_path / "stages.json").read_text()) == {
        "x": {"seconds": 14, "done": True, "command": f"steprag pairs --trees 't t' --out {tmp_path / 'x'}"}
    }


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_proof_runs(tmp_path: Path) -> None:
    wanted = {"train": 3, "second": 3, "test": 2, "sft_steps": 1, "dpo_steps": 1, "elsewhere": 1}
    sizes = [word for name, count in wanted.items() for word in (f"--{name}", str(count))]
    corpus = tmp_path / "rivers_corpus.jsonl"
    corpus.write_text("".join(atlas.path("corpus").read_text().splitlines(keepends=True)[:20]))
    also = ("--also", str(atlas.path("dev")), str(corpus))
    report = tmp_path / "docs" / "results.md"
    assert main(["reproduce", "--quick", *sizes, *also, "--out", str(tmp_path / "runs"), "--report", str(report)]) == 0
    said = report.read_text()
    for words in (
        "| DPO on outcomes alone | 2 |",
        "| the same on both rounds together | 2 |",
        "best of 4 by vote",
        "300 worked episodes for the warm start",
        "the second round over the first",
        "## Another world: dev",
        "the last agent over the warm start",
        " --config configs/training/atlas-dpo.yaml",
    ):
        assert words in said
    pictures = re.findall(r"!\[[^]]*\]\(([^)]*)\)", said)
    assert pictures
    assert all((report.parent / picture).is_file() for picture in pictures)
