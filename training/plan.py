"""`steprag plan train`: memory and disk of a training run before it starts; refuses what cannot fit.

All figures come from arithmetic over the model's config.json; none was compared with a GPU yet. Mixed-precision
accounting as in ZeRO (arXiv 1910.02054): a trained weight costs 16 bytes (weight and gradient in 2 + 2 or 4 + 4 bytes,
the rest for the master copy and Adam's two moments). Activations count the inputs that each linear layer, norm and
activation function keeps for its backward pass (arXiv 2205.05198, without dropout, attention fused).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from steprag.config.load import add_options, config_from, load_config, parse_arguments
from steprag.console.terminal import guarded
from steprag.engines.models import ModelFiles, resolve_model
from steprag.engines.pretrained import fetched
from steprag.errors import ConfigError
from steprag.records.jsonl import existing, read_json
from training.checks import check_keys
from training.config import TrainConfig
from training.machine import Device, gpus, processor
from training.rows import data_files, read_training

RECIPES = Path(__file__).parents[1] / "configs" / "training"
PUBLISHED_CONFIGS = RECIPES / "models.json"
"""Name on the hub → what its config.json says of sizes: a plan for these models needs no download."""
DEVICES = {"t4": 16, "l4": 24, "a10": 24, "3090": 24, "4090": 24, "a6000": 48, "l40s": 48}
DEVICES |= {"a100": 80, "h100": 80, "h200": 141}
"""GiB of memory, from the makers' data sheets; the larger one where there are two."""
GIB = 2**30
CHARACTERS_A_TOKEN = 4
TRAINED_BYTES = 16
NF4_BYTES = 0.5 + 0.127 / 8
"""4 bits a weight, and 0.127 bits for the doubly quantised scales (QLoRA, arXiv 2305.14314)."""
SPARE = 1.1
"""Allocators keep blocks that fit nothing."""
Size = Annotated[int, Field(gt=0, lt=2**32)]


class Shape(BaseModel, frozen=True, strict=True):
    """A llama-like decoder, as large as its config.json says: the fields are that file's."""

    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Size
    num_attention_heads: Size
    vocab_size: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    tie_word_embeddings: Any = False
    model_type: Any = None

    @property
    def kv(self) -> int:
        """Width of keys and of values."""
        head = self.head_dim or self.hidden_size // self.num_attention_heads
        return head * (self.num_key_value_heads or self.num_attention_heads)

    @property
    def linear(self) -> int:
        """Weights of the linear layers within blocks: what LoRA adapts, nf4 shrinks and a token is multiplied with."""
        return (
            self.num_hidden_layers * self.hidden_size * (2 * (self.hidden_size + self.kv) + 3 * self.intermediate_size)
        )

    @property
    def parameters(self) -> int:
        """All weights."""
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        biases = self.num_hidden_layers * (self.hidden_size + 2 * self.kv) if self.model_type == "qwen2" else 0
        return self.linear + embeddings + biases + (2 * self.num_hidden_layers + 1) * self.hidden_size

    def lora(self, rank: int, layers: int | None) -> int:
        """Weights that LoRA of all linear layers adds, in the top `layers` blocks where that is given."""
        widths = 9 * self.hidden_size + 2 * self.kv + 3 * self.intermediate_size
        return rank * widths * min(layers or self.num_hidden_layers, self.num_hidden_layers)


def shape_of(files: ModelFiles) -> Shape | None:
    """The model's shape, or None where its config.json is not like a llama's. That of a hub's model is fetched unless
    it is on this machine; raises ConfigError where it is not to be had.
    """
    name = "HuggingFaceTB/SmolLM2-135M-Instruct" if files.embedded else files.hub
    if files.hf:
        config = read_json(files.hf / "config.json")
    elif name is None:  # a GGUF file
        return None
    else:
        published = read_json(PUBLISHED_CONFIGS).get(name)
        config = published or read_json(fetched(name, ("config.json",), "model") / "config.json")
    if any(field.is_required() and config.get(key) is None for key, field in Shape.model_fields.items()):
        return None
    try:
        return Shape.model_validate(config)
    except ValidationError:
        raise ConfigError("config.json names sizes that no model has") from None


@dataclass(frozen=True)
class Data:
    """What is trained on: rows, tokens of a mean answer, and of the longest prompt and answer together."""

    rows: int
    answer: float
    longest: int


PUBLISHED = Data(rows=13289, answer=40, longest=2390)
"""RAG_ProGuide: 13,289 pairs, prompt and answer 2,390 tokens at most."""


@dataclass(frozen=True)
class Memory:
    """GiB on one device at the peak of a step."""

    weights: float
    reference: float
    optimiser: float
    activations: float
    logits: float
    cache: float = 0.0
    runtime: float = 1.0

    @property
    def total(self) -> float:
        """GiB of all parts, with a tenth more for what the allocator cannot use."""
        return SPARE * sum(astuple(self))


def memory(config: TrainConfig, shape: Shape, data: Data, devices: int) -> Memory:
    """The most that one of `devices` holds, with a batch of the longest rows. Stage grpo plays before it learns, so it
    takes the greater of the two.
    """
    width, full = 2 if config.bf16 else 4, config.finetuning == "full"
    frozen = shape.parameters * width
    if config.quantization:
        frozen = shape.linear * NF4_BYTES + (shape.parameters - shape.linear) * 2
    frozen /= devices if config.deepspeed == "zero3" else 1
    optimiser = trained_weights(config, shape) * TRAINED_BYTES / (devices if config.deepspeed else 1)
    if full and config.deepspeed == "zero2":
        optimiser = shape.parameters * (2 + (TRAINED_BYTES - 2) / devices)
    longest = min(data.longest, config.max_length)
    pairs = 1.0 if config.stage != "dpo" else 1 + data.answer / longest if config.shares else 2.0
    tokens = config.batch_size * longest * pairs  # those that a step's batch puts through the blocks
    learning = Memory(
        0.0 if full else frozen / GIB,
        _reference_bytes(config, shape, frozen) / GIB,
        optimiser / GIB,
        tokens * _activation_bytes(config, shape, width) / GIB,
        _logit_bytes(config, shape, tokens) / GIB,
    )
    if config.stage != "grpo":
        return learning
    # A block's activations over every prompt of a step, padded to the longest, their mask, the last tokens' logits with
    # two copies, and keys and values of all blocks.
    episodes = config.grpo.questions * config.grpo.episodes / config.workers
    tokens = episodes * longest
    block = tokens * width * (2 * shape.hidden_size + 3 * shape.intermediate_size) + tokens * longest
    cache, logits = tokens * width * 2 * shape.kv * shape.num_hidden_layers, episodes * shape.vocab_size * 4 * 3
    playing = replace(learning, activations=block / GIB, logits=logits / GIB, cache=cache / GIB)
    return max(learning, playing, key=lambda each: each.total)


def trained_weights(config: TrainConfig, shape: Shape) -> int:
    """How many weights learn."""
    return shape.parameters if config.finetuning == "full" else shape.lora(config.lora.rank, config.lora.layers)


def _reference_bytes(config: TrainConfig, shape: Shape, frozen: float) -> float:
    """TRL's reference of DPO is scored beforehand, that of GRPO with every weight trained is a second model;
    LLaMA-Factory keeps one, but for a fresh adapter, which it switches off.
    """
    if config.stage == "grpo":
        return shape.parameters * 4 if config.grpo.beta and config.finetuning == "full" else 0.0
    fresh = config.finetuning == "lora" and config.adapter is None
    return 0.0 if config.stage != "dpo" or config.trainer == "trl" or fresh else frozen


def _activation_bytes(config: TrainConfig, shape: Shape, width: int) -> int:
    """A token's inputs kept for backward: all blocks, or with checkpointing every block's input and one block whole."""
    hidden, blocks = shape.hidden_size, shape.num_hidden_layers
    block = width * (6 * hidden + 2 * shape.kv + 4 * shape.intermediate_size) + 4 * hidden
    if config.finetuning == "lora":
        blocks = min(config.lora.layers or blocks, blocks)
    return blocks * width * hidden + block if config.gradient_checkpointing else blocks * block


def _logit_bytes(config: TrainConfig, shape: Shape, tokens: float) -> float:
    """TRL scores learnt tokens in tiles; LLaMA-Factory holds every logit, in bf16, in float32, and its gradient.

    A critic has one logit a token.
    """
    if config.stage == "critic":
        return tokens * 8
    return 256 * shape.vocab_size * 8 if config.trainer == "trl" else tokens * shape.vocab_size * 10


def checkpoint_bytes(config: TrainConfig, shape: Shape) -> float:
    """Disk that a run fills at most: two checkpoints with their optimiser (a third while it is written), the result."""
    merged = shape.parameters * 4 if config.merge else 0
    return trained_weights(config, shape) * (3 * 12 + 4) + merged


def check_room(out: Path, config: TrainConfig, files: ModelFiles) -> None:
    """Raises ConfigError where the disk below `out` has no room for checkpoints and result."""
    shape = shape_of(files)
    if shape is None or (out / "manifest.json").exists():  # a run that goes on has its checkpoints already
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
    data = measure(Path(given.pairs), config) if given.pairs else PUBLISHED
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
    return next(iter(gpus() if name is None else []), processor())


def measure(folder: Path, config: TrainConfig) -> Data:
    """Rows of a pairs folder and their sizes, at four characters a token: near enough for a plan, and no model.

    Raises ConfigError for a stage that reads no pairs.
    """
    if config.stage == "grpo":
        raise ConfigError("--pairs: stage grpo learns from its own episodes; leave it out")
    rows = read_training(data_files(existing(folder, "pairs folder"), config.stage)[0], config.stage)
    prompts = [sum(len(message["content"]) for message in row.prompt) / CHARACTERS_A_TOKEN for row in rows]
    answers = [max(len(reply["content"]) for reply in row.completions) / CHARACTERS_A_TOKEN for row in rows]
    return Data(len(rows), sum(answers) / len(rows), round(max(map(sum, zip(prompts, answers, strict=True)))))


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
        if shape and other.stage == config.stage and (takes := memory(other, shape, data, devices).total) <= device.gib:
            fitting.append((other.model == config.model, shape.parameters, other.finetuning == "full", takes, path))
    if not fitting:
        return f"{wanted}; no recipe of stage {config.stage} fits"
    *_, takes, path = max(fitting)
    return f"{wanted}; nearest recipe that fits: configs/training/{path.name} ({takes:.1f} GiB)"


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
