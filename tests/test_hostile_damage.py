"""What reads damaged folders refuses them; what a run lists of itself; nothing of a stranger's reaches a terminal."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from apps.commands import main
from indexes import open_retriever
from indexes.commands.check import check_folder
from indexes.config import LimitsConfig
from indexes.retrieval.folder_retriever import FolderRetriever
from indexes.service.api import Served, create_app
from steprag.console.terminal import plain
from steprag.engines.models import resolve_model
from steprag.errors import DataError
from steprag.records.jsonl import LineJournal, write_json, write_records
from steprag.records.sealed import FILES, check_outputs, outputs
from steprag.records.training_rows import MARKS, WrongPair
from steprag.runs.run import checked_manifest, open_run, read_manifest
from tests.fakes import BY_ROLLOUTS, Start
from tests.indexing import edit_manifest


@pytest.fixture
def run(start: Start, tmp_path: Path) -> Path:
    assert start("generate", "trees") == 0
    return tmp_path / "trees"


def test_a_model_folder_of_another_program_is_not_held_against_its_manifest(tiny: Path, tmp_path: Path) -> None:
    theirs = shutil.copytree(tiny, tmp_path / "theirs")
    write_json(theirs / "manifest.json", {"files": ["config.json"], "stage": 3})
    assert resolve_model(theirs).hf == theirs


def test_what_reads_a_damaged_run_refuses_it(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs of earlier versions, which list no files, are read as before."""
    assert main(["run", "check", str(run)]) == 0
    assert f"{run}: ok: " in capsys.readouterr().out
    trees = (run / "trees.jsonl").read_bytes()
    assert b'"visits":1,' in trees
    (run / "trees.jsonl").write_bytes(trees.replace(b'"visits":1,', b'"visits":3,', 1))
    readers = (
        ["run", "check", str(run)],
        ["pairs", "--trees", str(run), *BY_ROLLOUTS, "--out", str(tmp_path / "pairs")],
        ["replay", "--trees", str(run), "--out", str(tmp_path / "again")],
        ["weave", "--trees", str(run), "--out", str(tmp_path / "woven.jsonl")],
    )
    for argv in readers:
        assert main(argv) == 2, argv
        said = capsys.readouterr().err
        assert f"{run}/trees.jsonl: is not the file that was written" in said
        assert said.count("\n") == 1
    assert main(["run", "check", "--accept", str(run)]) == 0
    assert main(readers[1]) == 0
    manifest = read_manifest(run)
    del manifest[FILES]
    write_json(run / "manifest.json", manifest)
    assert main(readers[0]) == 0
    assert "not checked" in capsys.readouterr().out
    assert main([*readers[1][:-1], str(tmp_path / "older")]) == 0


def test_what_a_run_lists(tmp_path: Path) -> None:
    def opened() -> Any:
        return open_run(tmp_path / "run", "made", identity={"a": 1}, config={})

    with opened() as run:
        (run.path / "rows.jsonl").write_text("{}\n")
        (run.path / "scores.json").write_text("{}\n")
        (run.path / "checkpoint-10").mkdir()
        (run.path / "checkpoint-10" / "model.safetensors").write_bytes(b"x")
        (run.path / "judged").mkdir()
        (run.path / "judged" / "manifest.json").write_text("{}")
        (run.path / "judged" / "verdicts.jsonl").write_text("{}\n")
    assert set(read_manifest(tmp_path / "run")[FILES]) == {"rows.jsonl", "metrics.jsonl"}
    with pytest.raises(KeyboardInterrupt), opened():
        assert FILES not in json.loads((tmp_path / "run" / "manifest.json").read_text())
        raise KeyboardInterrupt
    assert FILES not in read_manifest(tmp_path / "run")
    with opened() as run, LineJournal(run.path / "rows.jsonl") as rows:
        rows.append({"b": 2})
    assert check_outputs(tmp_path / "run", read_manifest(tmp_path / "run"), full=True) == 2
    assert outputs(tmp_path / "run").keys() == {"rows.jsonl", "metrics.jsonl"}


def test_what_others_put_into_a_run_folder_never_locks_it(run: Path, tmp_path: Path) -> None:
    """The marks of the viewer, a file of the user, and a list of version 0.1.0 that names the marks."""
    folder = tmp_path / "pairs"
    build = ["pairs", "--trees", str(run), "--out", str(folder), "--validation", "0", *BY_ROLLOUTS]
    mark = WrongPair("p", "q", "a", "b", "now")
    assert main(build) == 0
    for count in (1, 2):
        write_records(folder / MARKS, [mark] * count)
        write_records(folder / "mine.jsonl", [mark] * count)
        assert checked_manifest(folder)
        assert main(build) == 0
    assert {MARKS, "mine.jsonl"} & set(read_manifest(folder)[FILES]) == set()
    assert "pairs.train.jsonl" in read_manifest(folder)[FILES]
    edit_manifest(folder, "files", MARKS, value={"bytes": 1, "sha256": "x"})
    assert checked_manifest(folder)


ODD = {"bytes": 1, "sha256": "x"}


@pytest.mark.parametrize("files", [
    [], "x", {"rows.jsonl": 1}, {"../../etc/passwd": ODD}, {"a" * 300: ODD}, {"/etc/passwd": ODD}, {"\ud800": ODD},
])  # fmt: skip
def test_lists_that_make_no_sense_are_refused(files: object, tmp_path: Path, pristine: Path) -> None:
    write_json(tmp_path / "manifest.json", {"stage": "made"})
    with pytest.raises(DataError):
        check_outputs(tmp_path, {FILES: files})
    shutil.copytree(pristine, tmp_path / "index")
    if "\ud800" not in str(files):
        edit_manifest(tmp_path / "index", "files", value=files if isinstance(files, dict) else {})
        with pytest.raises(DataError, match="manifest.json"):
            check_folder(tmp_path / "index")


HOSTILE = "a\x1b]0;evil\x07b\x1b[2Jc\x1b]52;c;ZXZpbA==\x1b\\d\x9b31me\x1bPq#0\x1b\\f\x1bcg\x00\x08\tß日本\n"


def test_terminals_are_shown_text_alone() -> None:
    assert plain(HOSTILE) == "abcdefg\x08\tß日本\n"
    assert plain("[1] a\r\n\tb") == "[1] a\r\n\tb"
    code = "import sys; from steprag.console.terminal import guarded; "
    code += f"guarded(lambda argv: sys.stdout.write({HOSTILE!r}) and 0, [])"
    ours, theirs = pty.openpty()
    subprocess.run([sys.executable, "-c", code], stdout=theirs, check=True, timeout=60)
    os.close(theirs)
    assert os.read(ours, 4096).decode().startswith("abcdefg")
    os.close(ours)
    piped = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, timeout=60)
    assert piped.stdout.decode() == HOSTILE


def test_clients_of_the_service_are_told_no_paths(pristine: Path, tmp_path: Path) -> None:
    from starlette.testclient import TestClient

    shutil.copytree(pristine, tmp_path / "served")
    retriever = open_retriever(tmp_path / "served")
    assert isinstance(retriever, FolderRetriever)
    app = create_app(Served(retriever, "dense", LimitsConfig(), loopback=False))
    with TestClient(app, raise_server_exceptions=False) as client:
        passages = tmp_path / "served" / "passages.jsonl"
        passages.write_bytes(b"{" * passages.stat().st_size)
        reply = client.post("/retrieve", json={"queries": ["Aral Sea"]})
    assert reply.status_code == 500
    assert "passages" not in reply.text
    assert str(tmp_path) not in reply.text
