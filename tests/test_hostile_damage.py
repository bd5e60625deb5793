"""Bit flips and cuts over index and run folders: found, or without effect. None gives other results in silence."""

from __future__ import annotations

import json
import os
import pty
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from apps.commands import main
from indexes import open_retriever
from indexes.addons.bm25 import Bm25Config, add_bm25
from indexes.addons.links import add_links
from indexes.commands.check import check_folder
from indexes.config import LimitsConfig
from indexes.folder.manifest import read_index_manifest
from indexes.retrieval.folder_retriever import FolderRetriever
from indexes.service.api import Served, create_app
from steprag.agent.checkpoints import profile_for
from steprag.config.sections import PromptConfig
from steprag.console.terminal import plain
from steprag.engines.models import resolve_model
from steprag.errors import DataError, StepragError
from steprag.records.jsonl import LineJournal, write_json, write_records
from steprag.records.sealed import FILES, check_outputs, outputs
from steprag.records.training_rows import MARKS, WrongPair
from steprag.runs.run import checked_manifest, open_run, read_manifest
from tests.fakes import BY_ROLLOUTS, Start
from tests.indexing import edit_manifest
from tests.levels import SEED, rounds
from tests.training_parts import train

ROUNDS = rounds(100, 200, 1000)


def damaged(file: Path, rng: random.Random) -> str:
    """Flips a bit, cuts the file or lengthens it; says which."""
    content = file.read_bytes()
    place = rng.randrange(len(content))
    match rng.randrange(4):
        case 0:
            file.write_bytes(content[:place])
            return f"{file.name} cut at {place}"
        case 1:
            file.write_bytes(content + content[-1:])
            return f"{file.name} lengthened"
        case _:
            file.write_bytes(content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :])
            return f"{file.name} flipped at {place}"


DECIDING = ("format", "stage", "encoder", "index", "fingerprint")


@pytest.mark.timeout(1800)
def test_damage_to_an_index_folder_is_found_or_has_no_effect(pristine: Path, tmp_path: Path) -> None:
    whole, copy, rng = tmp_path / "whole", tmp_path / "copy", random.Random(SEED)
    shutil.copytree(pristine, whole)
    manifest = read_index_manifest(whole)
    add_bm25(whole, manifest, Bm25Config())
    add_links(whole, manifest)
    names = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file() and path.stat().st_size)
    without_effect = 0
    for number in range(ROUNDS):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(whole, copy)
        said = damaged(copy / names[number % len(names)], rng)
        try:
            check_folder(copy, sample=0)
        except StepragError as error:
            assert error.exit_code == 2, said
            assert "\n" not in str(error), said
            continue
        assert said.startswith("manifest.json"), said
        without_effect += 1
        found = read_index_manifest(copy)
        same = all(getattr(found, key) == getattr(manifest, key) for key in DECIDING)
        same = same and found.corpus.rows == manifest.corpus.rows
        same = same and all(found.files[name].sha256 == facts.sha256 for name, facts in manifest.files.items())
        assert same or _refused(copy), said
    assert without_effect < ROUNDS / 5


def _refused(folder: Path) -> bool:
    try:
        open_retriever(folder)
    except StepragError:
        return True
    return False


@pytest.fixture
def run(start: Start, tmp_path: Path) -> Path:
    assert start("generate", "trees") == 0
    return tmp_path / "trees"


@pytest.mark.timeout(1800)
def test_damage_to_a_run_folder_is_found(run: Path, tmp_path: Path) -> None:
    copy, rng, files = tmp_path / "copy", random.Random(SEED), read_manifest(run)[FILES]
    listed = [name for name, facts in files.items() if facts["bytes"]]
    assert {"trees.jsonl", "calls.sqlite", "metrics.jsonl"} <= set(listed)
    shutil.copytree(run, copy)
    for number in range(ROUNDS):
        file = copy / listed[number % len(listed)]
        said = damaged(file, rng)
        with pytest.raises(DataError, match=rf"{file.name}: .*steprag check --accept"):
            checked_manifest(copy)
        assert said
        shutil.copy(run / file.name, file)
    assert checked_manifest(copy)


@pytest.fixture(scope="module")
def checkpoints(tiny: Path, warm: Path, pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An adapter, and a whole model, as `steprag train` leaves them."""
    full = tmp_path_factory.mktemp("full")
    assert train(tiny, pairs, full, "sft", "--max_steps", "1", "--finetuning", "full") == 0
    return {"adapter": warm, "full": full}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["adapter", "full"])
def test_damage_to_a_checkpoint_is_found_before_it_is_used(
    kind: str, checkpoints: dict[str, Path], tiny: Path, tmp_path: Path
) -> None:
    """A model's folder of another program is not held against its manifest."""
    whole, copy, rng = checkpoints[kind], tmp_path / "copy", random.Random(SEED)
    shutil.copytree(whole, copy, ignore=shutil.ignore_patterns("checkpoint-*"))
    names = sorted(path.relative_to(copy) for path in copy.rglob("*") if path.is_file() and path.stat().st_size)
    decide = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    decide |= {"adapter_config.json", "adapter_model.safetensors"} if kind == "adapter" else {"model.safetensors"}
    assert decide <= {name.name for name in names}
    unread = {"manifest.json", "curves.png", "metrics.jsonl", "training_args.bin", "README.md"}
    for number in range(ROUNDS):
        file = copy / names[number % len(names)]
        said = damaged(file, rng)
        try:
            profile_for(PromptConfig(unchecked=True), resolve_model(copy))
        except StepragError as error:
            assert error.exit_code == 2, said
            assert "\n" not in str(error), said
        else:
            assert file.name in unread, said
        shutil.copy(whole / file.relative_to(copy), file)
    assert resolve_model(copy)
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
