"""The tunnel's models: their words, their starts, and a small Llama as a function of its weights.

A start's folder is what `LlamaForCausalLM` of transformers reads, and its logits are the same. In plain PyTorch a batch
this small takes a third of the time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from apps.tunnel.world import DROPPED, KINDS, NOTHING, PERSONS, RELATION_OF, RELATIONS
from steprag.agent.grammars import TRANSCRIPT
from steprag.types import Message

if TYPE_CHECKING:
    from torch import Tensor

PAD, BEGIN, END, ASKED = range(4)
HEADS = tuple(action.head for action in TRANSCRIPT.actions)
TAGS = tuple(action.closing for action in TRANSCRIPT.actions)
SPECIAL = ("<pad>", "<s>", "</s>", "?")


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Words by id; those that announce an action are one token with its tag.

    `split` finds them in a text that `dropped` words have left; `glued` ones have no blank before them. `most`: tokens
    a completion; `longest`: an episode; `batch`: rows that are sampled at once.
    """

    words: tuple[str, ...]
    split: re.Pattern[str]
    dropped: tuple[str, ...] = ()
    glued: frozenset[str] = frozenset()
    most: int = 8
    longest: int = 288
    batch: int = 512

    @cached_property
    def ids(self) -> dict[str, int]:
        """The place of every word."""
        return {word: place for place, word in enumerate(self.words)}

    @cached_property
    def closing(self) -> frozenset[int]:
        """The ids of the closing tags."""
        return frozenset(self.ids[tag] for tag in TAGS)

    def encode(self, text: str) -> list[int]:
        """The ids of what `split` finds in a text; the rest has none. Raises KeyError for a word that has no id."""
        for word in self.dropped:
            text = text.replace(word, "")
        return [self.ids[word] for word in self.split.findall(text)]

    def decode(self, ids: Sequence[int]) -> str:
        """The words of ids, a blank between them but before glued ones."""
        words = (self.words[each] for each in ids)
        return "".join(word if word in self.glued else f" {word}" for word in words).removeprefix(" ")

    def prompt(self, messages: tuple[Message, ...]) -> list[int]:
        """The tokens of a prompt: the question, and what the assistant has written and read so far."""
        question, *begun = messages
        return [BEGIN, *self.encode(question["content"]), *(self.encode(begun[0]["content"]) if begun else ())]


FACTS = Vocabulary(
    (*SPECIAL, "is", "yes", "no", NOTHING, *HEADS, *TAGS, *KINDS, *RELATIONS, *RELATION_OF, *PERSONS),
    re.compile("|".join(map(re.escape, HEADS)) + r"|\?|[^\s?]+"), DROPPED,
)  # fmt: skip
"""Those of the world of facts, a token a word. An episode has at most nineteen steps of eight tokens, nine times twelve
of passages, and the question; the longest step has six.
"""
LAYERS, WIDTH, INNER, TURNING = 2, 96, 192, 4
"""Of the world of facts. `TURNING`: heads of attention, of every start."""
PLACES = 1024
"""Of the longest text that a start may see."""
START = Path(__file__).parent / "start"
Weights = dict[str, "Tensor"]
"""By the names of transformers."""


@cache
def start_of(level: str, folder: Path = START) -> Weights:
    """The start of a level: middle, weak, strong, or ended, which is middle and ends its steps with `</s>`; all but the
    first are kept as their difference, in 8 bits. Of the village: reader, high or low.
    """
    from safetensors.torch import load_file

    weights = {name: each.float() for name, each in load_file(folder / "model.safetensors").items()}
    if level in ("middle", "reader"):
        return weights
    steps = load_file(folder / f"{level}.safetensors")
    return {name: each + steps[name].float() * steps[f"{name}.step"] for name, each in weights.items()}


def sizes(weights: Weights) -> tuple[int, int]:
    """Layers and width."""
    return sum(name.endswith("q_proj.weight") for name in weights), weights["model.embed_tokens.weight"].shape[1]


@cache
def _turns(width: int) -> Tensor:
    """Cosines and sines of every place for heads of that width: (2, places, width)."""
    import torch

    angles = torch.arange(PLACES)[:, None] * 10_000.0 ** (-torch.arange(0, width, 2) / width)[None]
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

    layers, width = sizes(weights)
    cos, sin = _turns(width // TURNING)[:, places][:, :, None]
    rows = torch.arange(len(ids))[:, None]

    def turned(x: Tensor) -> Tensor:
        one, other = x.chunk(2, -1)
        return x * cos + torch.cat([-other, one], -1) * sin

    x = weights["model.embed_tokens.weight"][ids]
    for layer in range(layers):
        own = {name[15:-7]: each for name, each in weights.items() if name.startswith(f"model.layers.{layer}.")}
        normal = rms_norm(x, (width,), own["input_layernorm"], 1e-5)
        q, k, v = (
            linear(normal, own[f"self_attn.{name}_proj"]).unflatten(-1, (TURNING, -1)).transpose(1, 2) for name in "qkv"
        )
        q, k = turned(q), turned(k)
        if kept is not None:
            kept[layer, 0][rows, :, places], kept[layer, 1][rows, :, places] = k.transpose(1, 2), v.transpose(1, 2)
            k, v = kept[layer]
        read = scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=seen is None)
        x = x + linear(read.transpose(1, 2).flatten(2), own["self_attn.o_proj"])
        normal = rms_norm(x, (width,), own["post_attention_layernorm"], 1e-5)
        gate, up = linear(normal, own["mlp.gate_proj"]), linear(normal, own["mlp.up_proj"])
        x = x + linear(silu(gate) * up, own["mlp.down_proj"])
    return rms_norm(x, (width,), weights["model.norm.weight"], 1e-5)


def logits(weights: Weights, hidden: Tensor) -> Tensor:
    """Of every word, from hidden states."""
    return hidden @ weights["model.embed_tokens.weight"].T


TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'user' %}<s> {{ m['content'] }}{% else %} {{ m['content'] }} </s>"
    "{% endif %}{% endfor %}"
)
"""Of chats, for starts that end their steps with `</s>`."""


def write_folder(weights: Weights, folder: Path, words: Vocabulary = FACTS) -> None:
    """Weights, tokenizer and chat template, as transformers reads them."""
    from safetensors.torch import save_file
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
    from transformers import LlamaConfig, PreTrainedTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    config = LlamaConfig.from_pretrained(START)
    config.num_hidden_layers, config.hidden_size = sizes(weights)
    config.intermediate_size = weights["model.layers.0.mlp.up_proj.weight"].shape[0]
    config.head_dim, config.vocab_size = config.hidden_size // TURNING, len(words.words)
    config.max_position_embeddings = PLACES
    config.save_pretrained(folder)
    save_file({name: one.contiguous() for name, one in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    tokenizer = Tokenizer(models.WordLevel(words.ids, unk_token=words.words[0]))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Replace(word, "") for word in words.dropped])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(words.split.pattern), "removed", invert=True)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, chat_template=TEMPLATE, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    ).save_pretrained(folder)
