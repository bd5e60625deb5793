"""Encoders: which model turns text into vectors, how it pools, and what stands before queries and passages.

The facts come from the model's own sentence-transformers files; `indexes.encoding.families` adds what these leave out.
A folder of unknown pooling is refused until the pooling is given. Weights are read as safetensors only and no code of a
model is run. `indexes.encoding.embed` loads the model itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexes.encoding.families import Family, family_of, model_names, prompts_taken, unread
from indexes.encoding.model_files import (
    NO_LIMIT,
    config_hash,
    longest_text,
    model_config,
    modules_of,
    read_config,
    weight_files,
)
from steprag.console.progress import say
from steprag.engines.models import embedded_encoder
from steprag.engines.pretrained import HUB_ID, fetched
from steprag.errors import ConfigError, quoted
from steprag.records.jsonl import files_hash

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

POOLINGS = {
    "cls_token": "cls", "max_tokens": "max", "mean_tokens": "mean", "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "weightedmean_tokens": "weightedmean", "lasttoken": "lasttoken",
}  # fmt: skip
"""sentence-transformers' modes by the end of their older keys (`pooling_mode_cls_token`). Where several are on, their
vectors are joined in this order.
"""
_WIDTH = ("hidden_size", "d_model", "dim", "n_embd", "emb_dim")
"""What architectures call the dimension of a token's vector."""
_HUB_FILES = ["*.json", "*.txt", "*.model", "*.jinja", "model*.safetensors", "[0-9]*_*/*.safetensors"]
"""Patterns whose `*` goes through folders: also `1_Pooling/config.json` and `2_Dense_1024/model.safetensors`."""


@dataclass(frozen=True)
class EncoderSpec:
    """What decides a vector. Vectors of two encoders can be compared only where the specs are equal but for `name`.

    `max_length` in tokens; longer text is cut. `weight_hash`: SHA-256 of the safetensors file (of all their hashes
    where several are loaded). `revision`: the hub's commit where it is known. `untaken`: names of the folder's prompts
    that stand before neither queries nor passages, joined by commas. `config_hash`: of what else the loader reads; ""
    in what earlier versions wrote, which is unknown. `similarity`: the measure that the folder asks for, where vectors
    are not ranked by it.
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
    untaken: str = ""
    config_hash: str = ""
    similarity: str = ""

    @property
    def dense(self) -> bool:
        """Whether there are vectors at all."""
        return self.dimension > 0

    @property
    def decisive(self) -> dict[str, Any]:
        """What decides a vector, by field; what is unknown is left out."""
        apart = {"name", "revision", "untaken", "similarity", *([] if self.config_hash else ["config_hash"])}
        return {key: value for key, value in vars(self).items() if key not in apart}


NO_ENCODER = EncoderSpec(NONE, "", NONE, False, "", "", 0, 0)

COMPARED = ("weight_hash", "dimension", "pooling", "query_prefix", "passage_prefix", "max_length", "config_hash")
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
    said = read_config(folder / "config_sentence_transformers.json", {})
    _check_kind(name, folder, said)
    modules = _modules(folder)
    root = modules_of(folder)[0][1]
    if not (root / "config.json").is_file():
        raise ConfigError(f"{folder} is no encoder: it has no config.json")
    config = model_config(root)
    family = family_of(NAMES.get(name, name), str(folder), str(config.get("_name_or_path", "")))
    taken, untaken = prompts_taken(said)
    prefixes = Family("", taken.get("query", ""), taken.get("passage", "")) if taken else family or Family("")
    given = overrides.pooling or ("" if modules or not family else family.pooling)
    width = int(next((config[key] for key in _WIDTH if config.get(key)), 0))
    pooling, dimension = _pooling(folder, modules, given, width)
    longest = overrides.max_length or longest_text(root, config)
    if longest is None:
        raise ConfigError(f"{root} does not say how many tokens the model reads; give --max_length")
    dimension = min(dimension, (said.get("truncate_dim") if modules else None) or dimension)
    if type(dimension) is not int or not 0 < dimension < NO_LIMIT:
        raise ConfigError(f"{folder} says that its vectors have {quoted(dimension)} numbers; mend its configuration")
    measure, unit_made = said.get("similarity_fn_name") or "cosine", "Normalize" in dict(modules)
    unit = measure != "dot" or unit_made
    return EncoderSpec(
        name=name if name == EMBEDDED or name in NAMES or not Path(name).expanduser().is_dir() else str(folder),
        weight_hash=files_hash(weight_files(folder)),
        pooling=pooling,
        normalise=unit if overrides.normalise is None else overrides.normalise,
        query_prefix=prefixes.query if overrides.query_prefix is None else overrides.query_prefix,
        passage_prefix=prefixes.passage if overrides.passage_prefix is None else overrides.passage_prefix,
        max_length=longest,
        dimension=dimension,
        revision=folder.name if folder.parent.name == "snapshots" else None,
        untaken=", ".join(untaken),
        config_hash=config_hash(folder),
        similarity="" if measure in ("cosine", "dot") or (measure == "euclidean" and unit_made) else str(measure),
    )


def _check_kind(name: str, folder: Path, said: dict[str, Any]) -> None:
    """Raises ConfigError for a model that makes no vector of a text, by what its files say; where they list no modules,
    by its architecture and its name.
    """
    listed, config = read_config(folder / "modules.json", []), read_config(folder / "config.json", {})
    plain = [*(config.get("architectures") or ()), *model_names(name, str(folder))]
    words = [str(said.get("model_type", "")), *(str(entry["type"]) for entry in listed), *(() if listed else plain)]
    if reason := unread(words):
        raise ConfigError(f"{folder} {reason}")


def _modules(folder: Path) -> list[tuple[str, Path]]:
    """Class name and folder of every module, in order; none where a plain transformers folder lists none."""
    if not (folder / "modules.json").is_file():
        return []
    entries = read_config(folder / "modules.json")
    foreign = [entry["type"] for entry in entries if not entry["type"].startswith("sentence_transformers.")]
    if foreign:
        raise ConfigError(f"{folder}/modules.json asks for code of its own ({foreign[0]}), which is never run")
    modules = modules_of(folder)
    if "Pooling" not in dict(modules):
        raise ConfigError(f"{folder}/modules.json names no Pooling module; encoders without one are not read")
    for _, path in modules[1:]:
        if (path / "pytorch_model.bin").is_file() and not (path / "model.safetensors").is_file():
            raise ConfigError(f"{path} holds no safetensors weights; pickled weights are never loaded")
    return modules


def _pooling(folder: Path, modules: list[tuple[str, Path]], given: str, width: int) -> tuple[str, int]:
    """Mode of the pooling, as `given` or as the folder says, several joined by +; and dimension of the vectors."""
    if not modules and not given:
        raise ConfigError(f"{folder} does not say how it pools tokens, and its name is of no known family;"
                          " give --pooling cls or --pooling mean, as its card says")  # fmt: skip
    pooling = "" if modules else checked_pooling(given)
    width *= pooling.count("+") + 1
    for kind, path in modules:
        config = read_config(path / "config.json", {})
        if kind == "Pooling":
            pooling = checked_pooling(given or _mode(config))
            width = int(config.get("embedding_dimension") or config.get("word_embedding_dimension") or width)
            width *= pooling.count("+") + 1
        elif kind == "Dense":
            width = int(config["out_features"])
    if not width:
        raise ConfigError(f"{folder} does not say how long its vectors are; its config.json has none of {_WIDTH}")
    return pooling, width


def _mode(config: dict[str, Any]) -> str:
    """The mode that a Pooling module's file names, in the newer key or in the older ones."""
    older = [mode for key, mode in POOLINGS.items() if config.get(f"pooling_mode_{key}")] or ["mean"]
    newer = config.get("pooling_mode", older)
    return newer if isinstance(newer, str) else "+".join(newer)


def checked_pooling(pooling: str) -> str:
    """Modes of sentence-transformers, joined by +, in their newer names. Raises ConfigError for any other word."""
    modes = [POOLINGS.get(mode, mode) for mode in pooling.split("+")]
    unknown = [mode for mode in modes if mode not in POOLINGS.values()]
    if unknown:
        known = ", ".join(POOLINGS.values())
        raise ConfigError(f"pooling {quoted(unknown[0])} is not known; give one of {known}, or several joined by +")
    return "+".join(modes)


def describe(spec: EncoderSpec) -> None:
    """Says what decides the vectors, and warns: of prompts that are not taken, of an instruction that is missing."""
    length = "length 1" if spec.normalise else "their own length"
    say(f"index: encoder {spec.name}: pooling {spec.pooling}, vectors of {length}, before queries"
        f" {spec.query_prefix!r}, before passages {spec.passage_prefix!r}")  # fmt: skip
    if spec.untaken:
        say(f"index: its prompts {spec.untaken} are not taken; --query_prefix and --passage_prefix give others")
    if spec.similarity:
        by = "the cosine" if spec.normalise else "the inner product"
        say(f"index: its configuration compares vectors by {quoted(spec.similarity)}; they are ranked by {by} here")
    if not spec.query_prefix and any("instruct" in name for name in model_names(spec.name)):
        say("index: it is an instruct model and gets no instruction; give --query_prefix as its card says")


def encoder_here(spec: EncoderSpec, given: dict[str, Any]) -> Path:
    """The folder of the encoder that made an index, found on this machine and compared with `spec`.

    `given` is the configuration of the build: what it set against the model's files holds here too. An index without a
    prefix keeps none, though this version may know one. Raises ConfigError with what differs.
    """
    folder = find_encoder(spec.name)
    keys = Overrides.__dataclass_fields__
    here = read_spec(spec.name, folder, Overrides(**{key: given[key] for key in keys if key in given}))
    differing = next((key for key in COMPARED if getattr(spec, key) not in ("", getattr(here, key))), None)
    if differing is not None:
        what = "its tokenizer or the configuration of a module" if differing == "config_hash" else differing
        raise ConfigError(f"encoder {spec.name} is not the one that made the index ({what}:"
                          f" {quoted(getattr(here, differing))}, not {quoted(getattr(spec, differing))});"
                          " restore it or build the index again")  # fmt: skip
    return folder
