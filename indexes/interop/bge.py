"""What FlagEmbedding alone scores, as rerankers: M3's sparse and multi-vector scores, layerwise rerankers.

M3's arithmetic stands here, since it is short (arXiv 2402.03216, section 3.1); tests hold it against the package. A
layerwise reranker is a model class of the package (extra `flagembedding`).
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from indexes.encoding.encoders import find_encoder, longest_text, model_config, weight_files
from steprag.engines.pretrained import check_complete, from_pretrained, loading
from steprag.engines.threads import one_load
from steprag.errors import ConfigError, quoted
from steprag.records.jsonl import files_hash, read_json

HEADS = ("sparse_linear.pt", "colbert_linear.pt")
"""Two linear layers that M3's folder has beside its encoder."""
WEIGHTS = {"dense": 0.4, "sparse": 0.2, "colbert": 0.4}
"""Weights of the three scores, as M3's card has them."""
LAYERWISE = "LayerWise"
BATCH = 16
UNWORDED = ("cls_token_id", "eos_token_id", "pad_token_id", "unk_token_id")
"""Tokens that weigh nothing in M3's sparse score."""
_NUMBERS = {b"FloatStorage": "float32", b"HalfStorage": "float16", b"BFloat16Storage": "bfloat16"}
_MOST = 1 << 26


def scorer_at(name: str, device: str) -> Any:
    """The scorer of a folder or hub id that needs one of these; None for any other. `name@N`: a layerwise reranker's
    score after N layers. Raises ConfigError where it is not there, or has no layer N.
    """
    bare, at, layer = name.rpartition("@") if re.search(r"@\d+$", name) else (name, "", "")
    folder = find_encoder(bare)
    config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    if all((folder / head).is_file() for head in HEADS):
        return M3Scorer(folder, device)
    if not str((config.get("architectures") or [""])[0]).startswith(LAYERWISE):
        if at:
            raise ConfigError(f"reranker {quoted(name)}: only a layerwise one scores after a layer; leave @{layer} out")
        return None
    if importlib.util.find_spec("FlagEmbedding") is None:
        raise ConfigError(f"reranker {quoted(name)} needs FlagEmbedding; pip install -e '.[flagembedding]'")
    first, last = int(config.get("start_layer", 1)), int(config["num_hidden_layers"])
    if layer and not first <= int(layer) <= last:
        raise ConfigError(f"reranker {quoted(name)} scores after layers {first} to {last}")
    return LayerwiseScorer(folder, device, int(layer or last))


class M3Scorer:
    """BGE-M3's three scores of a query and a passage, weighed (`WEIGHTS`)."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        self._folder, self._device = folder, device
        self.hash = files_hash([*weight_files(folder), *(folder / head for head in HEADS)])

    def load(self) -> None:
        """Loads safetensors weights and the two layers, from this machine alone."""
        from transformers import AutoModel, AutoTokenizer

        with one_load():
            self._tokenizer: Any = from_pretrained(AutoTokenizer, str(self._folder), local_files_only=True)
            model = from_pretrained(AutoModel, str(self._folder), local_files_only=True)
        check_complete(model, self._folder, unread="pooler")
        self._model = model.eval().to(self._device)
        self._longest = longest_text(self._folder, model_config(self._folder)) or 512
        self._sparse, self._colbert = (
            linear_of(self._folder / head, model.config.hidden_size).to(self._device) for head in HEADS
        )

    def score(self, query: str, texts: Sequence[str]) -> np.ndarray:
        """(len(texts),) weighted means of the three scores; greater is better."""
        parts = self.parts(query, texts)
        return sum((WEIGHTS[name] * parts[name] for name in WEIGHTS), np.zeros(len(texts))) / sum(WEIGHTS.values())

    def parts(self, query: str, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """(len(texts),) of each: dense, the cosine; sparse, the product of the weights of common tokens; colbert, the
        mean over the query's tokens of the greatest cosine to a passage's.
        """
        import torch

        found: dict[str, list[Any]] = {name: [] for name in WEIGHTS}
        with torch.inference_mode():
            dense, sparse, vectors, mask = self._read([query])
            for start in range(0, len(texts), BATCH):
                theirs, weights, others, there = self._read(texts[start : start + BATCH])
                likeness = torch.einsum("in,pjn->pij", vectors[0], others).masked_fill(~there[:, None, :], -torch.inf)
                found["dense"].append(theirs @ dense[0])
                found["sparse"].append(weights @ sparse[0])
                found["colbert"].append(likeness.max(-1).values.sum(-1) / mask[0].sum())
        return {name: torch.cat(each).cpu().numpy() for name, each in found.items()}

    def _read(self, texts: Sequence[str]) -> tuple[Any, Any, Any, Any]:
        """Of n texts: vectors (n, d), weights of words (n, vocabulary), vectors of tokens but the first (n, t, d) and
        which of these are no padding (n, t).
        """
        import torch
        from torch.nn.functional import normalize

        batch = self._tokenizer(
            list(texts), padding=True, truncation=True, max_length=self._longest, return_tensors="pt"
        ).to(self._device)
        hidden, ids = self._model(**batch).last_hidden_state, batch["input_ids"]
        words = torch.zeros(len(texts), self._model.config.vocab_size, device=self._device)
        words = words.scatter_reduce(1, ids, torch.relu(self._sparse(hidden)).squeeze(-1), "amax")
        words[:, [id for name in UNWORDED if (id := getattr(self._tokenizer, name)) is not None]] = 0
        there = batch["attention_mask"][:, 1:].bool()
        return normalize(hidden[:, 0], dim=-1), words, normalize(self._colbert(hidden[:, 1:]), dim=-1), there


def linear_of(path: Path, width: int) -> Any:
    """The linear layer over `width` numbers that torch saved. The pickle in its archive is not run: it is searched for
    the kind of its numbers, which lie beside it, weight first. Raises ConfigError for anything else.
    """
    import torch

    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {info.filename: info.file_size for info in archive.infolist()}
            if sum(sizes.values()) > _MOST:
                raise ValueError
            told = archive.read(next(name for name in sizes if name.endswith("/data.pkl")))
            kind = getattr(torch, next(number for storage, number in _NUMBERS.items() if storage in told))
            names = sorted(name for name in sizes if re.search(r"/data/\d+$", name))
            weight, bias = (torch.frombuffer(bytearray(archive.read(name)), dtype=kind).float() for name in names)
        layer = torch.nn.Linear(width, len(bias))
        layer.load_state_dict({"weight": weight.reshape(len(bias), width), "bias": bias})
    except (OSError, zipfile.BadZipFile, StopIteration, ValueError, RuntimeError):
        raise ConfigError(f"{path} holds no linear layer over {width} numbers; copy the model's folder again") from None
    return layer.eval()


class LayerwiseScorer:
    """A layerwise reranker (bge-reranker-v2-minicpm-layerwise): the score after one of its layers."""

    def __init__(self, folder: Path, device: str, layer: int) -> None:
        self._folder, self._device, self._layer = folder, device, layer
        self.hash = f"{files_hash(weight_files(folder))}@{layer}"

    def load(self) -> None:
        """Loads safetensors weights into the package's class; no code of the folder's is run."""
        with one_load(), loading(self._folder):
            package: Any = importlib.import_module("FlagEmbedding.inference.reranker.decoder_only.layerwise")
            self._model = package.LayerWiseLLMReranker(
                str(self._folder), devices=self._device, cutoff_layers=[self._layer], use_fp16=self._device != "cpu",
                trust_remote_code=False,
            )  # fmt: skip
            self.score("?", ["?"])

    def score(self, query: str, texts: Sequence[str]) -> np.ndarray:
        """(len(texts),) logits; greater is better."""
        return np.atleast_1d(np.asarray(self._model.compute_score([(query, text) for text in texts])))
