"""How large a model is, from its configuration: enough to estimate memory and work before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from steprag.engines.models import ModelFiles
from steprag.errors import ConfigError
from steprag.files import read_json

MOST = 2**32
"""No size of a model reaches it."""


@dataclass(frozen=True)
class Shape:
    """A llama-like decoder. `kv` is the width of keys and of values; `tied` has input and output embeddings be one."""

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


# Models of the hub, by their published config.json, so that a plan needs no download.
KNOWN = {
    "Qwen/Qwen2.5-0.5B-Instruct": Shape(896, 4864, 24, 128, 151936, True, True),
    "Qwen/Qwen2.5-1.5B-Instruct": Shape(1536, 8960, 28, 256, 151936, True, True),
    "Qwen/Qwen2.5-3B-Instruct": Shape(2048, 11008, 36, 256, 151936, True, True),
    "Qwen/Qwen2.5-7B-Instruct": Shape(3584, 18944, 28, 512, 152064, False, True),
    "Qwen/Qwen2.5-14B-Instruct": Shape(5120, 13824, 48, 1024, 152064, False, True),
    "HuggingFaceTB/SmolLM2-135M-Instruct": Shape(576, 1536, 30, 192, 49152, True),
}
EMBEDDED = KNOWN["HuggingFaceTB/SmolLM2-135M-Instruct"]


def shape_of(files: ModelFiles) -> Shape | None:
    """The model's shape, or None where it is neither known nor here nor like a llama."""
    if files.embedded:
        return EMBEDDED
    if files.hf:
        return _from_config(read_json(files.hf / "config.json"))
    return KNOWN.get(files.hub or "")


def _from_config(config: dict[str, Any]) -> Shape | None:
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
