"""What the folder of a published encoder or reranker holds, and which of it a loader reads. Nothing is loaded here."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from steprag.engines.models import text_config
from steprag.engines.pretrained import TOKENIZER_FILES, check_pulled
from steprag.errors import ConfigError
from steprag.records.json_text import decoded
from steprag.records.jsonl import file_hash

_FROM_PADDING = {"roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod", "camembert", "mpnet",
                 "longformer", "data2vec-text", "ibert", "luke", "mluke", "lilt", "esm"}  # fmt: skip
"""Architectures that count positions from behind their padding token's id: so many of them are never used."""
NO_LIMIT = 10**9
"""A length from here on says that the tokenizer knows none: transformers writes 1e30."""
_READ = ("*config.json", *TOKENIZER_FILES)
"""What a loader reads of a module's folder beside weights, as patterns. Prompts, `truncate_dim` and the measure of
likeness, in `config_sentence_transformers.json`, count by what an `EncoderSpec` makes of them.
"""
_UNREAD = {"generation_config.json", "openvino_config.json"}
_OTHER_WEIGHTS = {".bin", ".pt", ".ckpt", ".h5", ".msgpack", ".onnx", ".xml", ".gguf"}


def read_config(path: Path, default: Any = None) -> Any:
    """The JSON of a file; `default`, where one is given, for a file that is not there. Raises ConfigError."""
    if default is not None and not path.is_file():
        return default
    try:
        return decoded(path.read_bytes(), finite=False)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as JSON: {error}") from None


def model_config(folder: Path) -> dict[str, Any]:
    """`config.json`, with what a model of text and images says of its text. Raises ConfigError for a model that needs
    Python code of its own: classes that transformers has under the same names do without it.
    """
    config = read_config(folder / "config.json")
    read = ("AutoConfig", "AutoModel", "AutoModelForSequenceClassification")
    if classes := [str(each) for key, each in (config.get("auto_map") or {}).items() if key in read]:
        import transformers

        foreign = [each for each in classes if not hasattr(transformers, each.rpartition(".")[2])]
        if foreign:
            raise ConfigError(f"{folder} needs Python code of its own ({foreign[0]}), and StepRAG runs no code that"
                              " comes with a model; choose another")  # fmt: skip
    return {**config, **text_config(config)}


def longest_text(folder: Path, config: dict[str, Any]) -> int | None:
    """Tokens of a text that the model reads: old folders say it themselves, newer ones in the tokenizer's file; and no
    more than the model has positions. None where nothing says it.
    """
    own = [read_config(file).get("max_seq_length") for file in sorted(folder.glob("sentence_*_config.json"))]
    tokenizer = read_config(folder / "tokenizer_config.json", {}).get("model_max_length")
    given = next((longest for longest in own if longest and int(longest) < NO_LIMIT), tokenizer)
    positions = config.get("max_position_embeddings") or config.get("n_positions") or 0
    if config.get("model_type") in _FROM_PADDING and positions > 0:
        padding = config.get("pad_token_id")
        positions -= (1 if padding is None else padding) + 1
    bounds = [int(bound) for bound in (given, positions) if bound and bound != -1]
    longest = min((bound for bound in bounds if bound < NO_LIMIT), default=0)
    return longest if longest > 0 else None


def modules_of(folder: Path) -> list[tuple[str, Path]]:
    """Class name and folder of every module that the folder lists, in order; of a plain folder itself, under no name.

    Raises ConfigError for an adapter: alone it is no model, and beside weights transformers loads its base in their
    place.
    """
    listed = [entry for entry in read_config(folder / "modules.json", []) if isinstance(entry, dict)]
    places = [(str(entry.get("type", "")).rsplit(".", 1)[-1], folder / str(entry.get("path", ""))) for entry in listed]
    for _, place in [*places, ("", folder)]:
        if (place / "adapter_config.json").is_file():
            base = read_config(place / "adapter_config.json").get("base_model_name_or_path")
            whose = f" of {base}" if base else ""
            raise ConfigError(f"{place} holds an adapter{whose}, which is not read here; merge it into its base (PEFT's"
                              " merge_and_unload), save the whole model and give that folder")  # fmt: skip
    return places or [("", folder)]


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that are loaded: of the modules that the folder lists, the first of them last, else of the
    folder itself. What else lies there, and what a module's folder is called, decides nothing. Raises ConfigError where
    there are none.
    """
    places = [place for _, place in modules_of(folder)]
    files: list[Path] = []
    for place in dict.fromkeys([*places[1:], places[0]]):
        whole = place / "model.safetensors"
        files += [whole] if whole.is_file() else sorted(place.glob("model[-.]*.safetensors"))
    if not files:
        others = sorted(file for file in folder.rglob("*") if file.suffix in _OTHER_WEIGHTS)
        seen = f" but {others[0].relative_to(folder)}" if others else ""
        raise ConfigError(f"{folder} holds no safetensors weights{seen}; other forms of weights are never loaded")
    check_pulled(files)
    return files


def config_hash(folder: Path) -> str:
    """SHA-256 of what a loader reads beside weights: which modules, their configurations, the tokenizer."""
    told: list[str] = []
    for number, (kind, place) in enumerate(modules_of(folder)):
        told.append(f"{number} {kind}")
        files = {file for pattern in _READ for file in place.glob(pattern) if file.name not in _UNREAD}
        told += [f"{file.relative_to(place).as_posix()} {file_hash(file)}" for file in sorted(files) if file.is_file()]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()


def keep_promises(tokenizer: Any, place: Path) -> None:
    """Has a tokenizer put the tokens around a text that its `tokenizer_config.json` promises and its `tokenizer.json`
    leaves out: transformers 5 follows the latter. Raises ConfigError where it cannot.
    """
    said, there = read_config(place / "tokenizer_config.json", {}), _around(tokenizer)
    wanted = {key: found or said.get(key) is True for key, found in there.items()}
    if wanted == there:
        return
    for key, value in wanted.items():
        setattr(tokenizer, key, value)
    if _around(tokenizer) != wanted:
        raise ConfigError(f"{place}: its tokenizer_config.json says {', '.join(key for key in wanted if wanted[key])},"
                          " and its tokenizer cannot add them; mend its post_processor")  # fmt: skip


def _around(tokenizer: Any) -> dict[str, bool]:
    """Whether its token of the beginning stands before a text, and that of the end behind it."""
    ids = tokenizer("a")["input_ids"]
    return {"add_bos_token": ids[:1] == [tokenizer.bos_token_id], "add_eos_token": ids[-1:] == [tokenizer.eos_token_id]}
