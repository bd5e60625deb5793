"""What a training run takes, from arithmetic over the model's config.json: bytes a device, and disk.

Mixed-precision accounting as in ZeRO (arXiv 1910.02054): a trained weight costs 16 bytes (weight and gradient in 2 + 2
or 4 + 4 bytes, the rest for the master copy and Adam's two moments). Activations count the inputs that each linear
layer, norm and activation function keeps for its backward pass (arXiv 2205.05198, without dropout, attention fused).

Stage grpo plays before it learns, so it needs what the greater of the two takes: to play, a cache of keys and values
for all episodes of a step, and a pass over all their prompts at once.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from steprag.engines.models import ModelFiles
from steprag.engines.pretrained import fetched
from steprag.errors import ConfigError
from steprag.records.jsonl import read_json
from training.config import TrainConfig

GIB = 2**30
TRAINED_BYTES = 16
NF4_BYTES = 0.5 + 0.127 / 8
"""4 bits a weight, and 0.127 bits for the doubly quantised scales (QLoRA, arXiv 2305.14314)."""
RUNTIME_GIB = 1.0
SPARE = 1.1
"""Allocators keep blocks that fit nothing."""


PUBLISHED_CONFIGS = Path(__file__).parent.parent / "configs" / "training" / "models.json"
"""Name on the hub → what its config.json says of sizes: a plan for these models needs no download."""
MOST = 2**32
"""No size of a model reaches it."""


@dataclass(frozen=True)
class Shape:
    """A llama-like decoder, as large as its config.json says.

    `kv` is the width of keys and of values; `tied` has input and output embeddings be one.
    """

    hidden: int
    intermediate: int
    blocks: int
    kv: int
    words: int
    tied: bool
    qkv_bias: bool = False

    @property
    def linear(self) -> int:
        """Weights of the linear layers within blocks: what LoRA adapts, nf4 shrinks and a token is multiplied with."""
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * self.kv
        return self.blocks * (attention + 3 * self.hidden * self.intermediate)

    @property
    def embedding(self) -> int:
        """Weights of the embeddings, input and output."""
        return self.words * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        """All weights."""
        biases = self.blocks * (self.hidden + 2 * self.kv) if self.qkv_bias else 0
        return self.linear + self.embedding + biases + (2 * self.blocks + 1) * self.hidden

    def lora(self, rank: int, layers: int | None) -> int:
        """Weights that LoRA of all linear layers adds, in the top `layers` blocks where that is given."""
        widths = (self.hidden + self.hidden) * 2 + (self.hidden + self.kv) * 2 + (self.hidden + self.intermediate) * 3
        return rank * widths * min(layers or self.blocks, self.blocks)


def shape_of(files: ModelFiles) -> Shape | None:
    """The model's shape, or None where its config.json is not like a llama's. That of a hub's model is fetched unless
    it is on this machine; raises ConfigError where it is not to be had.
    """
    if files.hf:
        return _shape(read_json(files.hf / "config.json"))
    name = "HuggingFaceTB/SmolLM2-135M-Instruct" if files.embedded else files.hub
    if name is None:  # a GGUF file
        return None
    published = read_json(PUBLISHED_CONFIGS).get(name)
    return _shape(published or read_json(fetched(name, ("config.json",), "model") / "config.json"))


def _shape(config: dict[str, Any]) -> Shape | None:
    wanted = ("hidden_size", "num_attention_heads", "intermediate_size", "num_hidden_layers", "vocab_size")
    sizes = [config.get(key) for key in wanted]
    if None in sizes:
        return None
    sizes += [config.get("head_dim") or sizes[0], config.get("num_key_value_heads") or sizes[1]]
    if not all(type(size) is int and 0 < size < MOST for size in sizes):
        raise ConfigError("config.json names sizes that no model has")
    hidden, heads, intermediate, layers, vocabulary, _, key_heads = (int(str(size)) for size in sizes)
    head = config.get("head_dim") or hidden // heads
    tied, qwen2 = bool(config.get("tie_word_embeddings", False)), config.get("model_type") == "qwen2"
    return Shape(hidden, intermediate, layers, head * key_heads, vocabulary, tied, qwen2)


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
    runtime: float = RUNTIME_GIB

    @property
    def total(self) -> float:
        """GiB of all parts, with a tenth more for what the allocator cannot use."""
        return SPARE * sum(getattr(self, field.name) for field in fields(self))


def memory(config: TrainConfig, shape: Shape, data: Data, devices: int) -> Memory:
    """The most that one of `devices` holds, with a batch of the longest rows."""
    learning = _learning(config, shape, data, devices)
    return max(learning, _playing(config, shape, data, learning), key=lambda each: each.total)


def _learning(config: TrainConfig, shape: Shape, data: Data, devices: int) -> Memory:
    width = 2 if config.bf16 else 4
    frozen = shape.parameters * width
    if config.quantization:
        frozen = shape.linear * NF4_BYTES + (shape.parameters - shape.linear) * 2
    frozen /= devices if config.deepspeed == "zero3" else 1
    weights, trained = (0.0 if config.finetuning == "full" else frozen), trained_weights(config, shape)
    optimiser = trained * TRAINED_BYTES / (devices if config.deepspeed else 1)
    if config.finetuning == "full" and config.deepspeed == "zero2":
        optimiser = trained * (2 + (TRAINED_BYTES - 2) / devices)
    longest = min(data.longest, config.max_length)
    pairs = 1.0 if config.stage != "dpo" else 1 + data.answer / longest if config.shares else 2.0
    tokens = config.batch_size * longest * pairs  # those that a step's batch puts through the blocks
    return Memory(
        weights / GIB,
        _reference_bytes(config, shape, frozen) / GIB,
        optimiser / GIB,
        _activation_bytes(config, shape, tokens, width) / GIB,
        _logit_bytes(config, shape, tokens) / GIB,
    )


def trained_weights(config: TrainConfig, shape: Shape) -> int:
    """How many weights learn."""
    return shape.parameters if config.finetuning == "full" else shape.lora(config.lora.rank, config.lora.layers)


def _playing(config: TrainConfig, shape: Shape, data: Data, learning: Memory) -> Memory:
    """What sampling takes: a block's activations over every prompt of a step, padded to the longest, their mask, the
    last tokens' logits with two copies, and keys and values of all blocks. Nothing, in stages that do not play.
    """
    if config.stage != "grpo":
        return replace(learning, activations=0.0, logits=0.0)
    width = 2 if config.bf16 else 4
    episodes = config.grpo.questions * config.grpo.episodes / config.workers
    longest = min(data.longest, config.max_length)
    tokens = episodes * longest
    block = tokens * width * (2 * shape.hidden + 3 * shape.intermediate) + tokens * longest
    logits = episodes * shape.words * 4 * 3
    cache = tokens * width * 2 * shape.kv * shape.blocks
    return replace(learning, activations=block / GIB, logits=logits / GIB, cache=cache / GIB)


def _reference_bytes(config: TrainConfig, shape: Shape, frozen: float) -> float:
    """TRL's reference of DPO is scored beforehand, that of GRPO with every weight trained is a second model;
    LLaMA-Factory keeps one, but for a fresh adapter, which it switches off.
    """
    if config.stage == "grpo":
        return shape.parameters * 4 if config.grpo.beta and config.finetuning == "full" else 0.0
    fresh = config.finetuning == "lora" and config.adapter is None
    return 0.0 if config.stage != "dpo" or config.trainer == "trl" or fresh else frozen


def _activation_bytes(config: TrainConfig, shape: Shape, tokens: float, width: int) -> float:
    """Inputs kept for backward: all blocks, or with checkpointing every block's input and one block whole."""
    block = width * (6 * shape.hidden + 2 * shape.kv + 4 * shape.intermediate) + 4 * shape.hidden
    blocks = min(config.lora.layers or shape.blocks, shape.blocks) if config.finetuning == "lora" else shape.blocks
    kept = blocks * width * shape.hidden + block if config.gradient_checkpointing else blocks * block
    return tokens * kept


def _logit_bytes(config: TrainConfig, shape: Shape, tokens: float) -> float:
    """TRL scores learnt tokens in tiles; LLaMA-Factory holds every logit, in bf16, in float32, and its gradient.

    A critic has one logit a token.
    """
    if config.stage == "critic":
        return tokens * 8
    if config.trainer == "trl":
        return 256 * shape.words * 8
    return tokens * shape.words * 10


def checkpoint_bytes(config: TrainConfig, shape: Shape) -> float:
    """Disk that a run fills at most: two checkpoints with their optimiser (a third while it is written), the result."""
    merged = shape.parameters * 4 if config.merge else 0
    return trained_weights(config, shape) * (3 * 12 + 4) + merged
