"""Encoders: which model turns text into vectors, how it pools, and what stands before queries and passages.

The facts come from the model's own sentence-transformers files; `FAMILIES` adds what these leave out. Nothing is
guessed: a folder of unknown pooling is refused until the pooling is given. Weights are read as safetensors only and no
code of a model is run. `indexes.encoding.embed` loads the model itself.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steprag.engines.models import embedded_encoder
from steprag.engines.pretrained import HUB_ID, fetched
from steprag.errors import ConfigError, quoted
from steprag.records.json_text import decoded
from steprag.records.jsonl import file_hash

EMBEDDED = "minilm"
NONE = "none"
"""No encoder: an index of BM25 alone."""
NAMES = {
    "bge-small": "BAAI/bge-small-en-v1.5",
    "bge-base": "BAAI/bge-base-en-v1.5",
    "bge-large": "BAAI/bge-large-en-v1.5",
    "bge-m3": "BAAI/bge-m3",
    "e5-base": "intfloat/e5-base-v2",
}
"""Short names of models on the hub; `minilm` is the embedded one."""

_BGE = "Represent this sentence for searching relevant passages: "
FAMILIES = (
    (re.compile(r"bge-(small|base|large)-en"), "cls", _BGE, ""),
    (re.compile(r"(^|[-/_])bge-m3"), "cls", "", ""),
    (re.compile(r"(^|[-/_])(multilingual-)?e5-(small|base|large)(?!.*instruct)"), "mean", "query: ", "passage: "),
    (re.compile(r"snowflake-arctic-embed-(xs|s|m|l)($|-v1)"), "cls", _BGE, ""),
    (re.compile(r"mxbai-embed-large"), "cls", _BGE, ""),
    (re.compile(r"nomic-embed-text"), "mean", "search_query: ", "search_document: "),
    (re.compile(r"(^|[-/_])gte-(small|base|large)($|[-/_ ])"), "mean", "", ""),
    (re.compile(r"contriever"), "mean", "", ""),
    (re.compile(r"minilm|mpnet-base"), "mean", "", ""),
)
"""(pattern of the model's name, pooling, query prefix, passage prefix), as the models' cards give them. The pooling is
used only where the folder does not say it itself."""

_HUB_FILES = ["*.json", "*.txt", "*.model", "model*.safetensors", "*_Pooling/*", "*_Dense/*.safetensors"]


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

    @property
    def dense(self) -> bool:
        """Whether there are vectors at all."""
        return self.dimension > 0


NO_ENCODER = EncoderSpec(NONE, "", NONE, False, "", "", 0, 0)

COMPARED = ("weight_hash", "dimension", "pooling", "normalise", "query_prefix", "passage_prefix", "max_length")
"""Fields that must agree between build and search, in the order in which differences are reported."""


@dataclass(frozen=True)
class Overrides:
    """What a configuration may set against the model's own files; None leaves them."""

    max_length: int | None = None
    query_prefix: str | None = None
    passage_prefix: str | None = None
    pooling: str | None = None
    normalise: bool | None = None


def find_encoder(name: str) -> Path:
    """The folder of an encoder: `minilm`, a short name, a folder, or a hub id (fetched). Raises ConfigError."""
    if name == EMBEDDED:
        return embedded_encoder()
    if Path(name).expanduser().is_dir():
        return Path(name).expanduser().resolve()
    hub = NAMES.get(name, name)
    if not HUB_ID.fullmatch(hub) or name.startswith("."):
        known = ", ".join([EMBEDDED, *NAMES])
        raise ConfigError(
            f"encoder {quoted(name)} not found; known: {known}, a sentence-transformers folder or a hub id"
        )
    return fetched(hub, _HUB_FILES, "encoder")


def read_spec(name: str, folder: Path, overrides: Overrides) -> EncoderSpec:
    """The spec of a sentence-transformers folder, without loading the model. Raises ConfigError."""
    try:
        return _spec(name, folder, overrides)
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{folder} is no sentence-transformers folder that can be read: missing {error}") from None
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"{folder} is no sentence-transformers folder that can be read: {error}") from None


def _spec(name: str, folder: Path, overrides: Overrides) -> EncoderSpec:
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} is no encoder: it has no config.json")
    config = _json(folder / "config.json")
    family = _family(name, folder)
    query_prefix, passage_prefix = _prefixes(family, folder)
    pooling, dimension = _pooling(folder, config, family[0] if family else None)
    return EncoderSpec(
        name=name if name == EMBEDDED or name in NAMES or not Path(name).expanduser().is_dir() else str(folder),
        weight_hash=_weight_hash(folder),
        pooling=overrides.pooling or pooling or _unknown_pooling(folder),
        normalise=True if overrides.normalise is None else overrides.normalise,
        query_prefix=query_prefix if overrides.query_prefix is None else overrides.query_prefix,
        passage_prefix=passage_prefix if overrides.passage_prefix is None else overrides.passage_prefix,
        max_length=overrides.max_length or _longest(folder, config),
        dimension=dimension,
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
    """Class name → sub-folder of every module in `modules.json`; empty where a plain transformers folder has none."""
    if not (folder / "modules.json").is_file():
        return {}
    entries = _json(folder / "modules.json")
    foreign = [entry["type"] for entry in entries if not entry["type"].startswith("sentence_transformers.")]
    if foreign:
        raise ConfigError(f"{folder}/modules.json asks for code of its own ({foreign[0]}), which is never run")
    modules = {entry["type"].rsplit(".", 1)[-1]: entry["path"] for entry in entries}
    if "Pooling" not in modules:
        raise ConfigError(f"{folder}/modules.json names no Pooling module, so it gives no vector for a text")
    return modules


def _pooling(folder: Path, model: dict[str, Any], family: str | None) -> tuple[str | None, int]:
    """Mode of the pooling, None where no file names it, and dimension of the vectors."""
    modules = _modules(folder)
    if not modules:
        return family, int(model["hidden_size"])
    config = _json(folder / modules["Pooling"] / "config.json")
    legacy = [key.removeprefix("pooling_mode_").removesuffix("_tokens")
              for key, value in config.items() if key.startswith("pooling_mode_") and value]  # fmt: skip
    mode = config.get("pooling_mode") or "+".join(legacy) or "mean"
    dimension = config.get("embedding_dimension") or config.get("word_embedding_dimension") or model["hidden_size"]
    if "Dense" in modules:
        dimension = _json(folder / modules["Dense"] / "config.json")["out_features"]
    return mode if isinstance(mode, str) else "+".join(mode), int(dimension)


def _unknown_pooling(folder: Path) -> str:
    raise ConfigError(f"{folder} does not say how it pools tokens, and its name is of no known family;"
                      " give --pooling cls or --pooling mean, as its card says")  # fmt: skip


def _family(name: str, folder: Path) -> tuple[str, str, str] | None:
    """Pooling, query prefix and passage prefix of the family that the model's name belongs to."""
    known_as = " ".join((NAMES.get(name, name), str(_json(folder / "config.json").get("_name_or_path", "")))).lower()
    matching = (facts for pattern, *facts in FAMILIES if pattern.search(known_as))
    pooling, query_prefix, passage_prefix = next(matching, ("", "", ""))
    return (pooling, query_prefix, passage_prefix) if pooling else None


def _prefixes(family: tuple[str, str, str] | None, folder: Path) -> tuple[str, str]:
    """Query and passage prefix: the model's own prompts where its files have them, else its family's, else none."""
    prompts = _json(folder / "config_sentence_transformers.json", {}).get("prompts") or {}
    passage = next((prompts[key] for key in ("document", "passage", "corpus") if prompts.get(key)), "")
    if prompts.get("query") or passage:
        return prompts.get("query") or "", passage
    return family[1:] if family else ("", "")


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
        return decoded(path.read_bytes(), finite=False)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as JSON: {error}") from None


def encoder_here(spec: EncoderSpec, given: dict[str, Any]) -> Path:
    """The folder of the encoder that made an index, found on this machine and compared with `spec`.

    `given` is the configuration of the build: what it set against the model's files holds here too. Raises
    ConfigError with what differs.
    """
    folder = find_encoder(spec.name)
    keys = Overrides.__dataclass_fields__
    here = read_spec(spec.name, folder, Overrides(**{key: given[key] for key in keys if key in given}))
    differing = next((key for key in COMPARED if getattr(here, key) != getattr(spec, key)), None)
    if differing is not None:
        raise ConfigError(f"encoder {spec.name} is not the one that made the index ({differing}:"
                          f" {quoted(getattr(here, differing))}, not {quoted(getattr(spec, differing))});"
                          " restore it or build the index again")  # fmt: skip
    return folder
