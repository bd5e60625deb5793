"""Memory and disk that a training run takes, from arithmetic over the model's config.json; none of it was compared with
a GPU yet.

Mixed-precision accounting as in ZeRO (arXiv 1910.02054): a trained weight costs 16 bytes (weight and gradient in 2 + 2
or 4 + 4 bytes, the rest for the master copy and Adam's two moments). Activations count the inputs that each linear
layer, norm and activation function keeps for its backward pass (arXiv 2205.05198, without dropout, attention fused).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from training.config import TrainConfig

GIB = 2**30
TRAINED_BYTES = 16
QUANTISED_BYTES = {"nf4": 0.5 + 0.127 / 8, "int8": 1.0}
"""Of a linear layer's weight: 4 bits, and 0.127 for the doubly quantised scales (QLoRA, arXiv 2305.14314); 8 bits."""
OPTIMISERS = {
    "adamw_torch": 8, "adamw_torch_fused": 8, "adamw_8bit": 2, "paged_adamw_32bit": 8, "paged_adamw_8bit": 2,
    "lion_32bit": 4, "lion_8bit": 1, "adafactor": 0, "sgd": 0,
}  # fmt: skip
"""transformers' names (`optim`): bytes of state a trained weight, of those that page at most."""
SPARE = 1.1
"""Allocators keep blocks that fit nothing."""
LIVE = 1e9
"""DeepSpeed's `stage3_max_live_parameters`."""
Size = Annotated[int, Field(gt=0, lt=2**32)]


@dataclass(frozen=True)
class Blocks:
    """What the blocks of a model type have beside a llama's, by transformers' classes.

    `norms`: of the width of the model, each with a bias where `layer_norm`; one more stands behind the last block.
    `head_norms`: of queries and keys, each as wide as a "head" or as "all" of them. `biases`: of attention, where
    config.json does not say; `out_bias`: whether its last layer then has one too. `gated`: the block has three matrices
    and not two. `fused`: "qkv" and "gate" are one layer each. `told`: config.json's keys that may be missing there.
    `sparse`: feed-forward layers are mixtures of experts, whose weights are no linear layers: neither LoRA nor
    bitsandbytes touches them.
    """

    norms: int = 2
    layer_norm: bool = False
    head_norms: Literal["head", "all"] | None = None
    biases: bool = False
    out_bias: bool = True
    gated: bool = True
    fused: tuple[str, ...] = ()
    told: Mapping[str, Any] = field(default_factory=dict)
    sparse: bool = False


_TIED = {"tie_word_embeddings": True}
_GEMMA3 = {"head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262208, **_TIED}
FAMILIES = {
    **dict.fromkeys(("llama", "mistral", "ministral", "ministral3", "granite"), Blocks()),
    "qwen2": Blocks(biases=True, out_bias=False),
    "qwen3": Blocks(head_norms="head"),
    "gemma": Blocks(told={"head_dim": 256, **_TIED}),
    "gemma2": Blocks(norms=4, told={"head_dim": 256, **_TIED}),
    "gemma3_text": Blocks(norms=4, head_norms="head", told=_GEMMA3),
    "phi3": Blocks(fused=("qkv", "gate")),
    "glm": Blocks(biases=True, out_bias=False, fused=("gate",)),
    "glm4": Blocks(norms=4, biases=True, out_bias=False, fused=("gate",)),
    "smollm3": Blocks(told=_TIED),
    "olmo": Blocks(norms=0),
    **dict.fromkeys(("olmo2", "olmo3"), Blocks(head_norms="all")),
    **dict.fromkeys(("cohere", "cohere2"), Blocks(norms=1, told=_TIED)),
    "nemotron": Blocks(layer_norm=True, gated=False),
    "starcoder2": Blocks(layer_norm=True, biases=True, gated=False, told=_TIED),
    "gpt_neox": Blocks(layer_norm=True, biases=True, gated=False, fused=("qkv",)),
    "arcee": Blocks(gated=False),
    "apertus": Blocks(head_norms="head", gated=False),
    **dict.fromkeys(("exaone4", "hunyuan_v1_dense"), Blocks(head_norms="head")),
    "seed_oss": Blocks(biases=True, out_bias=False),
    "ernie4_5": Blocks(told=_TIED),
    "mixtral": Blocks(sparse=True),
    "qwen2_moe": Blocks(biases=True, out_bias=False, sparse=True),
    "qwen3_moe": Blocks(head_norms="head", sparse=True),
    "olmoe": Blocks(head_norms="all", sparse=True),
}


def blocks_of(kind: object) -> Blocks:
    """What the blocks of a config.json's `model_type` have; a llama's where it is not known here."""
    return FAMILIES.get(str(kind), FAMILIES["llama"])


class Shape(BaseModel, frozen=True, strict=True, defer_build=True):
    """A llama-like decoder by its config.json's sizes. `beside`: weights of a vision tower, loaded with it. The keys of
    mixtures of experts are Qwen's.
    """

    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Size
    num_attention_heads: Size
    vocab_size: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    tie_word_embeddings: Any = False
    attention_bias: Any = None
    mlp_bias: Any = None
    model_type: Any = None
    beside: int = 0
    num_experts: Size | None = None
    num_experts_per_tok: Size = 1
    moe_intermediate_size: Size | None = None
    shared_expert_intermediate_size: int = 0
    decoder_sparse_step: Size = 1
    mlp_only_layers: list[int] | None = None

    @property
    def sparse(self) -> int:
        """How many blocks have experts."""
        if not (self.family.sparse and self.num_experts):
            return 0
        blocks, dense = range(self.num_hidden_layers), self.mlp_only_layers or ()
        return sum((at + 1) % self.decoder_sparse_step == 0 and at not in dense for at in blocks)

    def experts(self, count: int) -> int:
        """Weights of so many experts in every block that has them, and of their routers."""
        inner = self.moe_intermediate_size or self.intermediate_size
        return self.sparse * self.hidden_size * (3 * inner * count + (self.num_experts or 0))

    @property
    def family(self) -> Blocks:
        return blocks_of(self.model_type)

    @property
    def head(self) -> int:
        """Width of an attention head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def queries(self) -> int:
        """Width of the queries."""
        return self.head * self.num_attention_heads

    @property
    def kv(self) -> int:
        """Width of keys and of values."""
        return self.head * (self.num_key_value_heads or self.num_attention_heads)

    @property
    def attention(self) -> list[tuple[int, int]]:
        """Its linear layers."""
        fused, hidden = "qkv" in self.family.fused, self.hidden_size
        qkv = [self.queries + 2 * self.kv] if fused else [self.queries, self.kv, self.kv]
        return [*((hidden, out) for out in qkv), (self.queries, hidden)]

    @property
    def feed_forward(self) -> list[tuple[int, int]]:
        """Its linear layers in a block without experts."""
        hidden, inner = self.hidden_size, self.intermediate_size
        up = [inner] * (1 + self.family.gated)
        return [*((hidden, out) for out in ([sum(up)] if "gate" in self.family.fused else up)), (inner, hidden)]

    @property
    def everywhere(self) -> list[tuple[int, int]]:
        """The linear layers of all blocks. Where blocks have experts, these are attention and the shared expert."""
        hidden, inner = self.hidden_size, self.shared_expert_intermediate_size
        shared = [(hidden, inner), (hidden, inner), (inner, hidden), (hidden, 1)] if inner else []
        dense = self.num_hidden_layers - self.sparse
        return self.num_hidden_layers * self.attention + dense * self.feed_forward + self.sparse * shared

    @property
    def linear(self) -> int:
        """Weights of the linear layers within blocks: what LoRA adapts and nf4 shrinks."""
        return sum(width * out for width, out in self.everywhere)

    @property
    def small(self) -> int:
        """Weights of a block's biases and norms."""
        family, hidden = self.family, self.hidden_size
        told = self.attention_bias is None
        qkv = self.queries + 2 * self.kv + (hidden if family.out_bias else 0)
        everywhere = family.layer_norm and family.biases  # the older families: all layers, or none
        inner = self.intermediate_size * (1 + family.gated) + hidden
        biases = qkv * bool(family.biases if told else self.attention_bias)
        biases += inner * bool(everywhere if self.mlp_bias is None else self.mlp_bias)
        heads = {None: 0, "head": 2 * self.head, "all": self.queries + self.kv}[family.head_norms]
        return biases + heads + family.norms * hidden * (1 + family.layer_norm)

    @property
    def multiplied(self) -> int:
        """Weights that a token is multiplied with, those of the head included."""
        return self.linear + self.experts(self.num_experts_per_tok) + self.vocab_size * self.hidden_size

    @property
    def parameters(self) -> int:
        """All weights."""
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        last = 0 if self.family.norms == 0 else self.hidden_size * (1 + self.family.layer_norm)
        blocks = self.linear + self.experts(self.num_experts or 0) + self.num_hidden_layers * self.small
        return blocks + embeddings + last + self.beside

    def lora(self, rank: int, layers: int | None) -> int:
        """Weights that LoRA of all linear layers adds, in the top `layers` blocks where that is given."""
        share = min(layers or self.num_hidden_layers, self.num_hidden_layers)
        return rank * sum(map(sum, self.everywhere)) * share // self.num_hidden_layers


@dataclass(frozen=True)
class Memory:
    """GiB on one device at the peak of a step. `gathered`: what DeepSpeed holds of others' shards, and its buckets.
    `engine`: of a vLLM that is started here to sample, weights and the keys and values of all episodes.
    """

    weights: float
    reference: float
    optimiser: float
    activations: float
    logits: float
    cache: float = 0.0
    gathered: float = 0.0
    engine: float = 0.0
    runtime: float = 1.0

    @property
    def total(self) -> float:
        """GiB of all parts, with a tenth more for what the allocator cannot use."""
        return SPARE * sum(astuple(self))


@dataclass(frozen=True)
class Data:
    """What is trained on: rows; tokens of a mean answer, of a mean prompt and answer, and of the longest together."""

    rows: int
    answer: float
    mean: float
    longest: int


PUBLISHED = Data(rows=13289, answer=40, mean=500, longest=2390)
"""RAG_ProGuide: 13,289 pairs, prompt and answer 2,390 tokens at most, half of them under 478."""


def memory(config: TrainConfig, shape: Shape, data: Data, devices: int) -> Memory:
    """The most that one of `devices` holds, with the longest rows: of grpo's playing and learning the greater."""
    width, full = 2 if config.bf16 else 4, config.finetuning == "full"
    frozen = shape.parameters * width
    if config.quantization:
        frozen = shape.linear * QUANTISED_BYTES[config.quantization] + (shape.parameters - shape.linear) * 2
    whole, trained = frozen, TRAINED_BYTES - 8 + OPTIMISERS[config.optim or "adamw_torch"]
    frozen /= devices if config.deepspeed == "zero3" else 1
    optimiser = trained_weights(config, shape) * trained / (devices if config.deepspeed else 1)
    if full and config.deepspeed == "zero2":
        optimiser = shape.parameters * (2 + (trained - 2) / devices)
    longest = min(data.longest, config.max_length)
    pairs = 1.0 if config.stage != "dpo" else 1 + data.answer / longest if config.shares else 2.0
    tokens = config.batch_size * longest * pairs  # those that a step's batch puts through the blocks
    learning = Memory(
        0.0 if full else frozen / GIB,
        _reference_bytes(config, shape, frozen, devices) / GIB,
        optimiser / GIB,
        tokens * _activation_bytes(config, shape, width) / GIB,
        _logit_bytes(config, shape, tokens) / GIB,
        gathered=_gathered_bytes(config, shape, width) / GIB,
    )
    if config.stage != "grpo":
        return learning
    # A block's activations over every prompt of a step, padded to the longest, their mask, the last tokens' logits with
    # two copies, and keys and values of all blocks.
    episodes = config.grpo.at_once / config.workers
    tokens = episodes * longest
    block = tokens * width * (2 * shape.hidden_size + 3 * shape.intermediate_size) + tokens * longest
    cache, logits = tokens * width * 2 * shape.kv * shape.num_hidden_layers, episodes * shape.vocab_size * 4 * 3
    if config.grpo.engine:
        engine = shape.parameters * width + cache if config.grpo.engine == "vllm" else 0.0  # else on its own device
        return replace(learning, engine=engine / GIB)
    playing = replace(learning, activations=block / GIB, logits=logits / GIB, cache=cache / GIB)
    if config.deepspeed == "zero3":  # every process plays with whole weights
        playing = replace(playing, gathered=(shape.parameters * width if full else whole) / GIB)
    return max(learning, playing, key=lambda each: each.total)


def trained_weights(config: TrainConfig, shape: Shape) -> int:
    """How many weights learn."""
    return shape.parameters if config.finetuning == "full" else shape.lora(config.lora.rank, config.lora.layers)


def _reference_bytes(config: TrainConfig, shape: Shape, frozen: float, devices: int) -> float:
    """TRL's reference of DPO is scored beforehand, that of GRPO with every weight trained is a second model, sharded by
    ZeRO-3; LLaMA-Factory keeps one, except for a fresh adapter, which it switches off.
    """
    if config.stage == "grpo":
        second = config.finetuning == "full" and config.grpo.holds_reference
        return shape.parameters * 4 / (devices if config.deepspeed == "zero3" else 1) if second else 0.0
    fresh = config.finetuning == "lora" and config.adapter is None
    return 0.0 if config.stage != "dpo" or config.trainer == "trl" or fresh else frozen


def _gathered_bytes(config: TrainConfig, shape: Shape, width: int) -> float:
    """ZeRO-3 gathers up to LIVE weights of a model, policy and reference alike; ZeRO-2 has two buckets of gradients.

    The numbers are those of configs/training/deepspeed.
    """
    if config.deepspeed == "zero2":
        return 2 * width * min(5e8, trained_weights(config, shape))
    compared = config.stage == "dpo" or (config.stage == "grpo" and config.grpo.holds_reference)
    models = 2 if compared and config.finetuning == "full" else 1
    return models * width * min(LIVE, shape.parameters) if config.deepspeed == "zero3" else 0.0


def _activation_bytes(config: TrainConfig, shape: Shape, width: int) -> int:
    """A token's inputs kept for backward: all blocks, or with checkpointing every block's input and one block whole."""
    hidden, blocks = shape.hidden_size, shape.num_hidden_layers
    inner = shape.intermediate_size
    if shape.sparse:
        expert = shape.moe_intermediate_size or inner
        inner = shape.num_experts_per_tok * expert + shape.shared_expert_intermediate_size
    block = width * (5 * hidden + shape.queries + 2 * shape.kv + 4 * inner) + 4 * hidden
    if config.finetuning == "lora":
        blocks = min(config.lora.layers or blocks, blocks)
    return blocks * width * hidden + block if config.gradient_checkpointing else blocks * block


def _logit_bytes(config: TrainConfig, shape: Shape, tokens: float) -> float:
    """TRL scores learnt tokens in tiles; LLaMA-Factory holds every logit in float32, its logarithm, and the gradients
    of both. A critic has one logit a token.
    """
    if config.stage == "critic":
        return tokens * 8
    return 256 * shape.vocab_size * 8 if config.trainer == "trl" else tokens * shape.vocab_size * 16


def checkpoint_bytes(config: TrainConfig, shape: Shape) -> float:
    """Disk that a run fills at most: two checkpoints (a third while it is written) and the result.

    A checkpoint has weights and the optimiser's state in float32, with DeepSpeed also the weights in bfloat16, which
    are then the result.
    """
    merged = shape.parameters * 4 if config.merge else 0
    saved = 4 + OPTIMISERS[config.optim or "adamw_torch"]
    each = 3 * (saved + 2) + 2 if config.deepspeed else 3 * saved + 4
    return trained_weights(config, shape) * each + merged
