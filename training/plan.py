"""`steprag plan train`: memory, disk and hours of a training run before it starts; refuses what cannot fit."""

from __future__ import annotations

import argparse
import json
import math
import re
import shutil
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from steprag.config.load import add_options, config_from, load_config, parse_arguments
from steprag.console.progress import say_next
from steprag.engines.models import ModelFiles, resolve_model, text_config
from steprag.engines.pretrained import fetched
from steprag.engines.threads import product_flops
from steprag.errors import ConfigError
from steprag.policy.gate import CHARS_A_TOKEN, chars_of
from steprag.records.jsonl import existing, read_json
from training.checks import check_keys
from training.config import TrainConfig
from training.machine import Device, gpus, processor, visible_gpus
from training.memory import FAMILIES, GIB, PUBLISHED, Data, Shape, blocks_of, checkpoint_bytes, memory
from training.rows import data_files, read_training

RECIPES = Path(__file__).parents[1] / "configs" / "training"
PUBLISHED_CONFIGS = RECIPES / "models.json"
"""Name on the hub → what its config.json says of sizes: a plan for these models needs no download."""
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Keys of config.json that count the experts of a block (Qwen, Mixtral and gpt-oss, DeepSeek and GLM, ERNIE)."""
OTHER_BLOCKS = re.compile(r"mamba_|ssm_|linear_(?:conv|attn)|kv_lora_rank|hidden_size_per_layer_input|conv_L_cache")
"""Keys of config.json with other blocks than attention over all widths: state spaces, convolutions, latent keys."""

CARDS = {
    "t4": (16, 65), "l4": (24, 121), "a10": (24, 125), "3090": (24, 71), "4090": (24, 165), "a6000": (48, 155),
    "l40s": (48, 362), "a100": (80, 312), "h100": (80, 989), "h200": (141, 989),
}  # fmt: skip
"""GiB of memory (the larger where there are two) and teraflops of dense products in bfloat16 (T4: float16), from the
makers' data sheets.
"""
OTHER_CARDS = frozenset({"laptop", "mobile", "max", "d", "grid"})
"""Words that make another card of a name in CARDS."""
SAVINGS = {
    "gradient_checkpointing": True, "batch_size": 1, "optim": "adamw_8bit", "deepspeed": "zero3", "finetuning": "lora",
    "quantization": "nf4",
}  # fmt: skip
"""Keys that save memory, those first that change least of what is learnt."""
SHARE = 0.3
"""Of the peak: what trainers of models of this size reach, roughly, between 0.2 and 0.4."""


def shape_of(files: ModelFiles) -> Shape | None:
    """The model's shape, or None where its config.json is not like a llama's: of experts that are not known here, or
    with other blocks. That of a hub's model is fetched unless it is on this machine; raises ConfigError where it is
    not to be had.
    """
    name = "HuggingFaceTB/SmolLM2-135M-Instruct" if files.embedded else files.hub
    if files.hf:
        config = read_json(files.hf / "config.json")
    elif name is None:  # a GGUF file
        return None
    else:
        published = read_json(PUBLISHED_CONFIGS).get(name)
        config = published or read_json(fetched(name, ("config.json",), "model") / "config.json")
    return _decoder(config)


def _decoder(config: dict[str, Any]) -> Shape | None:
    """The shape of a config.json's language model, whose keys may stand in a part of their own (`text_config`)."""
    text = text_config(config)
    family = blocks_of(text.get("model_type"))
    both = {"tie_word_embeddings": config.get("tie_word_embeddings"), **text}
    told = {key: value for key, value in both.items() if value is not None}
    sizes = {**family.told, **told}
    experts = [count for key in EXPERTS if isinstance(count := sizes.get(key), int) and count > 1]
    lacking = any(field.is_required() and key not in sizes for key, field in Shape.model_fields.items())
    if bool(experts) != family.sparse or lacking or any(map(OTHER_BLOCKS.match, told)):
        return None
    try:
        return Shape.model_validate(
            {**sizes, "num_experts": max(experts, default=None), "beside": _vision_weights(config)}
        )
    except ValidationError:
        raise ConfigError("config.json names sizes that no model has") from None


def _vision_weights(config: dict[str, Any]) -> int:
    """Weights of a vision tower, about: four matrices and a feed-forward layer of two a block."""
    tower = config.get("vision_config")
    keys = ("hidden_size", "intermediate_size", "num_hidden_layers")
    told = [value for key in keys if isinstance(tower, dict) and isinstance(value := tower.get(key), int)]
    if len(told) < len(keys):
        return 0
    hidden, inner, blocks = told
    return blocks * hidden * (4 * hidden + 2 * inner)


def check_room(out: Path, config: TrainConfig, files: ModelFiles) -> None:
    """Raises ConfigError where the disk below `out` has no room for checkpoints and result."""
    shape = shape_of(files)
    if shape is None or (out / "manifest.json").exists():  # a run that resumes has its checkpoints already
        return
    place = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    free, needed = shutil.disk_usage(place).free, checkpoint_bytes(config, shape)
    if free < needed:
        raise ConfigError(
            f"{out}: {free / GIB:.1f} GiB of disk are free and checkpoints take up to {needed / GIB:.1f}; "
            "make room, or choose another --out"
        )


def main(argv: list[str]) -> int:
    """Prints the plan; then raises ConfigError, with the nearest recipe that fits, where the device has too little."""
    parser = argparse.ArgumentParser(prog="steprag plan train", description="Memory, disk and hours of a training run.")
    parser.add_argument("--pairs", metavar="DIR", help="pairs to train on [sizes of the published RAG_ProGuide]")
    parser.add_argument("--device", choices=[*CARDS, "cpu"], help="[the GPU that is here, else the processor]")
    parser.add_argument("--devices", type=int, metavar="N", help="how many [trl: the recipe's processes; else all]")
    parser.add_argument("--json", action="store_true", help="the plan as JSON")
    add_options(parser, TrainConfig)
    given = parse_arguments(parser, argv)
    config: TrainConfig = config_from(TrainConfig, given)
    if config.stage == "retriever":
        raise ConfigError("stage retriever trains an encoder, which steprag plan train does not compute")
    check_keys(config)
    if given.devices is not None and given.devices < 1:
        raise ConfigError(f"--devices {given.devices}: give 1 or more")
    devices = given.devices or (config.processes if config.trainer == "trl" else max(1, visible_gpus()))
    if config.trainer == "trl":
        config = config.model_copy(update={"processes": devices})
    folder = Path(config.model)  # one with a config.json is enough: nothing is loaded
    here = (folder / "config.json").is_file()
    shape = shape_of(ModelFiles(config.model, hf=folder) if here else resolve_model(config.model))
    if shape is None:
        raise ConfigError(f"{config.model} has no config.json like a llama's, which a plan is made from")
    data = measure(Path(given.pairs), config) if given.pairs else PUBLISHED
    device = _device(given.device)
    report = plan(config, shape, data, device, devices)
    sys.stdout.write(json.dumps(report, indent=2) + "\n" if given.json else _table(report))
    if device.gib is not None and not report["fits"]:
        raise ConfigError(
            refusal(config, data, devices, device.gib, report) + remedy(config, shape, data, devices, device.gib)
        )
    if given.pairs:
        say_next("train", given.pairs, *(("--config", given.config) if given.config else ()))
    return 0


def _device(name: str | None) -> Device:
    """A GPU by its name, or the processor; without a name the first GPU that is here."""
    if name in CARDS:
        return Device(name.upper(), CARDS[name][0])
    return next(iter(gpus() if name is None else []), processor())


def measure(folder: Path, config: TrainConfig) -> Data:
    """Rows of a pairs folder and their sizes, at four characters a token: near enough for a plan, and no model.

    Raises ConfigError for a stage that reads no pairs.
    """
    if config.stage == "grpo":
        raise ConfigError("--pairs: stage grpo learns from its own episodes; leave it out")
    rows = read_training(data_files(existing(folder, "pairs folder"), config.stage)[0], config.stage)
    prompts = [chars_of(row.prompt) / CHARS_A_TOKEN for row in rows]
    answers = [max(len(reply["content"]) for reply in row.completions) / CHARS_A_TOKEN for row in rows]
    whole = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
    return Data(len(rows), sum(answers) / len(rows), sum(whole) / len(rows), round(max(whole)))


def plan(config: TrainConfig, shape: Shape, data: Data, device: Device, devices: int) -> dict[str, Any]:
    """The plan as plain values; memory in GiB a device."""
    parts = memory(config, shape, data, devices)
    return {
        "model": config.model,
        "parameters": shape.parameters,
        "counted_like": None if str(shape.model_type) in FAMILIES else "llama",
        "device": f"{devices} x {device.name}" if devices > 1 else device.name,
        "rows": None if config.stage == "grpo" else data.rows,
        "memory": {name: round(value, 2) for name, value in asdict(parts).items()},
        "memory_total": round(parts.total, 1),
        "memory_there": None if device.gib is None else round(device.gib, 1),
        "fits": None if device.gib is None else parts.total <= device.gib,
        "hours": hours(config, shape.multiplied, data, device, devices),
        "disk": round(checkpoint_bytes(config, shape) / GIB, 1),
    }


def hours(config: TrainConfig, weights: int, data: Data, device: Device, devices: int) -> float | None:
    """Hours of the training loop, an estimate that was compared with no GPU. None for stage grpo, whose time is its
    episodes', and for an unknown device. `weights`: those that every token is multiplied with.

    A trained weight costs 6 floating-point operations a token, a frozen one 4, a second forward pass 2 more (arXiv
    2001.08361, attention left out).
    """
    speed = _speed(device)
    if config.stage == "grpo" or speed is None:
        return None
    rows = config.epochs * data.rows
    if config.max_steps:
        rows = config.max_steps * config.batch_size * config.accumulation * devices * config.nodes
    sequences = 1.0 if config.stage != "dpo" else 1 + data.answer / data.mean if config.shares else 2.0
    tokens = rows * sequences * data.mean
    passes = 6 if config.finetuning == "full" else 4
    passes += 2 * config.gradient_checkpointing + 2 * (config.stage == "dpo")  # a second forward pass; the reference's
    return tokens * passes * weights / (devices * config.nodes * speed) / 3600


def _speed(device: Device) -> float | None:
    """Operations a second; a processor's are measured by a product of float32."""
    if device.name.endswith("cores"):
        return 2 * SHARE * product_flops()
    words = set(re.findall(r"[a-z0-9]+", device.name.lower()))
    known = [teraflops for name, (_, teraflops) in CARDS.items() if name in words]
    return SHARE * device.share * known[0] * 1e12 if known and not words & OTHER_CARDS else None


def refusal(config: TrainConfig, data: Data, devices: int, gib: float, report: dict[str, Any]) -> str:
    """Why it does not fit, and the nearest recipe that does: of this model if there is one, else of the largest."""
    wanted = f"{report['memory_total']} GiB are needed on each device and {report['device']} has {gib:.0f}"
    fitting = []
    for path in sorted(RECIPES.glob("*.yaml")):
        other = load_config(TrainConfig, str(path))
        shape = shape_of(resolve_model(other.model))
        if shape and other.stage == config.stage and (takes := memory(other, shape, data, devices).total) <= gib:
            fitting.append((other.model == config.model, shape.parameters, other.finetuning == "full", takes, path))
    if not fitting:
        return f"{wanted}; no recipe of stage {config.stage} fits"
    *_, takes, path = max(fitting)
    return f"{wanted}; nearest recipe that fits: configs/training/{path.name} ({takes:.1f} GiB)"


def remedy(config: TrainConfig, shape: Shape, data: Data, devices: int, gib: float) -> str:
    """The fewest of `SAVINGS` that make this recipe fit, as options to give; nothing where all together do not."""

    def with_keys(keys: dict[str, Any]) -> float:
        """GiB of the recipe with other keys; infinite where they contradict it."""
        values = config.model_dump()
        for key, value in keys.items():
            section, _, name = key.rpartition(".")
            (values[section] if section else values)[name] = value
        changed = TrainConfig.model_validate(values)
        with suppress(ConfigError):
            check_keys(changed)
            return memory(changed, shape, data, devices).total
        return math.inf

    taken: dict[str, Any] = {}
    for key, value in {**SAVINGS, "grpo.questions": config.workers}.items():
        if with_keys(taken) > gib and with_keys({**taken, key: value}) < with_keys(taken):
            taken[key] = value
    for key in list(taken):
        fewer = {name: value for name, value in taken.items() if name != key}
        taken = fewer if with_keys(fewer) <= gib else taken
    if (left := with_keys(taken)) > gib:
        return ""
    options = " ".join(f"--{key} {str(value).lower()}" for key, value in taken.items())
    return f"; this one does with {options} ({left:.1f} GiB)"


def _table(report: dict[str, Any]) -> str:
    parts = ", ".join(f"{name} {value:.1f}" for name, value in report["memory"].items() if value >= 0.05)
    rows = f"rows     {report['rows']:,}\n" if report["rows"] is not None else ""
    taken, there = report["hours"], report["memory_there"]
    there = "an amount that its driver does not tell" if there is None else there
    like = f", counted like a {report['counted_like']}'s" if report["counted_like"] else ""
    told = "not known: episodes take most of it"
    if taken is None and report["rows"] is not None:
        told = f"not known: unknown card; for that of one which is known give --device {', '.join(CARDS)}"
    if taken is not None:
        long = f"{taken * 60:.0f} min" if taken < 2 else f"{taken:.0f} h"
        told = f"about {long}, at {SHARE:.0%} of the device's peak"
    return (
        f"model    {report['model']}, {report['parameters']:,} parameters{like}\n"
        f"{rows}"
        f"memory   {report['memory_total']} GiB of {there} on each of {report['device']} ({parts})\n"
        f"disk     {report['disk']} GiB for checkpoints\n"
        f"time     {told}\n"
    )
