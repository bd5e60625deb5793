"""Fixtures that several test files share."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from apps.commands import main
from apps.viewer import answers
from indexes.commands.build import IndexConfig, build_index
from indexes.folder.sealing import Built
from steprag.config.load import load_config
from steprag.records.jsonl import write_records
from steprag.types import Question
from tests.fakes import QUESTION, WORLD, Endpoint, Start, chat_reply, options, serve
from tests.grpo_parts import make_speaker
from tests.indexing import small, words_index, write_corpus
from tests.levels import LEVEL, SEED
from tests.models import make_encoder, make_llama
from tests.training_parts import Capture, Refused, make_qwen2, pair_row, step_row, train, write, write_labels
from tests.web_site import Web, web


def pytest_report_header() -> str:
    return f"level: {LEVEL}; seed of the mutations: {SEED} (STEPRAG_FUZZ_SEED={SEED} repeats it)"


def pytest_configure() -> None:
    """A shell's background job ignores SIGINT, and so would each process that a test starts and then interrupts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files with slow tests first: a process that takes one last would work on alone. The tests of a file that has a
    fixture or a `@cache` for all of them stay in one process; the others go one by one to whoever is free.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
    if not config.getoption("loadgroup", False):
        return
    shared = re.compile(r"\(scope=|^@cache$", re.MULTILINE)
    together = {path for path in {item.path for item in items} if shared.search(path.read_text(encoding="utf-8"))}
    for item in items:
        if item.path in together:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


@pytest.fixture(autouse=True)
def _transformers_as_it_was() -> Iterator[None]:
    """A test that leaves a model loading in a thread would spoil the models of the next one (see one_load)."""
    yield
    if modeling := sys.modules.get("transformers.modeling_utils"):
        assert modeling.PreTrainedModel.tie_weights.__name__ == "tie_weights", "a load of weights still runs"


@pytest.fixture(autouse=True)
def _viewer_reads_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The viewer reads on in a file for a part of a second, and a page asks again. A test asks once: however slow the
    machine is, it gets the whole file.
    """
    for name in ("SLICE", "FIRST"):
        monkeypatch.setattr(answers, name, 60.0)


@pytest.fixture
def here(encoder: Path, tmp_path: Path) -> Iterator[Web]:
    """A site and search engines on this machine."""
    with web() as running:
        running.folder, running.encoder = tmp_path, encoder
        yield running


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence-transformers folder with random weights: 16 dimensions, loads in a blink."""
    return make_encoder(tmp_path_factory.mktemp("encoder"), seed=0)


@pytest.fixture(scope="session")
def encoder(tiny_encoder: Path) -> Path:
    return tiny_encoder


@pytest.fixture(scope="session")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("minilm")
    return build_index(str(write_corpus(folder / "corpus.jsonl")), folder / "index", load_config(IndexConfig))


@pytest.fixture(scope="session")
def pristine(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index by the small encoder; tests that break one copy it."""
    folder = tmp_path_factory.mktemp("small")
    return build_index(str(write_corpus(folder / "corpus.jsonl")), folder / "index", small(encoder)).path


@pytest.fixture(scope="session")
def world_index(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The passages of `tests.fakes.WORLD` by the small encoder."""
    folder = tmp_path_factory.mktemp("world")
    write_records(folder / "corpus.jsonl", [{"id": p.id, "title": p.title, "text": p.text} for p in WORLD])
    return build_index(str(folder / "corpus.jsonl"), folder / "index", small(encoder)).path


@pytest.fixture(scope="session")
def word_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same passages by their words: no weights are loaded."""
    return words_index(tmp_path_factory.mktemp("words"), WORLD)


@pytest.fixture(scope="session")
def atlas_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Atlas as `steprag index build --corpus atlas` makes it: once for all processes of a run, to be copied."""
    here = tmp_path_factory.getbasetemp()
    shared = here.parent if os.environ.get("PYTEST_XDIST_WORKER") else here
    with FileLock(shared / "atlas.lock"):
        assert main(["index", "build", "--corpus", "atlas", "--out", str(shared / "atlas-index")]) == 0
    return shared / "atlas-index"


@pytest.fixture
def index(pristine: Path, tmp_path: Path) -> Path:
    return shutil.copytree(pristine, tmp_path / "index")


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """A file of twelve questions, q0 to q11."""
    file = tmp_path / "questions.jsonl"
    write_records(file, [Question(f"q{i}", f"{QUESTION} ({i})", ("lek",), {"type": "bridge"}) for i in range(12)])
    return file


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    """It answers as `tests.fakes.beginner` does."""
    with serve(chat_reply()) as running:
        yield running


@pytest.fixture
def start(endpoint: Endpoint, questions: Path, world_index: Path, tmp_path: Path) -> Start:
    """Runs a command over the questions into a folder below `tmp_path`; gives its exit code."""

    def started(command: str, folder: str, *more: str, at: Endpoint = endpoint, index: Path = world_index) -> int:
        return main([command, *options(at, questions, index, tmp_path / folder, *more)])

    return started


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama of two blocks with a ChatML tokenizer."""
    return make_llama(tmp_path_factory.mktemp("tiny"), [json.dumps(pair_row(n)) for n in range(20)])


@pytest.fixture(scope="session")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_qwen2(tmp_path_factory.mktemp("qwen2"))


@pytest.fixture(scope="session")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_speaker(tmp_path_factory.mktemp("speaker"))


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    write_labels(folder)
    write(folder / "sft.train.jsonl", [step_row(n) for n in range(16)])
    write(folder / "pairs.train.jsonl", [pair_row(n) for n in range(16)])
    write(folder / "pairs.val.jsonl", [pair_row(n) for n in range(16, 20)])
    (folder / "manifest.json").write_text(json.dumps({"prompt": {"profile": "transcript", "hash": "abc"}}))
    return folder


@pytest.fixture
def refused(tiny: Path, pairs: Path, tmp_path: Path, capsys: Capture) -> Refused:
    """Checks that a training is refused in these words before a folder is made."""

    def check(stage: str, said: str, *options: str, model: Path = tiny, rows: Path = pairs) -> None:
        assert train(model, rows, tmp_path / "refused", stage, *options) == 2
        assert said in capsys.readouterr().err
        assert not (tmp_path / "refused").exists()

    return check


@pytest.fixture(scope="session")
def warm(tiny: Path, pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter trained for eight steps."""
    out = tmp_path_factory.mktemp("warm")
    assert train(tiny, pairs, out, "sft", "--epochs", "2") == 0
    return out


@pytest.fixture(scope="session")
def ray_variables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A Ray cluster of this session's own, by the variables that lead to it."""
    from tests.ray_parts import a_cluster

    with a_cluster(tmp_path_factory.mktemp("ray")) as variables:
        yield variables


@pytest.fixture
def on_cluster(ray_variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands find that cluster."""
    for name, value in ray_variables.items():
        monkeypatch.setenv(name, value)
