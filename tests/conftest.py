"""Fixtures that several test files share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.models import make_encoder, make_llama
from tests.training_parts import pair_row, step_row, train, write


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence-transformers folder with random weights: 16 dimensions, loads in a blink."""
    return make_encoder(tmp_path_factory.mktemp("encoder"), seed=0)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama of two blocks with a ChatML tokenizer."""
    return make_llama(tmp_path_factory.mktemp("tiny"), [json.dumps(pair_row(n)) for n in range(20)])


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    write(folder / "sft.train.jsonl", [step_row(n) for n in range(16)])
    write(folder / "pairs.train.jsonl", [pair_row(n) for n in range(16)])
    write(folder / "pairs.val.jsonl", [pair_row(n) for n in range(16, 20)])
    (folder / "manifest.json").write_text(json.dumps({"prompt": {"profile": "transcript", "hash": "abc"}}))
    return folder


@pytest.fixture(scope="session")
def warm(tiny: Path, pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter trained for eight steps."""
    out = tmp_path_factory.mktemp("warm")
    assert train(tiny, pairs, out, "sft", "--epochs", "2") == 0
    return out
