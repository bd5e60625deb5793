"""Encodes what several sequences begin with once.

Step-level pairs have long prompts and short answers, and a trainer that puts each answer behind its own copy of the
prompt computes the prompt twice, or more where siblings share it. Here the sequences of a batch become a tree of
tokens: what two of them begin with is one branch. The tree lies in a row of its own, each token with the position it
has in its sequence and a mask that lets it see the tokens on the way to the root alone. Each sequence's hidden states
are then read off the tree, so that whatever comes after the backbone (log-probabilities, any loss) is unchanged, and
so are loss and gradients, up to rounding.
"""

from __future__ import annotations

import inspect
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from os.path import commonprefix
from typing import Any

import torch

from steprag.errors import ConfigError
from training.config import TrainConfig


@dataclass
class PackedRow:
    """One tree. `paths` maps a sequence's number to the places of its tokens in `tokens`, first to last."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    paths: dict[int, list[int]] = field(default_factory=dict)


def pack(sequences: Sequence[list[int]], budget: int) -> list[PackedRow]:
    """The sequences as trees of at most `budget` tokens, as far as that splits no tree.

    In sorted order a sequence shares most with the one before it. It joins that one's row where it shares half of
    itself or more, or where it fits.
    """
    rows: list[PackedRow] = []
    path: list[int] = []
    before: list[int] = []
    for number in sorted(range(len(sequences)), key=sequences.__getitem__):
        sequence = sequences[number]
        shared = len(commonprefix([before, sequence]))
        added = len(sequence) - shared
        if not rows or (2 * shared < len(sequence) and len(rows[-1].tokens) + added > budget):
            rows.append(PackedRow())
            shared, path = 0, []
        row = rows[-1]
        path = path[:shared] + list(range(len(row.tokens), len(row.tokens) + len(sequence) - shared))
        row.tokens.extend(sequence[shared:])
        row.positions.extend(range(shared, len(sequence)))
        row.paths[number] = path
        before = sequence
    return rows


def tree_mask(rows: Sequence[PackedRow], width: int) -> torch.Tensor:
    """(rows, 1, width, width), true where a token may look: itself and its ancestors. Padding sees itself."""
    mask = torch.eye(width, dtype=torch.bool).repeat(len(rows), 1, 1)
    for number, row in enumerate(rows):
        begun = 0
        for path in row.paths.values():  # as they were packed: what is new of each lies behind all before
            shared = bisect_left(path, begun)
            sees = torch.ones(len(path) - shared, len(path), dtype=torch.bool).tril(shared)
            mask[number, begun : begun + len(sees), torch.tensor(path)] = sees
            begun += len(sees)
    return mask[:, None]


class SharedPrefix:
    """A backbone's `forward` that runs the trees of a padded batch and returns the batch's hidden states.

    `computed` and `given` count tokens, with padding, as the backbone ran them and as it was asked for them.
    `window`: how far back tokens see, None for all the way.
    """

    def __init__(self, forward: Any, budget: int, window: int | None = None) -> None:
        self._forward, self._budget, self._window = forward, budget, window
        self.computed = self.given = 0

    def __call__(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **options: Any) -> Any:
        there = attention_mask.bool().cpu()
        sequences = [ids[real].tolist() for ids, real in zip(input_ids.cpu(), there, strict=True)]
        if self._window and max(map(len, sequences)) > self._window:
            raise ConfigError(
                f"share_prefix: this model's tokens see {self._window} tokens back, and a sequence has more; lower "
                "max_length, or set --share_prefix false"
            )
        rows = pack(sequences, self._budget)
        width = max(len(row.tokens) for row in rows)
        device = input_ids.device
        outputs = self._forward(
            input_ids=_padded([row.tokens for row in rows], width).to(device),
            position_ids=_padded([row.positions for row in rows], width).to(device),
            attention_mask=tree_mask(rows, width).to(device),
            **options,
        )
        self.computed += len(rows) * width
        self.given += input_ids.numel()
        place = torch.zeros(input_ids.shape, dtype=torch.long)
        for number, row in enumerate(rows):
            for sequence, path in row.paths.items():
                place[sequence, there[sequence]] = torch.tensor(path) + number * width
        outputs.last_hidden_state = outputs.last_hidden_state.flatten(0, 1)[place.to(device)]
        return outputs


def _padded(rows: list[list[int]], width: int) -> torch.Tensor:
    return torch.tensor([row + [0] * (width - len(row)) for row in rows])


def sharing_if_asked(model: Any, config: TrainConfig) -> AbstractContextManager[SharedPrefix | None]:
    """`sharing`, where the recipe asks for it."""
    return sharing(model, config.row_tokens) if config.shares else nullcontext()


def shareable(config: Any) -> bool:
    """Whether a model of this configuration can share prefixes, as far as its layers say."""
    text = config.get_text_config()
    full = set(getattr(text, "layer_types", None) or ["full_attention"]) == {"full_attention"}
    return full and config._attn_implementation == "sdpa" and not hasattr(text, "output_router_logits")


@contextmanager
def sharing(model: Any, budget: int) -> Iterator[SharedPrefix]:
    """While the block runs, `model`'s backbone (of a causal language model, bare or under PEFT) shares prefixes.

    Raises ConfigError for models whose tokens see anything but all tokens before them, and for mixtures of experts;
    where every layer has the same window (Mistral, Phi-3), at the first sequence that is longer.
    """
    causal = model.get_base_model() if hasattr(model, "peft_config") else model
    text = causal.config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    attention = causal.config._attn_implementation
    if not shareable(causal.config):
        what = f"{type(causal).__name__} ({', '.join(sorted(kinds))}, {attention})"
        raise ConfigError(f"share_prefix is not for {what}; set --share_prefix false")
    backbone = causal.base_model
    original = backbone.forward
    if "position_ids" not in inspect.signature(type(backbone).forward).parameters:
        raise ConfigError(f"share_prefix is not for {type(causal).__name__}, which counts places itself; set "
                          "--share_prefix false")  # fmt: skip
    window = None if getattr(text, "layer_types", None) else getattr(text, "sliding_window", None)
    backbone.forward = shared = SharedPrefix(original, budget, window)
    try:
        yield shared
    finally:
        backbone.forward = original
