"""Encoders in ONNX Runtime and OpenVINO beside PyTorch, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from indexes.build import build_index
from indexes.encoding import runtimes
from indexes.encoding.embed import Encoder
from indexes.encoding.encoders import Overrides, read_spec
from indexes.manifest import read_index_manifest
from steprag.errors import ConfigError
from tests.indexing import PASSAGES, ask, small, write_corpus

BACKENDS = ("onnx", "openvino")


def test_a_missing_package_is_named_before_anything_is_read(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(runtimes.PACKAGES, "onnx", ("no_such_runtime",))
    corpus = write_corpus(tmp_path / "c.jsonl")
    with pytest.raises(ConfigError, match=r"--backend onnx needs no_such_runtime; pip install -e '.\[onnx\]'"):
        build_index(str(corpus), tmp_path / "index", small(encoder, backend="onnx"))
    assert [path.name for path in tmp_path.iterdir()] == ["c.jsonl"]


@pytest.mark.parametrize("values", [{"dtype": "int8"}, {"dtype": "bfloat16"}])
def test_backends_are_for_float32(encoder: Path, values: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(runtimes.PACKAGES, "onnx", ())
    spec = read_spec(str(encoder), encoder, Overrides())
    with pytest.raises(ConfigError, match="on a CPU in float32"):
        Encoder(encoder, spec, backend="onnx", **values)  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_another_runtime_gives_the_vectors_of_torch(backend: runtimes.Backend, encoder: Path, tmp_path: Path) -> None:
    spec, texts = read_spec(str(encoder), encoder, Overrides()), [text for _, _, text in PASSAGES]
    texts += ["short", " ".join(texts) * 2]  # other lengths and batches than the export saw
    plain, other = (Encoder(encoder, spec, backend=name).encode_passages(texts) for name in ("torch", backend))
    assert float((plain * other).sum(axis=1).min()) > 0.9999
    corpus = write_corpus(tmp_path / "c.jsonl")
    index = build_index(str(corpus), tmp_path / "index", small(encoder, backend=backend)).path
    assert read_index_manifest(index).index.parameters == {"backend": backend}
    usual = build_index(str(corpus), tmp_path / "usual", small(encoder)).path
    found, wanted = (ask(folder, "iron", "a violin") for folder in (index, usual))
    assert [[p.id for p in row] for row in found] == [[p.id for p in row] for row in wanted]
    scores = [np.array([p.score for row in rows for p in row]) for rows in (found, wanted)]
    assert np.abs(scores[0] - scores[1]).max() < 1e-3
    with pytest.raises(ConfigError, match=f"vectors encoded in {backend}; choose another"):
        build_index(str(corpus), index, small(encoder))
