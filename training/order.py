"""Which rows are held out, and the order in which the others are trained."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from steprag.records.jsonl import dump_line, line_hash
from training.config import TrainConfig
from training.rows import TokenRow

Drawn = TypeVar("Drawn")
BLOCK_BATCHES = 16
"""Rows are sorted by length within blocks of this many batches: little padding, and still a random order."""


def hold_out(rows: Sequence[Drawn], count: int, state: Callable[[Drawn], object]) -> list[Drawn]:
    """At most `count` of the rows, by the hashes of what they say: the same ones in whatever order they come.

    Rows of one `state` stay together, so that a critic's siblings can be compared.
    """

    def place(row: Drawn) -> tuple[str, str]:
        return line_hash(dump_line({"state": state(row)})), line_hash(dump_line(row))

    return sorted(rows, key=place)[:count]


def by_prompt(rows: Sequence[TokenRow]) -> list[TokenRow]:
    """Pairs in the order from which every trainer draws its batches, whatever the file's: short prompts first."""
    return sorted(rows, key=lambda row: (len(row.prompt), row.prompt, row.length))


def order_for(config: TrainConfig, rows: list[TokenRow]) -> list[int]:
    """Row numbers for the whole run, by the places where the rows lie. With `max_steps` as many epochs as these need.

    Rows of one prompt, or question, stay together where prompts are encoded once.
    """
    epochs = config.max_steps * config.step_rows / len(rows) if config.max_steps else config.epochs
    groups: list[int] = []
    if config.shares:
        numbers: dict[object, int] = {}
        by_question = config.side_by_side == "question"
        names = [by_question and row.question or tuple(row.prompt) for row in rows]
        groups = [numbers.setdefault(name, len(numbers)) for name in names]
    return row_order([row.length for row in rows], config.batch_size, epochs, config.seed, groups)


def row_order(lengths: Sequence[int], batch: int, epochs: float, seed: int, groups: Sequence[int] = ()) -> list[int]:
    """Row numbers in the order they are trained, all epochs in one list; every run of `batch` has like lengths.

    Rows of one group (a number a row; by default each is its own) stand side by side.
    """
    groups = groups or range(len(lengths))
    members: dict[int, list[int]] = {}
    for row, group in enumerate(groups):
        members.setdefault(group, []).append(row)
    longest = {group: max(lengths[row] for row in rows) for group, rows in members.items()}
    shuffle = random.Random(seed)
    order: list[int] = []
    while len(order) < round(epochs * len(lengths)):
        epoch = list(members)
        shuffle.shuffle(epoch)
        order += [row for group in epoch for row in members[group]]
    order = order[: max(1, round(epochs * len(lengths)))]
    block = batch * BLOCK_BATCHES
    keys = [(longest[group], group, row) for row, group in enumerate(groups)]
    return [
        row
        for start in range(0, len(order), block)
        for row in _block(sorted(order[start : start + block], key=keys.__getitem__), batch, shuffle)
    ]


def _block(rows: list[int], batch: int, shuffle: random.Random) -> list[int]:
    """One block, sorted: cut into batches, batches shuffled; an incomplete batch comes last."""
    full = len(rows) // batch * batch
    batches = [rows[start : start + batch] for start in range(0, full, batch)]
    shuffle.shuffle(batches)
    return [row for group in batches for row in group] + rows[full:]
