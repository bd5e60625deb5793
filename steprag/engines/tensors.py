"""The law of tensors: every tensor of a folder of others is used, and none is made up.

Two halves. `unwrapped` takes what training wrappers put into names off again, by the files' headers, before any engine
reads them. `check_taken` compares what a loader found with what the model has: names, shapes, numbers.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from steprag.console.progress import say
from steprag.engines.cache import cache_dir, made_once
from steprag.engines.headers import tensor_heads
from steprag.errors import ConfigError
from steprag.records.jsonl import read_json, write_json

_WITHIN = re.compile(r"(?<!\w)(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module)\.")
"""What torch.compile, FSDP, activation checkpointing and Lightning add, at any depth."""
_AROUND = re.compile(r"^(?:(?:module|pretrained_model|base_model\.model)\.)+")
"""What DistributedDataParallel, TRL's value heads and PEFT put before every name."""
_TEXT = re.compile(r"(?<!\w)language_model\.")
"""Where the text part of a model of text and images stands; a model of text alone has no such part."""
_SIDES = ("*.safetensors", "[0-9]*_*/*.safetensors")
"""A folder's own weights, and those of sentence-transformers' modules below it."""
_HEADS = frozenset({"lm_head", "score", "classifier", "cls", "predictions", "qa_outputs", "pooler", "vocab_transform",
                    "vocab_layer_norm", "vocab_projector"})  # fmt: skip
"""Heads of other tasks than the one that a model is loaded for."""
_INTEGERS = re.compile(r"\.(?:weight|bias) [IU]\d+$")
"""Name and type of a matrix in integers, which a loader would take for the weights themselves."""
_QUANTISED = "they look quantised: add the quantization_config that belongs to them to config.json"
_HINTS = {
    r"qweight|qzeros|g_idx|\.scales|SCB|absmax|quant_map|quant_state|weight_scale|weight_packed": _QUANTISED,
    r"lora_[AB]|base_layer": "they hold an adapter: merge it first (PEFT's merge_and_unload)",
    r"flat_param": "they are FSDP's shards: save its full state dict",
}
_REMEDY = "give the folder as save_pretrained writes it, with the config.json of these weights"
_said: set[Path] = set()


def is_text_alone(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is of a language model that has no other parts."""
    return not isinstance(config.get("text_config"), dict)


def unwrapped(folder: Path, *, adapter: bool = False, text_alone: bool | None = None) -> Path:
    """The folder itself; where training wrappers stand in its tensors' names, a copy in the cache without them, as one
    line says. `text_alone`: the model is one of text; by default its config.json says so.

    Raises DataError for a file that is not whole, and ConfigError where two names would become one.
    """
    config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    text_alone = bool(config) and is_text_alone(config) if text_alone is None else text_alone
    names: dict[Path, dict[str, str]] = {}
    for file in sorted(file for pattern in _SIDES for file in folder.glob(pattern)):
        heads = {name: head for name, head in tensor_heads(file).items() if name != "__metadata__"}
        names[file] = {name: _plain_name(name, adapter, text_alone) for name in heads}
        ints = [name for name, head in heads.items() if _INTEGERS.search(f"{name} {head.get('dtype')}")]
        if ints and "quantization_config" not in config:
            raise ConfigError(f"{folder}: {ints[0]} is stored in integers ({heads[ints[0]]['dtype']}); {_QUANTISED}")
    pairs = [(old, new) for renamed in names.values() for old, new in renamed.items()]
    wrapped = [(old, new) for old, new in pairs if old != new]
    if not wrapped:
        return folder
    counts = Counter(new for _, new in pairs)
    if clash := next((pair for pair in wrapped if counts[pair[1]] > 1), None):
        raise ConfigError(f"{folder} holds {clash[1]} twice, once as {clash[0]}; {_REMEDY}")
    state = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in names]
    key = hashlib.sha256(json.dumps([str(folder.absolute()), adapter, text_alone, state]).encode()).hexdigest()[:16]
    target = cache_dir() / "unwrapped" / key / folder.name
    made_once(target, lambda made: _copied(folder, made, names), current=Path.is_dir)
    if target not in _said:
        _said.add(target)
        old, new = wrapped[0]
        say(f"{folder}: {len(wrapped)} tensors are read without what a training wrapper put into their names: {old} is "
            f"{new}")  # fmt: skip
    return target


def _plain_name(name: str, adapter: bool, text_alone: bool) -> str:
    """A tensor's name without wrappers; of an adapter, as PEFT writes it."""
    name = _WITHIN.sub("", name)
    name = _TEXT.sub("", name) if text_alone else name
    name = _AROUND.sub("", name)
    if not adapter:
        return name
    name = re.sub(r"(lora_\w+)\.default\b", r"\1", name)
    name = re.sub(r"^(model\.)*layers\.", "model.layers.", name) if text_alone else name
    return f"base_model.model.{name}"


def _copied(folder: Path, made: Path, names: Mapping[Path, Mapping[str, str]]) -> None:
    """The folder under other names: weights are copied, what else it holds is linked."""
    for place in {folder, *(file.parent for file in names)}:
        into = made / place.relative_to(folder)
        into.mkdir(exist_ok=True)
        for path in place.iterdir():
            target = into / path.name
            if path in names:
                _renamed(path, target, names[path])
            elif path.name.endswith(".safetensors.index.json"):
                index = read_json(path)
                every = {old: new for renamed in names.values() for old, new in renamed.items()}
                index["weight_map"] = {every.get(old, old): file for old, file in index["weight_map"].items()}
                write_json(target, index)
            elif not any(path in file.parents for file in names):
                target.symlink_to(path.absolute())


def _renamed(source: Path, target: Path, names: Mapping[str, str]) -> None:
    """A safetensors file with other names; its numbers are copied as they stand."""
    with source.open("rb") as old, target.open("wb") as new:
        header = json.loads(old.read(int.from_bytes(old.read(8), "little")))
        text = json.dumps({names.get(name, name): head for name, head in header.items()}).encode()
        text += b" " * (-len(text) % 8)
        new.write(len(text).to_bytes(8, "little") + text)
        shutil.copyfileobj(old, new)


def check_taken(
    source: object, what: str, *, missing: Iterable[str], unread: Iterable[str], shapes: Iterable[Any] = (),
    parts: Collection[str] = (), fresh: str | None = None, remedy: str = _REMEDY,
) -> None:  # fmt: skip
    """Raises ConfigError where the tensors of `source` are not those of `what`: `missing` ones were made up, `unread`
    ones were not taken, `shapes` (name, found, wanted) do not fit.

    `parts`: first names of a model's own tensors. What is unread and begins with none of them belongs to something
    else: it is named as left out, and nothing is said of the heads of other tasks. `fresh`: part of the names of
    tensors that the caller makes itself or does not read.
    """
    made_up = sorted(name for name in missing if fresh is None or fresh not in name)
    odd = sorted(f"{name} {tuple(found)} for {tuple(wanted)}" for name, found, wanted in shapes)
    others = sorted(name for name in unread if not parts or name.split(".")[0] not in _HEADS - {*parts})
    beside = parts and all(name.split(".")[0] not in parts for name in others)
    groups = (("missing", made_up), ("not read", others), ("of another shape", odd))
    told = [f"{how} {len(names)} ({', '.join(names[:2])}{', …' * (len(names) > 2)})" for how, names in groups if names]
    if others and beside and not made_up and not odd:
        say(f"{source}: {len(others)} tensors are no part of {what} and are left out ({', '.join(others[:2])})")
    elif told:
        every = " ".join((*made_up, *others))
        hint = next((hint for pattern, hint in _HINTS.items() if re.search(pattern, every)), remedy)
        raise ConfigError(f"{source} does not hold the tensors of {what}: {', '.join(told)}; {hint}")


def check_finite(source: object, tensors: Iterable[tuple[str, Any]]) -> None:
    """Raises ConfigError where a tensor holds NaN or infinity."""
    import torch

    for name, tensor in tensors:
        plain = tensor.is_floating_point() and tensor.dtype.itemsize > 1 and not tensor.is_meta
        if plain and not math.isfinite(tensor.detach().sum(dtype=torch.float32)):
            raise ConfigError(f"{source}: {name} holds NaN or infinity; fetch or save these weights again")


def stored(folder: Path) -> Iterator[tuple[str, Any]]:
    """Every tensor of a folder's own weights, one at a time."""
    from safetensors import safe_open

    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as shard:
            yield from ((name, shard.get_tensor(name)) for name in shard.keys())  # noqa: SIM118 (no mapping)
