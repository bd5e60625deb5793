"""The law of tensors: every tensor of a folder of others is used, and none is made up.

Two halves. `unwrapped` takes what training wrappers put into names off again, by the files' headers, before any engine
reads them. `check_taken` compares what a loader found with what the model has: names, shapes, numbers.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from steprag.console.progress import say
from steprag.engines.cache import cache_dir, made_once
from steprag.engines.headers import tensor_heads
from steprag.errors import ConfigError
from steprag.records.jsonl import read_json, shaped, write_json

_WITHIN = re.compile(r"(?<!\w)(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module)\.")
"""What torch.compile, FSDP, activation checkpointing and Lightning add, at any depth."""
_AROUND = re.compile(r"^(?:(?:module|pretrained_model|base_model\.model)\.)+")
"""What DistributedDataParallel, TRL's value heads and PEFT put before every name."""
_TEXT = re.compile(r"(?<!\w)language_model\.")
"""Where the text part of a model of text and images stands; a model of text alone has no such part."""
_SIDES = ("*.safetensors", "[0-9]*_*/*.safetensors")
"""A folder's own weights, and those of sentence-transformers' modules below it."""
_HEADS = frozenset({
    "lm_head", "score", "classifier", "cls", "predictions", "qa_outputs", "pooler", "vocab_transform", "head",
    "vocab_layer_norm", "vocab_projector", "decoder", "embed_out", "lm_predictions", "mask_predictions", "pred_layer",
    "discriminator_predictions", "generator_predictions", "generator_lm_head", "sop_classifier",
})  # fmt: skip
"""Heads of other tasks than the one that a model is loaded for."""
_FEW_BITS = re.compile(r"\.(?:weight|bias) (?:[IU]\d+|F4|F[68]_\w+)$")
"""Name and type of a matrix in integers or 8 bits and fewer, which a loader would take for the weights themselves."""
_INDEX = "model.safetensors.index.json"
_QUANTISED = "they look quantised: add the quantization_config that belongs to them to config.json"
_HINTS = {
    re.compile(
        r"qweight|qzeros|g_idx|\.scales|SCB|absmax|quant_map|quant_state|weight_scale|weight_packed"
    ): _QUANTISED,
    re.compile(r"lora_[AB]|base_layer"): "they hold an adapter: merge it first (PEFT's merge_and_unload)",
    re.compile(r"flat_param"): "they are FSDP's shards: save its full state dict",
    re.compile(
        r"^(?:lm_head|embed_out)\.weight$"
    ): "set tie_word_embeddings in config.json where the embeddings are its head, too",
}
_REMEDY = "give the folder as save_pretrained writes it, with the config.json of these weights"
_said: set[str] = set()


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
    _check_index(folder)
    for file in sorted(file for pattern in _SIDES for file in folder.glob(pattern)):
        heads = {name: head for name, head in tensor_heads(file).items() if name != "__metadata__"}
        names[file] = {name: _plain_name(name, adapter, text_alone) for name in heads}
        few = next(filter(_FEW_BITS.search, (f"{name} {head.get('dtype')}" for name, head in heads.items())), None)
        if few and "quantization_config" not in config:
            raise ConfigError(f"{folder}: {few} is stored in few bits; {_QUANTISED}")
    pairs = [(old, new) for renamed in names.values() for old, new in renamed.items()]
    wrapped = [(old, new) for old, new in pairs if old != new]
    if not wrapped:
        return folder
    counts = Counter(new for _, new in pairs)
    if clash := next((pair for pair in wrapped if counts[pair[1]] > 1), None):
        raise ConfigError(f"{folder} holds {clash[1]} twice, once as {clash[0]}; {_REMEDY}")
    state = file_state(names, adapter, text_alone, sorted(path.name for path in folder.iterdir()))
    target = cache_dir() / "unwrapped" / state / folder.name
    made_once(target, lambda made: _copied(folder, made, names), current=Path.is_dir)
    old, new = wrapped[0]
    say_once(f"{folder}: {len(wrapped)} tensors are read without what a training wrapper put into their names ({old} "
             f"as {new})")  # fmt: skip
    return target


def say_once(text: str) -> None:
    """A line about a folder, which several doors of one command may have to say."""
    if text not in _said:
        _said.add(text)
        say(text)


def file_state(files: Iterable[Path], *more: object) -> str:
    """A name for files as they are now (places, sizes, times of change) and for what else counts."""
    told = [(str(file.absolute()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(json.dumps([told, *more]).encode()).hexdigest()[:16]


def _check_index(folder: Path) -> None:
    """Raises ConfigError where the index of a folder in shards names files that do not lie there."""
    index, here = folder / _INDEX, {file.name for file in folder.glob("*.safetensors")}
    if index.is_file() and "model.safetensors" not in here:
        with shaped(index, remedy=_REMEDY):
            named = {str(file) for file in read_json(index)["weight_map"].values()}
        if lost := sorted(named - here):
            raise ConfigError(f"{index} names {lost[0]}, which is not in the folder; fetch or save the folder again")


def _plain_name(name: str, adapter: bool, text_alone: bool) -> str:
    """A tensor's name without wrappers; of an adapter, as PEFT writes it."""
    name = _WITHIN.sub("", name)
    name = _TEXT.sub("", name) if text_alone else name
    name = _AROUND.sub("", name)
    if not adapter or "." not in name or name.startswith("base_model."):  # of prompt tuning, and VeRA's shared ones
        return name
    name = re.sub(r"(?<!\w)(lora_\w+)\.default\b", r"\1", name)
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
            elif path.name == _INDEX:
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
    parts: Collection[str] = (), fresh: str | None = None, remedy: str = "",
) -> None:  # fmt: skip
    """Raises ConfigError where the tensors of `source` are not those of `what`: `missing` ones were made up, `unread`
    ones were not taken, `shapes` (name, found, wanted) do not fit.

    `parts`: first names of a model's own tensors. What is unread and begins with none of them belongs to something
    else: it is named as left out, and nothing is said of the heads of other tasks. `fresh`: part of the names of
    tensors that the caller makes itself or does not read.
    """
    made_up = [name for name in missing if fresh is None or fresh not in name]
    odd = sorted(f"{name} {tuple(found)} for {tuple(wanted)}" for name, found, wanted in shapes)
    others = sorted(name for name in unread if not parts or name.split(".")[0] not in _HEADS - {*parts})
    beside = parts and all(name.split(".")[0] not in parts for name in others)
    groups = {
        "lacks {} weights of its architecture": made_up, f"holds {{}} that {what} does not read": others,
        "holds {} of another shape": odd,
    }  # fmt: skip
    told = [f"{how.format(len(names))} ({', '.join(names[:2])}{', …' * (len(names) > 2)})"
            for how, names in groups.items() if names]  # fmt: skip
    if others and beside and not made_up and not odd:
        say_once(f"{source}: {len(others)} tensors are no part of {what} and are left out ({', '.join(others[:2])})")
    elif told:
        every = " ".join((*made_up, *others))
        hint = remedy or next((hint for pattern, hint in _HINTS.items() if pattern.search(every)), _REMEDY)
        raise ConfigError(f"{source} {', '.join(told)}; {hint}")


def check_finite(source: object, tensors: Iterable[tuple[str, Any]]) -> None:
    """Raises ConfigError where a tensor holds NaN or infinity."""
    import torch

    for name, tensor in tensors:
        plain = tensor.is_floating_point() and tensor.dtype.itemsize > 1 and tensor.numel() and not tensor.is_meta
        if plain and not all(torch.isfinite(end) for end in tensor.detach().aminmax()):
            raise ConfigError(f"{source}: {name} holds NaN or infinity; fetch or save these weights again")


def check_stored(folder: Path, tied: Collection[str]) -> None:
    """`check_finite` of a folder's own weights, which are read once and not again until they change; and ConfigError
    where those named `tied` differ.
    """
    from safetensors import safe_open

    def check(_: Path) -> None:
        alike: list[Any] = []
        for file in files:
            with safe_open(file, "pt") as shard:
                for name in shard.keys():  # noqa: SIM118 (no mapping)
                    tensor = shard.get_tensor(name)
                    check_finite(folder, [(name, tensor)])
                    alike += [tensor] * (name in tied)
        if any(not one.equal(alike[0]) for one in alike):
            raise untied(folder)

    files = sorted(folder.glob("*.safetensors"))
    made_once(cache_dir() / "checked" / file_state(files, *sorted(tied)), check, current=Path.is_dir)


def untied(source: object) -> ConfigError:
    """The error for weights whose head is not their embeddings, though config.json says so."""
    return ConfigError(f"{source}: its head and its embeddings differ, and config.json ties them; set "
                       "tie_word_embeddings there as these weights are meant")  # fmt: skip
