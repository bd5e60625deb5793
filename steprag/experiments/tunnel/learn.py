"""What an arm trains on, as rows of tokens, and its training."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from steprag.experiments.tunnel.arms import LabelArm, ends
from steprag.experiments.tunnel.policy import prompt_ids
from steprag.experiments.tunnel.train import LearntRow, Schedule, dpo, sft
from steprag.experiments.tunnel.words import encode
from steprag.records.training_rows import Pair
from steprag.tree import Node, Tree, path_to
from steprag.types import Message

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM


def step_row(prompt: tuple[Message, ...], text: str) -> LearntRow:
    """A prompt and the step that is learnt behind it."""
    before, step = prompt_ids(prompt), encode(text)
    return LearntRow(before + step, ((len(before), len(before) + len(step)),))


def pair_rows(pairs: Sequence[Pair]) -> list[tuple[LearntRow, LearntRow]]:
    """Pairs as rows."""
    sides = ("chosen", "rejected")
    return [tuple(step_row(pair.prompt, getattr(pair, side)[0]["content"]) for side in sides) for pair in pairs]  # pyright: ignore[reportReturnType]


def episode_row(tree: Tree, leaf: Node) -> LearntRow:
    """A whole episode; its steps are learnt."""
    path = path_to(tree, leaf)
    *_, last = path[:-1]
    ids, spans = prompt_ids(last.messages or ()), []
    for above, node in zip(path, path[1:], strict=False):
        start = len(prompt_ids(above.messages or ()))
        spans.append((start, start + len(encode(node.text))))
    return LearntRow([*ids, *encode(leaf.text)], tuple(spans))


def whole_pairs(grown: Sequence[Tree], rng: np.random.Generator, each: int = 4) -> list[tuple[LearntRow, LearntRow]]:
    """Right episodes against wrong ones of the same question."""
    rows = []
    for tree in grown:
        good, bad = ends(tree, True), ends(tree, False)
        if good and bad:
            drawn = [(good[rng.integers(len(good))], bad[rng.integers(len(bad))]) for _ in range(each)]
            rows += [(episode_row(tree, one), episode_row(tree, other)) for one, other in drawn]
    return rows


def trained(
    arm: LabelArm,
    start: LlamaForCausalLM,
    pairs: Sequence[Pair],
    grown: Sequence[Tree],
    schedule: Schedule,
    rng: np.random.Generator,
) -> LlamaForCausalLM:
    """The policy that the arm makes of the start, by `schedule` and the arm's own rate."""
    model, schedule = copy.deepcopy(start), replace(schedule, rate=arm.rate)
    rows = pair_rows(pairs) if arm.method != "whole" else whole_pairs(grown, rng)
    right = [episode_row(tree, leaf) for tree in grown for leaf in ends(tree, True)]
    if arm.method in ("sft", "both") and right:
        sft(model, right, replace(schedule, batch=2 * schedule.batch), rng)
    if arm.method in ("dpo", "both", "whole") and rows:
        dpo(model, rows, schedule, rng)
    return model
