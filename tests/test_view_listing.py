"""What the viewer reads: places in files that grow, are torn or hostile, and the folders that they lie in."""

from __future__ import annotations

import gzip
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from steprag.batch.results import places_of
from steprag.batch.tree_results import TREES
from steprag.cli import main
from steprag.errors import ConfigError
from steprag.records.jsonl import dump_line
from steprag.view.folders import open_folders
from steprag.view.listing import Listing
from steprag.view.series import POINTS, Series
from tests.viewing import SHIPPED, made_run, made_tree, shipped_lines, shipped_run


def read_whole(listing: Listing) -> Listing:
    listing.refresh(60)
    assert listing.complete
    return listing


def test_places_are_those_of_the_index_with_and_without_it(tmp_path: Path) -> None:
    trees = shipped_run(tmp_path / "run", 5) / "trees.jsonl"
    known = places_of(trees, TREES)
    assert known[0].counts["question"] == "How many counties does the US state that made Sacramento its capital have?"
    assert read_whole(Listing(trees, TREES, indexed=True)).places == known
    (tmp_path / "run/trees.jsonl.index").unlink()
    without = read_whole(Listing(trees, TREES, indexed=True))
    assert without.places == known
    assert without.read(known[3]).question.id == known[3].id
    assert not (tmp_path / "run/trees.jsonl.index").exists()  # a viewer writes nothing of its own into a run


@pytest.mark.parametrize("index", [True, False])
def test_a_look_reads_no_further_than_it_wants(tmp_path: Path, index: bool) -> None:
    """So the first rows of a file of any length come at once."""
    trees = made_run(tmp_path / "run", *(made_tree(5, f"t{number}") for number in range(9))) / "trees.jsonl"
    listing = Listing(trees, TREES, indexed=index)
    listing.refresh(60, 3)
    assert ([place.id for place in listing.places], listing.complete) == (["t0", "t1", "t2"], False)
    listing.refresh(60, 5)
    assert len(listing.places) == 5
    assert read_whole(listing).places == places_of(trees, TREES)


def test_an_index_that_is_damaged_half_way_is_given_up(tmp_path: Path) -> None:
    trees = made_run(tmp_path / "run", *(made_tree(5, f"t{number}") for number in range(9))) / "trees.jsonl"
    known, index = places_of(trees, TREES), tmp_path / "run/trees.jsonl.index"
    lines = index.read_bytes().splitlines(keepends=True)
    index.write_bytes(b"".join([*lines[:4], lines[4][:30] + b"\n", *lines[5:]]))
    assert places_of(trees, TREES) == known
    listing = Listing(trees, TREES, indexed=True)
    listing.refresh(60, 3)
    assert [place.id for place in listing.places] == ["t0", "t1", "t2"]
    before = listing.generation
    assert read_whole(listing).places == known
    assert listing.generation == before + 1  # the page asks again from the first row on
    index.write_bytes(b"")
    assert read_whole(Listing(trees, TREES, indexed=True)).places == known


def test_an_index_of_another_file_is_not_believed(tmp_path: Path) -> None:
    """As long as the trees that it was made of, but not of these."""
    trees = made_run(tmp_path / "run", made_tree(5, "a")) / "trees.jsonl"
    trees.write_text(dump_line(made_tree(5, "b")) + "\n" + dump_line(made_tree(6, "c")) + "\n", encoding="utf-8")
    assert [place.id for place in read_whole(Listing(trees, TREES, indexed=True)).places] == ["b", "c"]


def test_a_growing_file_is_followed_and_a_torn_line_waits(tmp_path: Path) -> None:
    trees, (first, second) = tmp_path / "trees.jsonl", shipped_lines(2)
    trees.write_text(first + second[:100], encoding="utf-8")
    listing = Listing(trees, TREES)
    listing.refresh(60)
    assert (len(listing.places), listing.torn, listing.fault_count) == (1, True, 0)
    with trees.open("a", encoding="utf-8") as stream:
        stream.write(second[100:])
    listing.refresh(60)
    assert (len(listing.places), listing.torn, listing.generation) == (2, False, 1)
    assert listing.read(listing.places[1]).question.id == json.loads(second)["question"]["id"]


def test_a_last_line_without_a_newline_counts_once(tmp_path: Path) -> None:
    trees, (first, second) = tmp_path / "trees.jsonl", shipped_lines(2)
    trees.write_text(first.rstrip(), encoding="utf-8")
    listing = Listing(trees, TREES)
    listing.refresh(60)
    assert len(listing.places) == 1
    with trees.open("a", encoding="utf-8") as stream:
        stream.write("\n" + second)
    listing.refresh(60)
    assert [listing.read(place).question.id for place in listing.places] == ["atlas-train-0001", "atlas-train-0002"]


def test_a_file_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    trees, (first, second) = tmp_path / "trees.jsonl", shipped_lines(2)
    trees.write_text(first, encoding="utf-8")
    listing = read_whole(Listing(trees, TREES))
    (tmp_path / "new").write_text(second + first, encoding="utf-8")
    (tmp_path / "new").replace(trees)
    read_whole(listing)
    assert ([place.id for place in listing.places], listing.generation) == (["atlas-train-0002", "atlas-train-0001"], 2)
    trees.unlink()
    read_whole(listing)
    assert listing.places == []


HOSTILE = {
    "not json": b"{",
    "no object": b"[1, 2]",
    "no tree": b'{"format": 1}',
    "nested too deep": b"[" * 100_000,
    "not UTF-8": b'{"format": "\xff"}',
    "half a surrogate": b'{"format": "\\ud800"}',
    "a number of many digits": b'{"format": ' + b"9" * 5000 + b"}",
    "nodes without end": b'{"format":1,"question":{"id":"a","question":"?","golden_answers":["b"]},"status":"x",'
    b'"usage":{},"nodes":[{"id":0,"parent":0,"depth":0}]}',
}


@pytest.mark.parametrize("line", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_line_is_a_fault_with_its_number(tmp_path: Path, line: bytes) -> None:
    trees = tmp_path / "trees.jsonl"
    good = shipped_lines(2)
    trees.write_bytes(good[0].encode() + line + b"\n\n" + good[1].encode())
    listing = read_whole(Listing(trees, TREES))
    assert [place.line for place in listing.places] == [1, 4]
    assert [fault.line for fault in listing.faults] == [2]
    assert listing.faults[0].message


def test_a_line_without_end_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPRAG_LINE_MIB", "1")
    trees, good = tmp_path / "trees.jsonl", shipped_lines(2)
    trees.write_text(good[0] + "[" * 3_000_000 + "\n" + good[1], encoding="utf-8")
    listing = read_whole(Listing(trees, TREES))
    assert [place.line for place in listing.places] == [1, 3]
    assert [(fault.line, fault.message) for fault in listing.faults] == [(2, "a line of more than 1,048,576 bytes")]


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPRAG_EXPANSION", "1")
    packed = gzip.compress("".join(shipped_lines(1)).encode() + b" " * (80 << 20))
    (tmp_path / "trees.jsonl.gz").write_bytes(packed)
    listing = Listing(tmp_path / "trees.jsonl.gz", TREES)
    listing.refresh(60)
    assert [place.line for place in listing.places] == [1]
    assert "expands to more than" in listing.faults[0].message


def test_a_cut_gzip_file_shows_what_it_holds(tmp_path: Path) -> None:
    packed = gzip.compress("".join(shipped_lines(30)).encode())
    (tmp_path / "trees.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    listing = Listing(tmp_path / "trees.jsonl.gz", TREES)
    listing.refresh(60)
    assert 0 < len(listing.places) < 30
    assert "not a whole gzip file" in listing.faults[0].message


def test_folders_files_and_folders_of_folders_are_found(tmp_path: Path) -> None:
    shipped_run(tmp_path / "all/one", 1)
    shipped_run(tmp_path / "all/two", 1)
    shipped_run(tmp_path / "all/two/pairs", 1)
    shutil.copy(SHIPPED, tmp_path / "trees.round2.jsonl.gz")
    (tmp_path / "all/index").mkdir()
    (tmp_path / "all/index/manifest.json").write_text("{}", encoding="utf-8")  # an index: nothing to look at
    assert list(open_folders([str(tmp_path / "all")])) == ["one", "two"]
    assert list(open_folders([str(tmp_path / "all/two"), str(tmp_path / "all/one"), str(tmp_path / "all/two")])) == [
        "two", "pairs", "one",
    ]  # fmt: skip
    assert open_folders([str(tmp_path / "trees.round2.jsonl.gz")])["trees"].kinds() == ["trees"]
    shipped_run(tmp_path / "more/one", 1)
    assert list(open_folders([str(tmp_path / "all/one"), str(tmp_path / "more/one")])) == ["one", "more-one"]


def test_nothing_to_view_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(tmp_path)]) == 2
    assert "holds nothing to view (give a run folder" in capsys.readouterr().err
    assert main(["view", str(tmp_path / "none")]) == 2
    assert "run not found" in capsys.readouterr().err


def test_a_link_that_leads_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret.jsonl"
    secret.write_text("".join(shipped_lines(1)), encoding="utf-8")
    run = shipped_run(tmp_path / "run", 1)
    (run / "predictions.jsonl").symlink_to(secret)
    folder = open_folders([str(run)])["run"]
    assert folder.kinds() == ["trees", "series"]
    assert folder.file("../secret.jsonl") is None


def test_curves_survive_what_training_and_kills_leave(tmp_path: Path) -> None:
    rows = [{"step": 1, "loss": 2.0, "time": "2026-01-01T00:00:00+00:00"}, {"step": 2, "loss": float("nan")},
            {"step": 2, "loss": 1.5, "epoch": 0.2}, {"step": 3, "eval_loss": 1.0, "note": "x", "flag": True},
            {"event": "done", "id": "q", "seconds": 4.5, "time": "2026-01-01T00:01:00+00:00"},
            {"event": "failure", "id": "r", "seconds": "x", "time": "no time"}]  # fmt: skip
    text = "\n".join(json.dumps(row) for row in rows) + '\nnot json\n[]\n{"step": 4, "lo'
    (tmp_path / "metrics.jsonl").write_text(text, encoding="utf-8")
    told = Series(tmp_path / "metrics.jsonl").told()
    assert told["steps"] == [1, 2, 3]
    assert told["curves"] == {"loss": [2.0, 1.5, None], "eval_loss": [None, None, 1.0]}
    assert told["done"] == [
        {"at": 60.0, "seconds": 4.5, "failed": False},
        {"at": None, "seconds": None, "failed": True},
    ]
    assert told["faults"] == 3


def test_curves_that_grow_are_read_on(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "loss": 3}\n{"step": 2, "lo', encoding="utf-8")
    series = Series(file)
    assert (series.told()["steps"], series.told()["faults"]) == ([1], 1)
    with file.open("r+", encoding="utf-8") as stream:
        stream.write('{"step": 7, "loss": 3}\n')  # over a line that was read: it is not read again
        stream.seek(0, 2)
        stream.write('ss": 2}\n{"step": 3, "loss": 1}')
    assert series.told()["curves"] == {"loss": [3, 2, 1]}
    assert (series.told()["steps"], series.told()["faults"]) == ([1, 2, 3], 0)
    file.unlink()
    file.write_text('{"step": 9, "loss": 1}\n', encoding="utf-8")
    assert series.told()["steps"] == [9]


def test_long_curves_are_thinned_and_keep_their_end(tmp_path: Path) -> None:
    lines = (json.dumps({"step": step, "loss": step}) for step in range(5001))
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines), encoding="utf-8")
    told = Series(tmp_path / "metrics.jsonl").told()
    assert len(told["steps"]) <= POINTS + 1
    assert told["steps"][-1] == 5000


def test_numbers_that_no_float_holds_are_no_points(tmp_path: Path) -> None:
    huge = "1" + "0" * 400
    (tmp_path / "metrics.jsonl").write_text(
        f'{{"step": 1, "loss": {huge}, "lr": 0.5}}\n{{"step": {huge}, "loss": 1}}\n'
        f'{{"event": "done", "seconds": {huge}}}\n{{"step": 2, "loss": Infinity, "lr": -{huge}}}\n'
    )
    told = Series(tmp_path / "metrics.jsonl").told()
    assert told["steps"] == [1, 2]
    assert told["curves"] == {"lr": [0.5, None]}
    assert told["done"] == [{"at": None, "seconds": None, "failed": False}]


def test_an_unknown_run_is_refused(tmp_path: Path) -> None:
    from steprag.view.answers import Answers

    answers = Answers(open_folders([str(shipped_run(tmp_path / "run", 1))]))
    for name in ("../run", "/etc", "", "run/"):
        with pytest.raises(ConfigError, match="no run is called"):
            answers.rows(name, "trees", 0, 0)


def test_threads_that_read_a_packed_file_do_not_take_each_others_lines() -> None:
    listing = read_whole(Listing(SHIPPED, TREES))
    places = listing.places[:20] * 20
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda place: listing.line_at(place), places, chunksize=1))
    assert found == [listing.line_at(place) for place in places]
