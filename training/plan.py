"""`steprag plan train`: memory and disk of a training run before it starts; refuses what cannot fit.

All figures are estimates from arithmetic (`training.estimate`), not yet compared with a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from steprag.cli import guarded
from steprag.config.load import add_options, config_from, load_config, parse_arguments
from steprag.engines.models import ModelFiles, resolve_model
from steprag.errors import ConfigError
from steprag.records.jsonl import existing
from training.checks import check_keys
from training.config import TrainConfig
from training.estimate import GIB, PUBLISHED, Data, Shape, checkpoint_bytes, memory, shape_of
from training.launch.devices import Device, gpus, processor
from training.rows import data_files, read_training

RECIPES = Path(__file__).parents[1] / "configs" / "training"
CHARACTERS_A_TOKEN = 4


DEVICES = {"t4": 16, "l4": 24, "a10": 24, "3090": 24, "4090": 24, "a6000": 48, "l40s": 48}
DEVICES |= {"a100": 80, "h100": 80, "h200": 141}
"""GiB of memory, from the makers' data sheets; the larger one where there are two."""


def main(argv: list[str]) -> int:
    """Prints the plan; then raises ConfigError, with the nearest recipe that fits, where the device has too little."""
    parser = argparse.ArgumentParser(prog="steprag plan train", description="Memory and disk of a training run.")
    parser.add_argument("--pairs", metavar="DIR", help="pairs to train on [sizes of the published RAG_ProGuide]")
    parser.add_argument("--device", choices=[*DEVICES, "cpu"], help="[the GPU that is here, else the processor]")
    parser.add_argument("--devices", type=int, metavar="N", help="how many of them [the recipe's processes]")
    parser.add_argument("--json", action="store_true", help="the plan as JSON")
    add_options(parser, TrainConfig)
    given = parse_arguments(parser, argv)
    config: TrainConfig = config_from(TrainConfig, given)
    check_keys(config)
    if given.devices is not None and given.devices < 1:
        raise ConfigError(f"--devices {given.devices}: give 1 or more")
    devices = given.devices or config.processes
    if config.trainer == "trl":
        config = config.model_copy(update={"processes": devices})
    folder = Path(config.model)  # one with a config.json is enough: nothing is loaded
    here = (folder / "config.json").is_file()
    shape = shape_of(ModelFiles(config.model, hf=folder) if here else resolve_model(config.model))
    if shape is None:
        raise ConfigError(f"{config.model} has no config.json like a llama's, which a plan is made from")
    data = _data(given, config)
    device = _device(given.device)
    report = plan(config, shape, data, device, devices)
    sys.stdout.write(json.dumps(report, indent=2) + "\n" if given.json else _table(report))
    if not report["fits"]:
        raise ConfigError(refusal(config, data, device, devices, report))
    return 0


def _device(name: str | None) -> Device:
    """A GPU by its name, or the processor; without a name the first GPU that is here."""
    if name in DEVICES:
        return Device(name.upper(), DEVICES[name])
    here = gpus() if name is None else []
    return here[0] if here else processor()


def _data(given: argparse.Namespace, config: TrainConfig) -> Data:
    """What is trained on. Raises ConfigError for pairs that the stage does not read."""
    if not given.pairs:
        return PUBLISHED
    if config.stage == "grpo":
        raise ConfigError("--pairs: stage grpo learns from its own episodes; leave it out")
    return measure(Path(given.pairs), config)


def plan(config: TrainConfig, shape: Shape, data: Data, device: Device, devices: int) -> dict[str, Any]:
    """The plan as plain values; memory in GiB a device."""
    parts = memory(config, shape, data, devices)
    return {
        "model": config.model,
        "parameters": shape.parameters,
        "device": f"{devices} x {device.name}" if devices > 1 else device.name,
        "rows": None if config.stage == "grpo" else data.rows,
        "memory": {name: round(value, 2) for name, value in asdict(parts).items()},
        "memory_total": round(parts.total, 1),
        "memory_there": round(device.gib, 1),
        "fits": parts.total <= device.gib,
        "disk": round(checkpoint_bytes(config, shape) / GIB, 1),
    }


def refusal(config: TrainConfig, data: Data, device: Device, devices: int, report: dict[str, Any]) -> str:
    """Why it does not fit, and the nearest recipe that does: of this model if there is one, else of the largest."""
    wanted = f"{report['memory_total']} GiB are needed on each device and {report['device']} has {device.gib:.0f}"
    fitting = []
    for path in sorted(RECIPES.glob("*.yaml")):
        other = load_config(TrainConfig, str(path))
        shape = shape_of(resolve_model(other.model))
        if shape is None or other.stage != config.stage:
            continue
        takes = memory(other, shape, data, devices).total
        if takes <= device.gib:
            fitting.append((other.model == config.model, shape.parameters, other.finetuning == "full", takes, path))
    if not fitting:
        return f"{wanted}; no recipe of stage {config.stage} fits"
    *_, takes, path = max(fitting)
    return f"{wanted}; nearest recipe that fits: configs/training/{path.name} ({takes:.1f} GiB)"


def measure(folder: Path, config: TrainConfig) -> Data:
    """Rows of a pairs folder and their sizes, at four characters a token: near enough for a plan, and no model."""
    rows = read_training(data_files(existing(folder, "pairs folder"), config.stage)[0], config.stage)
    prompts = [sum(len(message["content"]) for message in row.prompt) / CHARACTERS_A_TOKEN for row in rows]
    answers = [max(len(reply["content"]) for reply in row.completions) / CHARACTERS_A_TOKEN for row in rows]
    longest = max(prompt + answer for prompt, answer in zip(prompts, answers, strict=True))
    return Data(len(rows), sum(answers) / len(rows), round(longest))


def _table(report: dict[str, Any]) -> str:
    parts = ", ".join(f"{name} {value:.1f}" for name, value in report["memory"].items() if value >= 0.05)
    rows = f"rows     {report['rows']:,}\n" if report["rows"] is not None else ""
    return (
        f"model    {report['model']}, {report['parameters']:,} parameters\n"
        f"{rows}"
        f"memory   {report['memory_total']} GiB of {report['memory_there']} on each of {report['device']} ({parts})\n"
        f"disk     {report['disk']} GiB for checkpoints\n"
    )


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
