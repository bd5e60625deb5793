"""Encoders: what their files say, how passages go through them, and other runtimes beside PyTorch. Those of strangers,
each with one thing wrong: a line that names the file, no traceback.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apps.commands import main
from indexes.commands.build import build_index
from indexes.encoding import runtimes
from indexes.encoding.embed import Encoder, batches
from indexes.encoding.encoders import Overrides, find_encoder, read_spec, weight_files
from indexes.folder.manifest import read_index_manifest
from steprag.errors import ConfigError
from tests.indexing import PASSAGES, ask, small, write_corpus


def test_spec_is_read_from_the_models_files(encoder: Path) -> None:
    spec = read_spec(str(encoder), encoder, Overrides())
    assert (spec.pooling, spec.dimension, spec.max_length) == ("cls", 16, 64)
    assert (spec.query_prefix, spec.passage_prefix) == ("find: ", "")
    assert read_spec(str(encoder), encoder, Overrides(32, "", "p: ")).passage_prefix == "p: "


def test_encoders_that_are_refused(encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'nothing' not found; known: minilm"):
        find_encoder("nothing")
    with pytest.raises(ConfigError, match="it has no config.json"):
        read_spec("x", tmp_path, Overrides())
    shards = shutil.copytree(encoder, tmp_path / "shards")
    shard = (shards / "model.safetensors").rename(shards / "model.safetensors-00001-of-00001.safetensors")
    assert weight_files(shards) == [shard], "as Qwen3.5 names them"
    shard.write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(ConfigError, match="is a pointer of Git LFS"):
        read_spec("x", shards, Overrides())
    pickled = shutil.copytree(encoder, tmp_path / "pickled")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="no safetensors"):
        read_spec("x", pickled, Overrides())
    foreign = shutil.copytree(encoder, tmp_path / "foreign")
    modules = json.loads((foreign / "modules.json").read_text())
    modules[0]["type"] = "custom_code.Model"
    (foreign / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ConfigError, match="code of its own"):
        read_spec("x", foreign, Overrides())


def test_a_plain_transformers_folder_needs_a_pooling_that_somebody_knows(encoder: Path, tmp_path: Path) -> None:
    plain = shutil.copytree(encoder, tmp_path / "some-model")
    for name in ("modules.json", "config_sentence_transformers.json"):
        (plain / name).unlink()
    with pytest.raises(ConfigError, match="does not say how it pools tokens.*--pooling cls or --pooling mean"):
        read_spec(str(plain), plain, Overrides())
    given = read_spec(str(plain), plain, Overrides(pooling="cls"))
    own = Encoder(encoder, read_spec("e", encoder, Overrides(max_length=given.max_length)))
    assert np.allclose(Encoder(plain, given).encode_passages(["iron"]), own.encode_passages(["iron"]), atol=1e-6)
    known = plain.rename(tmp_path / "bge-base-en-v1.5")
    assert read_spec(str(known), known, Overrides()).pooling == "cls"


def test_batches_hold_so_many_tokens_and_lose_no_row() -> None:
    lengths = [3, 90, 7, 7, 20, 1, 64, 20]
    found = list(batches(lengths, 64))
    assert sorted(row for batch in found for row in batch) == list(range(len(lengths)))
    assert found[0] == [1]  # longer than a batch: alone
    assert all(max(lengths[row] for row in batch) * len(batch) <= 64 for batch in found[1:])


def test_vectors_are_those_of_sentence_transformers(encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sentence_transformers import SentenceTransformer

    monkeypatch.setattr("indexes.encoding.embed.TOKENISED", 7)
    spec = read_spec("e", encoder, Overrides(passage_prefix="p: "))
    texts = ["iron " * n for n in range(1, 40)]
    own = SentenceTransformer(str(encoder), device="cpu")
    expected = own.encode([f"p: {text}" for text in texts], normalize_embeddings=True)
    seen: list[int] = []
    ours, turned = Encoder(encoder, spec), texts[::-1]
    found = ours.encode_tokens(turned, ours.tokenise(turned), batch_tokens=100, progress=seen.append)
    assert np.allclose(found, expected[::-1], atol=1e-5)
    assert (found.dtype, sum(seen)) == (np.float32, len(texts))


def test_int8_is_close_and_another_vector(encoder: Path, tmp_path: Path) -> None:
    spec = read_spec("e", encoder, Overrides())
    texts = ["iron " * n for n in range(1, 9)]
    full, short = (Encoder(encoder, spec, dtype=dtype).encode_passages(texts) for dtype in ("float32", "int8"))
    assert np.all((full * short).sum(axis=1) > 0.98)
    assert not np.array_equal(full, short)
    with pytest.raises(ConfigError, match="int8 encodes on a CPU"):
        Encoder(encoder, spec, dtype="int8", device="cuda")


def test_encoders_loaded_at_once_leave_transformers_as_it_was(encoder: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from transformers import PreTrainedModel

    tie, spec = PreTrainedModel.tie_weights, read_spec("e", encoder, Overrides())
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: Encoder(encoder, spec), range(12)))
    assert PreTrainedModel.tie_weights is tie


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
def test_another_runtime_gives_the_vectors_of_torch(
    backend: runtimes.Backend, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPRAG_CACHE", str(tmp_path / "cache"))
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
    left = [path for path in (tmp_path / "cache" / "onnx").iterdir() if path.suffix != ".lock"]
    assert len(left) == 1  # converted once, and nothing half written is left
    (left[0] / "model.onnx").write_bytes(b"no model")
    with pytest.raises(ConfigError, match="model.onnx cannot be run: .*remove its folder, or give --backend torch"):
        Encoder(encoder, spec, backend=backend)


@pytest.mark.parametrize(("factor", "told"), [
    (1.0, "encoded by openvino (cosine to torch's vectors 1.0"),
    (0.1, "encoded by torch, not by openvino (cosine to torch's vectors 0."),
    (None, "encoded by torch, not by openvino (RuntimeError: no such operator)"),
])  # fmt: skip
def test_queries_take_the_faster_runtime_where_its_vectors_are_those_of_torch(
    factor: float | None, told: str, encoder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def runtime(own: Any, threads: int) -> runtimes.Run:
        if factor is None:
            raise RuntimeError("no such operator")

        def run(given: dict[str, np.ndarray]) -> np.ndarray:
            found = own(**{name: torch.from_numpy(ids) for name, ids in given.items()}).last_hidden_state.numpy()
            return found * np.linspace(1.0, factor, found.shape[2], dtype=np.float32)

        return run

    import torch

    monkeypatch.setattr(runtimes, "PACKAGES", {})
    monkeypatch.setattr(runtimes, "_exported", lambda model, key: deepcopy(model).forward)
    monkeypatch.setattr(runtimes, "_openvino", runtime)
    spec = read_spec(str(encoder), encoder, Overrides())
    both = [Encoder(encoder, spec, backend=name) for name in ("torch", "auto")]
    plain, auto = (one.encode_queries(["iron"]) for one in both)
    assert np.abs(plain - auto).max() < 1e-5
    held = [any(weight.numel() for weight in one._model[0].model.parameters()) for one in both]
    assert held == [True, factor != 1.0]  # PyTorch's weights, which another runtime does not need
    shown = capsys.readouterr().err
    assert (f"index: queries are {told}" in shown, "a query is longer" in shown) == (True, False)


# --- encoders of strangers --------------------------------------------------------------------------------------------


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
