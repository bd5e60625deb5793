"""The index beside a results file: it spares the reading, and never says what the file does not hold."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from data_generation.tally import Earlier
from steprag.batch.results import Place, Results, index_of, places_of, read_at
from steprag.batch.tree_results import TREES
from steprag.cli import main
from steprag.errors import DataError
from steprag.records.jsonl import dump_line, read_records, write_json
from steprag.tree import Node, Tree
from steprag.types import Question, Usage
from tests.fakes import Endpoint
from tests.test_pipeline import endpoint, index, options, questions

__all__ = ["endpoint", "index", "questions"]

_opened: list[str] = []
_watching: list[str] = []


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    """Python's audit hook for files that are opened to be read from their first byte; it cannot be taken away again."""
    if _watching and event == "open" and arguments[1] in ("r", "rb") and Path(str(arguments[0])).name in _watching:
        _opened.append(str(arguments[0]))


sys.addaudithook(_watch)


@contextmanager
def counted(name: str) -> Iterator[Callable[[], int]]:
    """How often a file of that name was opened for reading in the block."""
    _opened.clear()
    _watching.append(name)
    try:
        yield lambda: len(_opened)
    finally:
        _watching.clear()


def tree(name: str, solved: bool = False) -> Tree:
    scores = (1.0, 0.0) if solved else (None, None)
    root = Node(id=0, parent=None, depth=0)
    leaves = (Node(i, 0, 1, "answer", f"text {i}", f"x{i}", prediction_f1=scores[i - 1]) for i in (1, 2))
    return Tree(1, Question(name, f"What is {name}? é", ("a",)), "rollouts", Usage(2, 10, 5, 0), (root, *leaves))


def filled(path: Path, *names: str) -> Results[Tree]:
    results = Results(path, TREES)
    with results.appending() as keep:
        for name in names:
            keep(tree(name, solved=name == "b"))
    return results


def test_a_finished_run_is_started_without_reading_its_results(
    endpoint: Endpoint, questions: Path, index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trees, scored = tmp_path / "trees", tmp_path / "scored"
    generate = ["generate", *options(endpoint, questions, index, trees)]
    infer = ["infer", *options(endpoint, questions, index, scored)]
    assert main(generate) == main(infer) == 0
    before = json.loads((trees / "manifest.json").read_text())["counts"]
    with counted("trees.jsonl") as reads:
        assert main(generate) == 0
    assert reads() == 0
    assert json.loads((trees / "manifest.json").read_text())["counts"] == before
    with counted("predictions.jsonl") as reads:
        assert main(infer) == 0
    assert reads() == 1  # to score them


def test_a_run_of_an_earlier_version_is_read_once_and_then_not_again(
    endpoint: Endpoint, questions: Path, index: Path, tmp_path: Path
) -> None:
    out = tmp_path / "trees"
    command = ["generate", *options(endpoint, questions, index, out)]
    assert main(command) == 0
    before, held = (out / "manifest.json").read_text(), index_of(out / "trees.jsonl").read_bytes()
    index_of(out / "trees.jsonl").unlink()
    with counted("trees.jsonl") as reads:
        assert main(command) == 0
        assert reads() == 1
        assert main(command) == 0
        assert reads() == 1
    assert index_of(out / "trees.jsonl").read_bytes() == held
    assert json.loads((out / "manifest.json").read_text())["counts"] == json.loads(before)["counts"]


def test_what_is_appended_is_found_again(tmp_path: Path) -> None:
    file = tmp_path / "trees.jsonl"
    filled(file, "b", "a")
    again = filled(file, "c")
    assert [name in again for name in "abcd"] == [True, True, True, False]
    assert sum(counts["solved"] for counts in again.counts()) == 1
    for place in places_of(file, TREES):
        assert read_at(place, file, Tree).question.id == place.id
    again.put_in_order(["a", "b"])
    assert [each.question.id for each in read_records(file, Tree)] == ["a", "b", "c"]
    assert [(p.id, p.line) for p in read_records(index_of(file), Place)] == [("a", 1), ("b", 2), ("c", 3)]
    with counted("trees.jsonl") as reads:
        assert len(Results(file, TREES)) == 3
        assert reads() == 0


@pytest.mark.parametrize(
    "harm",
    [
        lambda file: index_of(file).write_bytes(index_of(file).read_bytes()[:-30]),
        lambda file: index_of(file).write_bytes(index_of(file).read_bytes()[:40]),
        lambda file: index_of(file).write_text("<html>"),
        lambda file: index_of(file).write_bytes(index_of(file).read_bytes().replace(b'"version":1', b'"version":0')),
        lambda file: file.write_text(file.read_text() + dump_line(tree("d")) + "\n"),
        lambda file: file.write_text(dump_line(tree("d")) + "\n\n" + dump_line(tree("a")) + "\n"),
        lambda file: file.unlink(),
    ],
    ids=["torn index", "one torn line", "a web page", "an older version", "a line more", "another file", "no file"],
)
def test_an_index_that_does_not_hold_is_made_anew(tmp_path: Path, harm: Callable[[Path], object]) -> None:
    file = tmp_path / "trees.jsonl"
    filled(file, "b", "a")
    old = index_of(file).stat().st_mtime_ns
    harm(file)
    if file.exists() and b"version" in index_of(file).read_bytes()[-20:]:
        os.utime(file, ns=(old + 10**9, old + 10**9))  # a clock of the file system may be coarse
    there = [each.question.id for each in read_records(file, Tree)] if file.exists() else []
    results = filled(file, "e")
    assert [p.id for p in places_of(file, TREES)] == [*there, "e"]
    results.put_in_order(["e"])
    assert [each.question.id for each in read_records(file, Tree)] == ["e", *there]
    assert [p.start for p in places_of(file, TREES)][:2] == [0, len(dump_line(tree("e")).encode()) + 1][
        : len(there) + 1
    ]


def test_a_line_that_is_no_result_is_named(tmp_path: Path) -> None:
    file = tmp_path / "trees.jsonl"
    file.write_text(dump_line(tree("a")) + '\n\n{"id":"b"}\n')
    with pytest.raises(DataError, match=r"trees\.jsonl:3: Tree: format"):
        Results(file, TREES)


def test_an_earlier_run_is_found_behind_blank_lines_and_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "trees.jsonl"
    file.write_text("\n" + dump_line(tree("a")) + "\n\n" + dump_line(tree("b")) + "\n")
    write_json(tmp_path / "manifest.json", {})
    assert Earlier([tmp_path]).mark(tree("b")).known == (1, 2)
    assert [p.line for p in places_of(file, TREES)] == [2, 4]
    assert not index_of(file).exists()
