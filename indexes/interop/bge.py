"""BGE's own rerankers: M3's sparse and multi-vector scores beside its dense one, and MiniCPM with a head at each layer.

The arithmetic is that of arXiv 2402.03216, section 3.1, and of FlagEmbedding, which is not needed: tests compare both.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from indexes.encoding.encoders import find_encoder
from indexes.encoding.model_files import config_hash, longest_text, model_config, weight_files
from indexes.encoding.runtimes import device_here
from indexes.ranking.rankings import named
from steprag.engines.pretrained import from_pretrained
from steprag.engines.tensors import unwrapped
from steprag.engines.threads import one_load
from steprag.errors import ConfigError
from steprag.records.jsonl import files_hash, read_json, shaped

HEADS = ("sparse_linear.pt", "colbert_linear.pt")
"""Two linear layers that M3's folder has beside its encoder."""
WEIGHTS = {"dense": 0.4, "sparse": 0.2, "colbert": 0.4}
"""Weights of the three scores, as M3's card has them."""
BATCH = 16
UNWORDED = ("cls_token_id", "eos_token_id", "pad_token_id", "unk_token_id")
"""Tokens that weigh nothing in M3's sparse score."""
_NUMBERS = {b"FloatStorage": "float32", b"HalfStorage": "float16", b"BFloat16Storage": "bfloat16"}
_MOST = 1 << 26

GRANITE = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "hidden_act",
           "max_position_embeddings", "rms_norm_eps", "rope_theta")  # fmt: skip
"""Keys that MiniCPM's configuration shares with Granite's."""
PROMPT = (
    "Given a query A and a passage B, determine whether the passage contains an answer to the query by providing a"
    " prediction of either 'Yes' or 'No'."
)
PAIR = 512
"""Tokens of a query and its passage that the layerwise reranker reads, its prompt apart."""


def bge_at(name: str, device: str) -> M3Scorer | LayerwiseScorer | None:
    """The scorer of a folder that holds one of these; None for any other model. Raises ConfigError where none is."""
    folder = find_encoder(name)
    if all((folder / head).is_file() for head in HEADS):
        return M3Scorer(folder, device)
    config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    return LayerwiseScorer(folder, config, device) if {"start_layer", "scale_depth"} <= config.keys() else None


class M3Scorer:
    """BGE-M3's three scores of a query and a passage, weighed (`WEIGHTS`)."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        self._folder, self._device = folder, device_here(device)
        self.hash = named(files_hash([*weight_files(folder), *(folder / head for head in HEADS)]), config_hash(folder))

    def load(self) -> None:
        """Loads safetensors weights and the two layers, from this machine alone."""
        from transformers import AutoModel, AutoTokenizer

        with one_load():
            self._tokenizer: Any = from_pretrained(AutoTokenizer, str(self._folder), local_files_only=True)
            model = from_pretrained(AutoModel, str(unwrapped(self._folder)), fresh="pooler", local_files_only=True)
        self._model, width = model.eval().float().to(self._device), model.config.hidden_size
        self._longest = longest_text(self._folder, model_config(self._folder)) or 512
        self._sparse, self._colbert = (linear_of(self._folder / head, width).to(self._device) for head in HEADS)

    def score(self, query: str, texts: Sequence[str]) -> np.ndarray:
        """(len(texts),) weighted means of the three scores; greater is better."""
        return np.average([*self.parts(query, texts).values()], axis=0, weights=[*WEIGHTS.values()])

    def parts(self, query: str, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """(len(texts),) of each: dense, the cosine; sparse, the product of the weights of common tokens; colbert, the
        mean over the query's tokens of the greatest cosine to a passage's.
        """
        import torch

        with torch.inference_mode():
            dense, words, vectors, _ = self._read([query])
            found = []
            for start in range(0, len(texts), BATCH):
                theirs, weights, others, there = self._read(texts[start : start + BATCH])
                likeness = torch.einsum("in,pjn->pij", vectors[0], others).masked_fill(~there[:, None, :], -torch.inf)
                found.append(torch.stack([theirs @ dense[0], weights @ words[0], likeness.max(-1).values.mean(-1)]))
            return dict(zip(WEIGHTS, torch.cat(found, 1).cpu().numpy(), strict=True))

    def _read(self, texts: Sequence[str]) -> tuple[Any, Any, Any, Any]:
        """Of n texts: vectors (n, d), weights of words (n, vocabulary), vectors of tokens but the first (n, t, d) and
        which of these are no padding (n, t).
        """
        import torch
        from torch.nn.functional import normalize

        how: dict[str, Any] = {"padding": True, "truncation": True, "max_length": self._longest}
        batch = self._tokenizer(list(texts), return_tensors="pt", **how).to(self._device)
        hidden = self._model(**batch).last_hidden_state
        words = torch.zeros(len(texts), self._model.config.vocab_size, device=self._device)
        words = words.scatter_reduce(1, batch["input_ids"], torch.relu(self._sparse(hidden)).squeeze(-1), "amax")
        words[:, [one for name in UNWORDED if (one := getattr(self._tokenizer, name)) is not None]] = 0
        there = batch["attention_mask"][:, 1:].bool()
        return normalize(hidden[:, 0], dim=-1), words, normalize(self._colbert(hidden[:, 1:]), dim=-1), there


class LayerwiseScorer:
    """bge-reranker-v2-minicpm-layerwise's score behind layer `cutoff_layers` of its config.json; where it names none,
    the last. MiniCPM's arithmetic is Granite's under other names, so no code of the folder's is run.
    """

    def __init__(self, folder: Path, config: dict[str, Any], device: str = "cpu") -> None:
        self._folder, self._config, self._device = folder, config, device_here(device)
        with shaped(folder / "config.json", remedy="copy the model's folder again"):
            first, last = config["start_layer"], config["num_hidden_layers"]
            cut = config.get("cutoff_layers") or last
            self._cut: int = cut[-1] if isinstance(cut, list) else cut
            inside = first <= self._cut <= last
        if config.get("head_type") != "simple" or not config.get("head_multi") or not inside:
            raise ConfigError(f"{folder} cannot be scored behind layer {self._cut}; its config.json may name one of"
                              f" {first} to {last}, with simple heads; or give BAAI/bge-reranker-v2-m3")  # fmt: skip
        self.hash = named(files_hash(weight_files(folder)), config_hash(folder), self._cut)

    def load(self) -> None:
        """Loads the layers up to the cut and its head: safetensors weights, from this machine alone."""
        from safetensors import safe_open
        from transformers import AutoTokenizer, GraniteConfig, GraniteModel

        given, wanted = self._config, f"lm_head.{self._cut - self._config['start_layer']}.linear_head.weight"
        with shaped(self._folder / "config.json", remedy="copy the model's folder again"):
            config = GraniteConfig(
                **{key: given[key] for key in GRANITE if key in given}, num_hidden_layers=self._cut,
                embedding_multiplier=given["scale_emb"],
                residual_multiplier=given["scale_depth"] / math.sqrt(given["num_hidden_layers"]),
                attention_multiplier=(given["hidden_size"] // given["num_attention_heads"]) ** -0.5,
            )  # fmt: skip
        left_out = {"_keys_to_ignore_on_load_unexpected": [r"lm_head\.", r"layers\.\d+\."]}  # else each is told of
        with one_load():
            self._tokenizer: Any = from_pretrained(AutoTokenizer, str(self._folder), local_files_only=True)
            model = type("GraniteModel", (GraniteModel,), left_out)
            model = from_pretrained(model, str(unwrapped(self._folder)), local_files_only=True, config=config)
        self._model = (model.float() if self._device == "cpu" else model).eval().to(self._device)
        for file in weight_files(self._folder):
            with safe_open(file, "pt") as weights:
                if wanted in weights.keys():  # noqa: SIM118 (no mapping)
                    self._head = weights.get_tensor(wanted)[0].float().to(self._model.device)
                    return
        raise ConfigError(f"{self._folder} lacks {wanted}; copy the model's folder again")

    def score(self, query: str, texts: Sequence[str]) -> np.ndarray:
        """(len(texts),) logits; greater is better."""
        import torch
        from torch.nn.utils.rnn import pad_sequence

        rows, scores = [torch.tensor(ids) for ids in self._prompts(query, texts)], []
        with torch.inference_mode():
            for start in range(0, len(rows), BATCH):  # what pads a row stands behind its end, where nothing looks
                some = rows[start : start + BATCH]
                hidden = self._model(pad_sequence(some, batch_first=True).to(self._device)).last_hidden_state
                scores += [hidden[place, len(row) - 1].float() @ self._head for place, row in enumerate(some)]
        return torch.stack(scores).float().cpu().numpy()

    def _prompts(self, query: str, texts: Sequence[str]) -> list[list[int]]:
        """The prompt of each pair, as the model was trained on it."""
        said = ["\n", PROMPT, f"A: {query}", *(f"B: {text}" for text in texts)]
        line, asked, first, *others = self._tokenizer(said, add_special_tokens=False)["input_ids"]
        first = [self._tokenizer.bos_token_id, *first[: PAIR * 3 // 4]]
        room = PAIR + len(line) + len(asked) - len(first)
        return [[*first, *[*line, *second[:PAIR]][:room], *line, *asked] for second in others]


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
