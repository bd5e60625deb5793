"""Encoders and snapshots of strangers, each with one thing wrong: a line that names the file, no traceback."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from indexes.web.snapshot import FILE, Snapshot
from steprag.cli import main
from steprag.errors import ConfigError
from tests.indexing import write_corpus

Change = Callable[[Any], None]
"""Changes a JSON document in place."""


def renamed(module: str) -> Change:
    def change(modules: Any) -> None:
        modules[0]["type"] = module

    return change


def a_foreign_token(tokenizer: Any) -> None:
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary.update((word, 10**6) for word in [*vocabulary][5:])


@pytest.mark.parametrize(("file", "change", "said"), [
    ("modules.json", renamed("sentence_transformers.models.Transformdr"), "Transformdr"),
    ("modules.json", renamed("sentence_transformers.m.Transformer"), "cannot be loaded"),
    ("modules.json", renamed("sentence_transformers."), "cannot be loaded"),
    ("tokenizer_config.json", lambda config: config.update(model_max_length="a\x00b"), "invalid literal"),
    ("tokenizer_config.json", lambda config: config.update(model_max_length=float("inf")), "infinity"),
    ("tokenizer.json", a_foreign_token, "a token or a place that its weights lack"),
])  # fmt: skip
def test_an_encoder_that_is_wrong_is_refused_in_a_line(
    file: str, change: Change, said: str, encoder: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    folder = shutil.copytree(encoder, tmp_path / "theirs")
    (folder / "sentence_bert_config.json").unlink(missing_ok=True)
    document = json.loads((folder / file).read_text())
    change(document)
    (folder / file).write_text(json.dumps(document))
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    argv = ["index", "build", "--corpus", str(corpus), "--encoder", str(folder), "--out", str(tmp_path / "out")]
    assert main(argv) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert said in error
    assert str(folder) in error


def test_a_snapshot_whose_error_is_no_text_is_refused(tmp_path: Path) -> None:
    Snapshot(tmp_path).close()
    file = tmp_path / FILE
    content = file.read_bytes().replace(b"tablefactsfacts", b"tablef\xa0ctsfacts")
    file.write_bytes(content.replace(b"CREATE TABLE facts", b"CREATE TABL\x01 facts"))
    for frozen in (False, True):
        with pytest.raises(ConfigError, match=r"web.snapshot .* cannot be opened"):
            Snapshot(tmp_path, frozen=frozen)
