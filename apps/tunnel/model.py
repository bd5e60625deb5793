"""The tunnel's model: its words, its starts, and a Llama of two layers as a function of its weights.

A start's folder is what `LlamaForCausalLM` of transformers reads, and its logits are the same. In plain PyTorch a batch
this small takes a third of the time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from apps.tunnel.world import KINDS, NOTHING, PERSONS, RELATION_OF, RELATIONS, plain
from steprag.agent.grammars import TRANSCRIPT
from steprag.types import Message

if TYPE_CHECKING:
    from torch import Tensor

PAD, BEGIN, END, ASKED = range(4)
HEADS = tuple(action.head for action in TRANSCRIPT.actions)
TAGS = tuple(action.closing for action in TRANSCRIPT.actions)
WORDS = ("<pad>", "<s>", "</s>", "?", "is", "yes", "no", NOTHING, *HEADS, *TAGS, *KINDS, *RELATIONS, *RELATION_OF,
         *PERSONS)  # fmt: skip
"""The vocabulary, by id: a token a word; the words that announce an action are one token with its tag."""
IDS = {word: place for place, word in enumerate(WORDS)}
CLOSING = frozenset(IDS[tag] for tag in TAGS)
SPLIT = re.compile("|".join(map(re.escape, HEADS)) + r"|\?|[^\s?]+")

LAYERS, WIDTH, INNER, TURNING = 2, 96, 192, 4
"""`TURNING`: heads of attention."""
LONGEST = 288
"""Tokens of an episode at most: nineteen steps of eight tokens, nine times twelve of passages, the question."""
START = Path(__file__).parent / "start"
Weights = dict[str, "Tensor"]
"""By the names of transformers."""


def encode(text: str) -> list[int]:
    """The ids of a text of known words. Raises KeyError for any other."""
    return [IDS[word] for word in SPLIT.findall(plain(text))]


def decode(ids: Sequence[int]) -> str:
    """The words of ids, a blank between them."""
    return " ".join(WORDS[each] for each in ids)


def prompt_ids(messages: tuple[Message, ...]) -> list[int]:
    """The tokens of a prompt: the question, and what the assistant has written and read so far."""
    question, *begun = messages
    return [BEGIN, *encode(question["content"]), *(encode(begun[0]["content"]) if begun else ())]


@cache
def start_of(level: str) -> Weights:
    """The start of a level: middle, weak, strong, or ended, which is middle and ends its steps with `</s>`; all but the
    first are kept as their difference, in 8 bits.
    """
    from safetensors.torch import load_file

    weights = {name: each.float() for name, each in load_file(START / "model.safetensors").items()}
    if level == "middle":
        return weights
    steps = load_file(START / f"{level}.safetensors")
    return {name: each + steps[name].float() * steps[f"{name}.step"] for name, each in weights.items()}


@cache
def _turns() -> Tensor:
    """Cosines and sines of every place: (2, places, width of a head)."""
    import torch

    width = WIDTH // TURNING
    angles = torch.arange(LONGEST)[:, None] * 10_000.0 ** (-torch.arange(0, width, 2) / width)[None]
    return torch.stack([angles.cos(), angles.sin()]).repeat(1, 1, 2)


def forward(
    weights: Weights, ids: Tensor, places: Tensor, seen: Tensor | None = None, kept: Tensor | None = None
) -> Tensor:
    """The last hidden states (rows, tokens, width) of `ids` (rows, tokens) that stand at `places`.

    `seen` (rows, 1, tokens, keys): which keys a token sees; without it, those before it. `kept`: keys and values of
    tokens fed before, (layers, 2, rows, heads, places, width of a head), into which those of `ids` are written.
    """
    import torch
    from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

    cos, sin = _turns()[:, places][:, :, None]
    rows = torch.arange(len(ids))[:, None]

    def turned(x: Tensor) -> Tensor:
        one, other = x.chunk(2, -1)
        return x * cos + torch.cat([-other, one], -1) * sin

    x = weights["model.embed_tokens.weight"][ids]
    for layer in range(LAYERS):
        own = {name[15:-7]: each for name, each in weights.items() if name.startswith(f"model.layers.{layer}.")}
        normal = rms_norm(x, (WIDTH,), own["input_layernorm"], 1e-5)
        q, k, v = (
            linear(normal, own[f"self_attn.{name}_proj"]).unflatten(-1, (TURNING, -1)).transpose(1, 2) for name in "qkv"
        )
        q, k = turned(q), turned(k)
        if kept is not None:
            kept[layer, 0][rows, :, places], kept[layer, 1][rows, :, places] = k.transpose(1, 2), v.transpose(1, 2)
            k, v = kept[layer]
        read = scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=seen is None)
        x = x + linear(read.transpose(1, 2).flatten(2), own["self_attn.o_proj"])
        normal = rms_norm(x, (WIDTH,), own["post_attention_layernorm"], 1e-5)
        gate, up = linear(normal, own["mlp.gate_proj"]), linear(normal, own["mlp.up_proj"])
        x = x + linear(silu(gate) * up, own["mlp.down_proj"])
    return rms_norm(x, (WIDTH,), weights["model.norm.weight"], 1e-5)


def logits(weights: Weights, hidden: Tensor) -> Tensor:
    """Of every word, from hidden states."""
    return hidden @ weights["model.embed_tokens.weight"].T
