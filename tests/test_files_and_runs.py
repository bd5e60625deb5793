"""The file boundary and run folders: errors that name file, line and remedy; nothing half-written; interrupted runs
go on.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import steprag
from steprag.batch.database import SCHEMA
from steprag.config.sections import PolicyConfig
from steprag.errors import BudgetReached, ConfigError, DataError
from steprag.policy.open import model_identity
from steprag.records.inputs import read_questions
from steprag.records.jsonl import LineJournal, lines_of, write_json, write_records, written_whole
from steprag.runs.run import open_run, read_manifest
from steprag.types import Question
from tests.models import make_llama

GOOD = '{"id":"1","question":"Which?","golden_answers":["a"],"metadata":{"k":1},"source":"x"}\n'


@pytest.mark.parametrize(("text", "message"), [
    ("", "holds no questions"),
    (GOOD + "{oops}\n", ":2: not JSON"),
    (GOOD + "9" * 5000, ":2: a number has too many digits"),
    (GOOD + "[" * 100_000, ":2: lists or objects are nested too deep"),
    (GOOD + "[1e999]", ":2: 1e999 is more than a float holds"),
    (GOOD + "[1]\n", ":2: expected a JSON object, found list"),
    (GOOD + '{"id":"2","question":"Q"}\n', "no golden answer (give one in"),
    (GOOD + '{"id":"2","text":"Q"}\n', "needs \"question\" and \"golden_answers\"; keys found: 'id', 'text'"),
    (GOOD + '{"id":null,"question":"Q","answer":"a"}\n', ":2: Question: id: input should be a text"),
    (GOOD + '{"id":"2","question":7,"answer":"a"}\n', ":2: Question: question: input should be a text"),
    (GOOD + '{"id":"2","question":"Q","golden_answers":[[[[[1]]]]]}\n', "a list of texts or numbers, found [1]"),
    (GOOD + '{"id":"2","question":"Q","golden_answers":["a"],"metadata":[1]}\n', "metadata: input should be an object"),
    ('[{"id":1},\n{"id":2', "one JSON object a line"),
    (GOOD + '{"id":"2","question":"Q","golden_answers":[]}\n', ":2: question '2' has no golden answer"),
    (GOOD + '{"id":"2","question":" ","golden_answers":["a"]}\n', ":2: the question is empty"),
    (GOOD + "\n" + GOOD, ":3: id '1' stands in line 1 already"),
], ids=lambda said: said[-40:])  # fmt: skip
def test_bad_questions_are_named_with_their_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text(text)
    with pytest.raises(DataError) as caught:
        read_questions(file)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_ids_are_unique_as_they_are_called_in_the_end(tmp_path: Path) -> None:
    """FlashRAG's ids are unique within one file: two files put together are fine where each row names its data set."""
    rows = [Question("train_0", "Which?", ("a",), dataset=name) for name in ("nq", "hotpotqa")]
    write_records(tmp_path / "q.jsonl", rows)
    assert [each.id for each in read_questions(tmp_path / "q.jsonl")] == ["nq/train_0", "hotpotqa/train_0"]
    write_records(tmp_path / "q.jsonl", [rows[0], Question("nq/train_0", "What?", ("a",))])
    with pytest.raises(DataError, match=":2: id 'nq/train_0' stands in line 1 already"):
        read_questions(tmp_path / "q.jsonl")


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"question file not found: .*nowhere\.jsonl"):
        read_questions(tmp_path / "nowhere.jsonl")
    with pytest.raises(DataError, match="is a folder"):
        read_questions(tmp_path)


def test_questions_keep_unknown_fields_on_the_way_through(tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text(GOOD)
    questions = read_questions(file)
    assert questions == [Question("1", "Which?", ("a",), {"k": 1}, extra={"source": "x"})]
    write_records(tmp_path / "again.jsonl", questions)
    assert json.loads((tmp_path / "again.jsonl").read_text()) == json.loads(GOOD)


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "f.json"
    file.write_text("old")
    with pytest.raises(RuntimeError), written_whole(file) as stream:
        stream.write("new")
        raise RuntimeError
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(("mask", "mode"), [(0o077, 0o600), (0o022, 0o644), (0o002, 0o664)])
def test_files_have_the_permissions_that_the_umask_leaves(mask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        write_json(tmp_path / "f.json", {})
        with written_whole(tmp_path / "f.bin", "wb") as stream:
            stream.write(b"x")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {mode}


def test_a_journal_drops_a_torn_last_line(tmp_path: Path) -> None:
    file = tmp_path / "j.jsonl"
    file.write_text('{"a":1}\n{"a":2}\n{"a":')
    with LineJournal(file) as journal:
        journal.append({"a": 3})
    assert [json.loads(line) for line in file.read_text().splitlines()] == [{"a": 1}, {"a": 2}, {"a": 3}]
    file.write_text("x" * 200_000)
    LineJournal(file).close()
    assert file.read_text() == ""


def refused(message: str, folder: Path, stage: str = "infer", **identity: object) -> None:
    """The run folder is not opened, with this message."""
    with pytest.raises(ConfigError, match=message), open_run(folder, stage, identity=identity, config={}):
        pass


def test_a_run_goes_on_with_the_same_configuration_only(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with open_run(run, "generate", identity={"search": {"rollouts": 7}}, config={}) as first:
        first.set(counts={"trees": 1})
    manifest = read_manifest(run)
    assert (manifest["status"], manifest["counts"], manifest["format"]) == ("done", {"trees": 1}, 1)
    assert manifest["ended"] >= manifest["started"]
    with open_run(run, "generate", identity={"search": {"rollouts": 7}}, config={}) as again:
        assert again.finished
    before = (run / "manifest.json").read_bytes()
    refused(r"search\.rollouts = 7, and is now asked for 5", run, "generate", search={"rollouts": 5})
    refused("is a run of 'generate', not of 'train'", run, "train")
    assert (run / "manifest.json").read_bytes() == before


def test_a_run_in_use_and_a_folder_of_other_files_are_refused(tmp_path: Path) -> None:
    with open_run(tmp_path / "run", "infer", identity={}, config={}):
        refused("in use by another process", tmp_path / "run")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    refused(r"holds other files \(thesis.txt", tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir() if path.name != ".lock"] == ["thesis.txt"]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    closed = Path("/sys/kernel") if os.geteuid() == 0 else tmp_path / "closed"  # root may write into any other
    if os.geteuid() != 0:
        closed.mkdir(mode=0o555)
    for folder in (closed, closed / "new"):
        refused(f"cannot write into the run folder {folder}", folder)


DAMAGED = [
    (b"{oops", ":1: not JSON: Expecting property name"),
    (b'{"stage":\n "x",}', ":2: not JSON"),
    (b"[]", ":1: expected a JSON object, found list"),
    (b"null", ":1: expected a JSON object, found NoneType"),
    ('{"stage":\n"café"}'.encode("latin-1"), ":2: not UTF-8: byte 0xe9"),
    (b'{"stage": "x", "config": {}}', ": identity is missing"),
    (b'{"stage": "x", "identity": {}, "config": []}', ": config: expected an object, found list"),
    (b'{"stage": "x", "identity": {}, "config": {}, "asked": {}}', ": asked: expected a count of questions, found {}"),
    (b'{"stage": "x", "identity": {"prompt": [[]]}, "config": {}}', ": prompt: expected an object, found [[]]"),
    (b'{"stage": "x", "identity": {}, "config": {}, "prompt": "p"}', ": prompt: expected an object, found 'p'"),
    (b'{"stage": "x", "identity": null, "config": {}}', ": identity: expected an object, found NoneType"),
]


@pytest.mark.parametrize(("content", "message"), DAMAGED, ids=[message for _, message in DAMAGED])
def test_a_damaged_manifest_is_one_line_with_file_and_remedy(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "manifest.json"
    file.write_bytes(content)
    for use in (
        lambda path: read_manifest(path, "identity"),
        lambda path: open_run(path, "x", identity={}, config={}).__enter__(),
    ):
        with pytest.raises(DataError) as caught:
            use(tmp_path)
        assert str(caught.value).startswith(f"{file}{message}")
        assert "restore it from a copy" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert file.read_bytes() == content


@pytest.mark.parametrize("name", ["a\0b.jsonl", "../a.jsonl", "é" * 200])
def test_a_run_whose_manifest_lists_what_is_no_file_of_it_goes_on(tmp_path: Path, name: str) -> None:
    facts = {"bytes": 1, "sha256": "0" * 64, "sample": None}
    for files in ({}, {name: facts}):
        with open_run(tmp_path, "x", identity={}, config={}):
            write_records(tmp_path / "rows.jsonl", [])
        manifest = read_manifest(tmp_path)
        assert {*manifest["files"]} == {"metrics.jsonl", "rows.jsonl"}
        write_json(tmp_path / "manifest.json", {**manifest, "files": {**manifest["files"], **files}})
    with open_run(tmp_path, "x", identity={}, config={}):
        pass
    assert {*read_manifest(tmp_path)["files"]} == {"metrics.jsonl", "rows.jsonl"}


def test_the_version_says_whether_the_checkout_was_changed(tmp_path: Path) -> None:
    shutil.copytree(Path(steprag.__file__).parent, tmp_path / "steprag", ignore=lambda *_: ["atlas", "__pycache__"])
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True)
    line = [sys.executable, "-B", "-c", "from steprag.runs.run import code_version; print(code_version())"]

    def said() -> str:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        ended = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        return ended.stdout.strip()

    clean = said()
    assert clean.startswith(f"{steprag.__version__}+")
    assert not clean.endswith(".dirty")
    with (tmp_path / "steprag" / "errors.py").open("a") as module:
        module.write("# changed\n")
    assert said() == f"{clean}.dirty"


@pytest.mark.parametrize(("error", "status"), [
    (BudgetReached("b"), "budget"), (KeyboardInterrupt(), "interrupted"), (ConfigError("c"), "failed"),
])  # fmt: skip
def test_the_manifest_says_how_a_run_ended(tmp_path: Path, error: BaseException, status: str) -> None:
    with pytest.raises(type(error)), open_run(tmp_path / "r", "infer", identity={}, config={}):
        raise error
    assert read_manifest(tmp_path / "r")["status"] == status


def _journal(folder: Path, reply: str | None) -> None:
    with closing(sqlite3.connect(folder / "calls.sqlite")) as database:
        database.executescript(SCHEMA)
        database.execute("INSERT INTO calls(question, reply) VALUES ('q', ?)", (reply,))
        database.commit()


@pytest.mark.parametrize(("leave", "taken"), [
    (lambda folder: None, True),
    (lambda folder: (folder / "trees.jsonl").touch(), True),
    (lambda folder: (folder / "failures.jsonl").write_text("{}\n"), True),
    (lambda folder: _journal(folder, None), True),
    (lambda folder: _journal(folder, "[]"), False),
    (lambda folder: (folder / "calls.sqlite").write_bytes(b"no journal"), False),
    (lambda folder: (folder / "trees.jsonl").write_text("{}\n"), False),
    (lambda folder: (folder / "notes.txt").write_text("mine"), False),
])  # fmt: skip
@pytest.mark.parametrize("stage", ["generate", "infer"])
def test_what_a_slip_leaves_is_no_reason_to_refuse(
    leave: Callable[[Path], None], taken: bool, stage: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt), open_run(run, "generate", identity={"model": "gtp"}, config={}):
        leave(run)
        raise KeyboardInterrupt
    if not taken:
        refused("with model = 'gtp', and" if stage == "generate" else "is a run of 'generate'", run, stage, model="g")
        return
    with open_run(run, stage, identity={"model": "gpt"}, config={}) as again:
        assert again.manifest["identity"] == {"model": "gpt"}
    assert {file.name for file in run.iterdir()} == {"manifest.json", "metrics.jsonl", ".lock"}


def test_overwrite_deletes_what_the_run_made_and_nothing_else(tmp_path: Path) -> None:
    run, paid = tmp_path / "run", tmp_path / "paid"
    for folder in (run, paid):
        with open_run(folder, "pairs", identity={"margin": 1}, config={}):
            (folder / "pairs.train.jsonl").write_text("{}\n")
    (run / "mine.jsonl").write_text("{}\n")
    _journal(paid, "[]")
    for folder, told in ((run, False), (paid, True)):
        with pytest.raises(ConfigError, match="choose another folder, or give --overwrite" if not told else "folder$"):
            open_run(folder, "pairs", identity={"margin": 2}, config={}, overwrite=told).__enter__()
    with open_run(run, "pairs", identity={"margin": 2}, config={}, overwrite=True):
        assert {file.name for file in run.glob("*.jsonl")} == {"mine.jsonl", "metrics.jsonl"}


def test_a_run_belongs_to_what_its_model_reads_beside_weights(tmp_path: Path) -> None:
    base, run = make_llama(tmp_path / "base", ["a b"]), tmp_path / "run"

    def opened() -> None:
        identity = model_identity(PolicyConfig(engine="transformers", model=str(base)))
        with open_run(run, "infer", identity={"policy": identity}, config={}):
            (run / "predictions.jsonl").write_text("{}\n")

    opened()
    opened()
    told = base / "tokenizer_config.json"
    told.write_text(json.dumps({**json.loads(told.read_text()), "add_bos_token": True}))
    with pytest.raises(ConfigError, match=r"policy\.configuration = .*config.json, tokenizer or template changed"):
        opened()
    manifest = read_manifest(run)
    del manifest["identity"]["policy"]["configuration"]
    write_json(run / "manifest.json", manifest)
    opened()  # a run of an earlier version, which did not know it
    assert "configuration" in read_manifest(run)["identity"]["policy"]


def test_a_killed_run_leaves_a_manifest_and_can_go_on(tmp_path: Path) -> None:
    code = (
        "import os,signal,sys; from steprag.runs.run import open_run\n"
        "with open_run(sys.argv[1], 'infer', identity={'a': 1}, config={}): os.kill(os.getpid(), signal.SIGKILL)"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path / "r")], env=os.environ, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert read_manifest(tmp_path / "r")["status"] == "running"
    with open_run(tmp_path / "r", "infer", identity={"a": 1}, config={}) as run:
        assert not run.finished


def test_a_blank_line_in_a_results_file_is_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "predictions.jsonl"
    file.write_text('{"id":"a"}\n\n{"id":"b"}\n')
    assert list(lines_of(file)) == [(1, {"id": "a"}, 0, 11), (3, {"id": "b"}, 12, 11)]
