"""What a recipe may not ask for, refused before anything is read. What this machine lacks: `training.machine`."""

from __future__ import annotations

import os
from collections.abc import Iterable

from steprag.config.sections import strange_flag
from steprag.engines.models import ModelFiles
from steprag.engines.weights import no_template
from steprag.errors import ConfigError, nearest, quoted
from steprag.records.jsonl import read_json
from training.config import TrainConfig
from training.play.rewards import check_names
from training.rows import Row

LOSSES = (
    "sigmoid", "hinge", "ipo", "nca_pair", "bco_pair", "sppo_hard", "aot", "aot_unpaired", "apo_zero", "apo_down",
    "discopop", "sft", "sigmoid_norm",
)  # fmt: skip
"""TRL's, without `exo_pair` and `robust`, which are sigmoid or an error where no smoothing is set for all pairs."""
TRACKERS = ("clearml", "codecarbon", "comet_ml", "dvclive", "mlflow", "swanlab", "tensorboard", "trackio", "wandb")
"""Those of the Hugging Face Trainer whose name is their package's."""

FIXED = frozenset({"logprobs_mode", "generation_config", "override_generation_config", "logits_processors",
                   "enable_lora", "max_lora_rank", "lora_modules", "top_p", "top_k", "min_p"})  # fmt: skip
"""Flags of vLLM that would sample from another distribution than the one in training, or report another."""


def check_template(files: ModelFiles) -> None:
    """Raises ConfigError for a local model without a chat template, which only an instruct model has."""
    if files.hf is None or (files.hf / "chat_template.jinja").is_file():
        return
    settings = files.hf / "tokenizer_config.json"
    if not settings.is_file() or not read_json(settings).get("chat_template"):
        raise no_template(files.name, files.hf)


def check_smoothing(config: TrainConfig, rows: Iterable[Row]) -> None:
    """Raises ConfigError where pairs have a label smoothing that the trainer or the loss does not know."""
    if config.stage != "dpo" or not config.dpo.smoothing or not any(row.smoothing for row in rows):
        return
    remedy = "set --dpo.smoothing false to ignore it"
    if config.trainer == "llamafactory":
        raise ConfigError(f"the pairs have label_smoothing, which llamafactory takes for no single row; {remedy}")
    if strangers := sorted(set(config.dpo.loss) - {"sigmoid", "sft"}):
        raise ConfigError(
            f"the pairs have label_smoothing, which is defined for dpo.loss sigmoid, not for {strangers[0]}; {remedy}"
        )


def check_keys(config: TrainConfig) -> None:
    """Raises ConfigError for keys that contradict each other or that the chosen trainer does not have."""
    if strangers := sorted(set(config.report_to) - set(TRACKERS)):
        raise ConfigError(f"report_to: unknown tracker {quoted(strangers[0])}; known: {', '.join(TRACKERS)}")
    dpo, grpo, trl, critic = config.dpo, config.grpo, config.trainer == "trl", config.stage == "critic"
    unknown = next((name for name in dpo.loss if name not in LOSSES), None)
    if unknown and trl:
        raise ConfigError(f"dpo.loss: unknown loss {quoted(unknown)}{nearest(unknown, LOSSES)}")
    if plays := config.stage == "grpo":
        check_names(grpo.rewards)
    nf4, full, sharded = config.quantization is not None, config.finetuning == "full", config.deepspeed is not None
    zero3, accumulates = config.deepspeed == "zero3", config.accumulation != 1
    unshared, uneven = not (config.share_prefix and trl), bool(grpo.questions % config.workers)
    several, meets = config.nodes > 1, config.rendezvous is not None
    foreign = config.stage == "dpo" and dpo.loss not in (("sigmoid",), ("hinge",), ("ipo",))
    flags = {name.replace("-", "_") for name in grpo.engine_args}
    engine, shown, strange = plays and grpo.engine is not None, ", ".join(sorted(FIXED & flags)), strange_flag(flags)
    branches = plays and grpo.branch > 0
    launched = int(os.environ.get("WORLD_SIZE") or "1") > 1
    complaints = {
        "stage critic: only trainer trl trains a critic": critic and not trl,
        "quantization: a critic's head cannot be trained in 4 bits; leave it out": critic and nf4,
        "quantization: the 4-bit base cannot be trained itself; set finetuning lora": nf4 and full,
        "deepspeed: zero3 cannot shard a 4-bit base (github.com/bitsandbytes-foundation/bitsandbytes/issues/1249); "
        "take zero2, or leave quantization out": nf4 and zero3,
        "quantization: llamafactory is given nf4 alone; take it, or trainer trl": (
            config.quantization == "int8" and not trl
        ),
        "deepspeed: a critic is trained on whole weights; leave it out": critic and sharded,
        "merge: under zero3 no process has the whole weights; leave merge out": config.merge and zero3 and trl,
        "merge: full fine-tuning gives a whole model already; leave merge out": config.merge and full,
        "merge: weights are not added to a 4-bit base; take trainer llamafactory, which merges into the whole one": (
            config.merge and nf4 and trl
        ),
        "processes: llamafactory takes every GPU by itself; leave it out": config.processes > 1 and not trl,
        "nodes: llamafactory has variables of its own (docs/training.md); leave it out": several and not trl,
        "rendezvous: several nodes need a place to meet; give HOST:PORT of this machine": several and not meets,
        "rendezvous: one machine meets nobody; give nodes, or leave it out": not several and meets,
        "side_by_side: without share_prefix, and with another trainer than trl, it changes nothing; leave it out": (
            config.side_by_side == "question" and unshared
        ),
        "give the number of processes by the key processes; steprag train starts them itself": trl and launched,
        "stage grpo: llamafactory has none; take trainer trl": plays and not trl,
        "grpo.questions: has to be a multiple of processes, which share the questions of a step": plays and uneven,
        "accumulation: a step of grpo takes all completions of its episodes; leave it at 1": plays and accumulates,
        "grpo.rewards: give at least one reward a weight": plays and not any(grpo.rewards.values()),
        "grpo.max_tokens: leaves no room for a prompt; raise max_length": plays
        and grpo.max_tokens >= config.max_length,
        "grpo.gain: turns, branch and credit state say what a turn is worth themselves; leave gain or them out": (
            plays and grpo.gain > 0 and (grpo.turns is not None or branches or grpo.credit == "state")
        ),
        "grpo.branch: it compares outcomes by stretches; leave turns out, or set credit state": (
            branches and grpo.turns is not None and grpo.credit != "state"
        ),
        "grpo.branch: shared turns have one worth; leave credit kept and weigh episode out": (
            branches and (grpo.credit == "kept" or grpo.weigh == "episode")
        ),
        "grpo.engine: an engine is sent the adapter alone; set finetuning lora, or leave engine out": engine and full,
        "grpo.engine: an engine's base is whole, and its probabilities are others; leave quantization out": (
            engine and nf4
        ),
        "grpo.engine: several processes share one engine; start vLLM yourself and give its URL": (
            grpo.engine == "vllm" and plays and config.workers > 1
        ),
        "grpo.temperature: vLLM samples at 0.01 where less is asked for; set 0.01 or more": (
            engine and grpo.temperature < 0.01
        ),
        f"grpo.engine_args: with {shown} samples would be of another distribution; leave it out": engine
        and shown != "",
        f"grpo.engine_args: {strange}": engine and strange is not None,
        "grpo.engine_args: only a vllm that is started here takes them (grpo.engine vllm); leave it out": (
            plays and bool(flags) and grpo.engine != "vllm"
        ),
        "dpo.loss: llamafactory takes one of sigmoid, hinge, ipo": foreign and not trl,
        "lora.layers: llamafactory trains every block; leave it out": config.lora.layers is not None and not trl,
        "minutes: llamafactory is bounded by max_steps or epochs; leave it out": config.minutes is not None and not trl,
    }
    if found := next((complaint for complaint, holds in complaints.items() if holds), None):
        raise ConfigError(found)
