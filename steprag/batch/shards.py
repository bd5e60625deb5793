"""`--shard I/N`: a part of a run's questions as a run of its own, for arrays of jobs (`steprag trees merge`).

Limits mean the whole run. Each part gets its share of them, for there is no channel between the parts.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from steprag.config.sections import PolicyConfig, Section
from steprag.errors import ConfigError
from steprag.policy.budget import BudgetConfig
from steprag.types import Question

Config = TypeVar("Config", bound=Section)


@dataclass(frozen=True)
class Share:
    """Part `place`, from 0, of `of` parts."""

    place: int
    of: int

    def __str__(self) -> str:
        return f"{self.place}/{self.of}"

    @property
    def identity(self) -> dict[str, str]:
        """The part of a run's identity that names the shard."""
        return {"shard": str(self)}

    def questions(self, questions: Sequence[Question]) -> list[Question]:
        """Every `of`-th question. Raises ConfigError where a part would have none."""
        if self.of > len(questions):
            raise ConfigError(f"--shard {self}: there are {len(questions)} questions; make at most as many shards")
        return list(questions[self.place :: self.of])

    def amount(self, whole: int, key: str) -> int:
        """Its share of a number of things; all shares add up to the whole. Raises ConfigError where one would be 0."""
        if whole < self.of:
            raise ConfigError(f"{key} {whole} is for all {self.of} parts of the run; give at least {self.of}")
        return whole // self.of + (self.place < whole % self.of)


def add_shard_option(parser: argparse.ArgumentParser) -> None:
    """`--shard I/N`."""
    text = "work off every N-th question only, from the I-th (0 to N-1); steprag trees merge makes one run of N folders"
    parser.add_argument("--shard", metavar="I/N", help=text)


def shard_of(text: str | None) -> Share | None:
    """The part that `--shard` names; None where it was not given. Raises ConfigError."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if not match or int(match[1]) >= int(match[2]):
        raise ConfigError(f"--shard {text}: expected I/N with I from 0 to N-1, such as 0/8")
    return Share(int(match[1]), int(match[2]))


def share_of(config: Config, share: Share | None) -> Config:
    """The configuration of one part: its share of budget, trees at once, and what endpoints are asked.

    A model that each part starts for itself keeps its concurrency.
    """
    if share is None:
        return config
    parts: dict[str, Any] = {}
    for key, value in config:
        if isinstance(value, BudgetConfig):
            parts[key] = _budget(value, share)
        elif isinstance(value, PolicyConfig) and value.remote:
            parts[key] = _endpoint(value, share, key)
    if at_once := getattr(config, "trees_at_once", None):
        parts["trees_at_once"] = share.amount(at_once, "trees_at_once")
    return config.model_copy(update=parts)


def _budget(budget: BudgetConfig, share: Share) -> BudgetConfig:
    usd = None if budget.usd is None else budget.usd / share.of
    counted = _amounts(budget, ("calls", "tokens"), share, "budget")
    return budget.model_copy(update={"usd": usd, **counted})


def _endpoint(policy: PolicyConfig, share: Share, section: str) -> PolicyConfig:
    rate = policy.rate.model_copy(update=_amounts(policy.rate, ("requests", "tokens"), share, f"{section}.rate"))
    return policy.model_copy(update={**_amounts(policy, ("concurrency",), share, section), "rate": rate})


def _amounts(section: Section, keys: Sequence[str], share: Share, name: str) -> dict[str, int]:
    given = {key: getattr(section, key) for key in keys}
    return {key: share.amount(value, f"{name}.{key}") for key, value in given.items() if value is not None}
