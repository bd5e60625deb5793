"""Encoders: which model turns text into vectors, how it pools, and what stands before queries and passages.

The facts come from the model's own sentence-transformers files; two families that need a prefix but do not say so in
their files are in `FAMILIES`. Weights are read as safetensors only and no code of a model is run.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from steprag.engines.models import embedded_encoder
from steprag.errors import ConfigError, RetrieverError
from steprag.files import file_hash
from steprag.threads import spin_briefly

EMBEDDED = "minilm"
NAMES = {
    "bge-small": "BAAI/bge-small-en-v1.5",
    "bge-base": "BAAI/bge-base-en-v1.5",
    "bge-large": "BAAI/bge-large-en-v1.5",
    "e5-base": "intfloat/e5-base-v2",
}
"""Short names of models on the hub; `minilm` is the embedded one."""

FAMILIES = (
    (re.compile(r"bge-(small|base|large)-en"), "Represent this sentence for searching relevant passages: ", ""),
    (re.compile(r"(^|[-/_])e5-(small|base|large)(?!.*instruct)"), "query: ", "passage: "),
)
"""(pattern of the model's name, query prefix, passage prefix), as the models' cards give them."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_FILES = ["*.json", "*.txt", "*.model", "model*.safetensors", "*_Pooling/*", "*_Dense/*.safetensors"]
_CHUNK_BATCHES = 16
"""Batches between two reports of progress."""


@dataclass(frozen=True)
class EncoderSpec:
    """What decides a vector. Vectors of two encoders can be compared only where the specs are equal but for `name`.

    `max_length` in tokens; longer text is cut. `weight_hash`: SHA-256 of the safetensors file (of all their hashes
    where there are several). `revision`: the hub's commit where it is known.
    """

    name: str
    weight_hash: str
    pooling: str
    normalise: bool
    query_prefix: str
    passage_prefix: str
    max_length: int
    dimension: int
    revision: str | None = None


class TextEncoder(Protocol):
    """What the retriever asks of an encoder."""

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray: ...


@dataclass(frozen=True)
class Overrides:
    """What a configuration may set against the model's own files; None leaves them."""

    max_length: int | None = None
    query_prefix: str | None = None
    passage_prefix: str | None = None


def find_encoder(name: str) -> Path:
    """The folder of an encoder: `minilm`, a short name, a folder, or a hub id (fetched). Raises ConfigError."""
    if name == EMBEDDED:
        return embedded_encoder()
    if Path(name).expanduser().is_dir():
        return Path(name).expanduser().resolve()
    hub = NAMES.get(name, name)
    if not _HUB_ID.fullmatch(hub) or name.startswith("."):
        known = ", ".join([EMBEDDED, *NAMES])
        raise ConfigError(f"encoder {name!r} not found; known: {known}, a sentence-transformers folder or a hub id")
    return _from_hub(hub)


def _from_hub(hub: str) -> Path:
    from huggingface_hub import snapshot_download

    # The root of whichever HTTP library the hub's client uses.
    from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage]

    try:
        return Path(snapshot_download(hub, allow_patterns=_HUB_FILES))
    except (HTTPError, OSError, ValueError) as error:  # ValueError: the hub's word for a malformed id
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(f"encoder {hub!r}: not on this machine and not fetched: {reason[:200]}"
                          " (download it elsewhere and give its folder)") from None  # fmt: skip


def read_spec(name: str, folder: Path, overrides: Overrides) -> EncoderSpec:
    """The spec of a sentence-transformers folder, without loading the model. Raises ConfigError."""
    try:
        return _spec(name, folder, overrides)
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{folder} is no sentence-transformers folder that can be read: missing {error}") from None


def _spec(name: str, folder: Path, overrides: Overrides) -> EncoderSpec:
    modules = _modules(folder)
    pooling = _pooling(folder / modules["Pooling"])
    config = _json(folder / "config.json")
    query_prefix, passage_prefix = _prefixes(name, folder)
    dimension = pooling.get("embedding_dimension") or pooling.get("word_embedding_dimension") or config["hidden_size"]
    if "Dense" in modules:
        dimension = _json(folder / modules["Dense"] / "config.json")["out_features"]
    return EncoderSpec(
        name=name if name == EMBEDDED or name in NAMES or not Path(name).expanduser().is_dir() else str(folder),
        weight_hash=_weight_hash(folder),
        pooling=pooling["mode"],
        normalise=True,
        query_prefix=query_prefix if overrides.query_prefix is None else overrides.query_prefix,
        passage_prefix=passage_prefix if overrides.passage_prefix is None else overrides.passage_prefix,
        max_length=overrides.max_length or _longest(folder, config),
        dimension=int(dimension),
        revision=folder.name if folder.parent.name == "snapshots" else None,
    )


def _longest(folder: Path, config: dict[str, Any]) -> int:
    """Tokens of a text that the model reads: old folders say it themselves, newer ones in the tokenizer's file."""
    if longest := _json(folder / "sentence_bert_config.json", {}).get("max_seq_length"):
        return int(longest)
    tokenizer = _json(folder / "tokenizer_config.json", {}).get("model_max_length")
    bounds = [int(bound) for bound in (tokenizer, config.get("max_position_embeddings")) if bound]
    if not bounds:
        raise ConfigError(f"{folder} does not say how many tokens the model reads; give --max_length")
    return min(bounds)


def _modules(folder: Path) -> dict[str, str]:
    """Class name → sub-folder of every module in `modules.json`."""
    if not (folder / "modules.json").is_file():
        raise ConfigError(f"{folder} is no sentence-transformers folder: it has no modules.json")
    entries = _json(folder / "modules.json")
    foreign = [entry["type"] for entry in entries if not entry["type"].startswith("sentence_transformers.")]
    if foreign:
        raise ConfigError(f"{folder}/modules.json asks for code of its own ({foreign[0]}), which is never run")
    modules = {entry["type"].rsplit(".", 1)[-1]: entry["path"] for entry in entries}
    if "Pooling" not in modules:
        raise ConfigError(f"{folder}/modules.json names no Pooling module, so it gives no vector for a text")
    return modules


def _pooling(folder: Path) -> dict[str, Any]:
    """The pooling module's configuration with its mode under "mode", whichever version wrote it."""
    config = _json(folder / "config.json")
    legacy = [key.removeprefix("pooling_mode_").removesuffix("_tokens")
              for key, value in config.items() if key.startswith("pooling_mode_") and value]  # fmt: skip
    mode = config.get("pooling_mode") or "+".join(legacy) or "mean"
    return {**config, "mode": mode if isinstance(mode, str) else "+".join(mode)}


def _prefixes(name: str, folder: Path) -> tuple[str, str]:
    """Query and passage prefix: the model's own prompts where its files have them, else its family's, else none."""
    prompts = _json(folder / "config_sentence_transformers.json", {}).get("prompts") or {}
    passage = next((prompts[key] for key in ("document", "passage", "corpus") if prompts.get(key)), "")
    if prompts.get("query") or passage:
        return prompts.get("query") or "", passage
    known_as = " ".join((NAMES.get(name, name), str(_json(folder / "config.json").get("_name_or_path", "")))).lower()
    return next(((query, passage) for family, query, passage in FAMILIES if family.search(known_as)), ("", ""))


def _weight_hash(folder: Path) -> str:
    files = sorted(folder.rglob("*.safetensors"))
    if not files:
        raise ConfigError(f"{folder} holds no safetensors weights; pickled weights are never loaded")
    hashes = [file_hash(file) for file in files]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()


def _json(path: Path, default: Any = None) -> Any:
    if default is not None and not path.is_file():
        return default
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as JSON: {error}") from None


class Encoder:
    """A loaded model. Not for several threads at once; give it one of its own."""

    def __init__(self, folder: Path, spec: EncoderSpec, *, device: str = "cpu", threads: int | None = None) -> None:
        """`device`: cpu, cuda, … or auto. `threads` holds for the thread that calls, as OpenMP counts them."""
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false" if threads == 1 else "true")
        spin_briefly()
        import torch
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging

        logging.disable_progress_bar()
        if threads is not None:
            torch.set_num_threads(threads)
        self._model = SentenceTransformer(
            str(folder),
            device=None if device == "auto" else device,
            trust_remote_code=False,
            local_files_only=True,
            model_kwargs={"use_safetensors": True},
        )
        self._model.max_seq_length = spec.max_length
        self.spec = spec

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """(len(texts), dimension) float32, rows of length 1."""
        # Small batches suit a CPU: little padding, and the activations stay in its cache.
        return self._encode(texts, self.spec.query_prefix, batch_size=16 if self._model.device.type == "cpu" else 256)

    def encode_passages(
        self, texts: Sequence[str], *, batch_size: int = 16, progress: Callable[[int], None] | None = None
    ) -> np.ndarray:
        """(len(texts), dimension) float32, rows of length 1, in the order of `texts`.

        Texts of like length are encoded together, longest first, so little is spent on padding and memory that does
        not suffice shows at once. `progress` is told how many were done since it was last called.
        """
        vectors = np.empty((len(texts), self.spec.dimension), dtype=np.float32)
        order = sorted(range(len(texts)), key=lambda row: -len(texts[row]))
        step = batch_size * _CHUNK_BATCHES
        for start in range(0, len(order), step):
            rows = order[start : start + step]
            vectors[rows] = self._encode([texts[row] for row in rows], self.spec.passage_prefix, batch_size)
            if progress:
                progress(len(rows))
        return vectors

    def _encode(self, texts: Sequence[str], prefix: str, batch_size: int) -> np.ndarray:
        vectors = self._model.encode(
            list(texts),
            prompt=prefix,
            batch_size=batch_size,
            show_progress_bar=False,
            convert_to_numpy=True,
            normalize_embeddings=self.spec.normalise,
        )
        if vectors.shape[1] != self.spec.dimension:
            raise RetrieverError(
                f"encoder {self.spec.name} gives {vectors.shape[1]} dimensions, not {self.spec.dimension}"
            )
        return np.ascontiguousarray(vectors, dtype=np.float32)


def same_vectors(one: EncoderSpec, other: EncoderSpec) -> bool:
    """Whether two specs give the same vectors for the same text."""
    return replace(one, name="", revision=None) == replace(other, name="", revision=None)
