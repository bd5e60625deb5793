"""What counts as a collapse."""

from __future__ import annotations

import random

import pytest

from training.collapse import fallen, sound

Row = dict[str, float]


def steps(count: int, logp: float, answered: float, reward: float, noise: float = 0.0) -> list[Row]:
    drawn = random.Random(count)
    return [{"episodes/right_logp": logp, "episodes/answered": answered, "reward": reward + drawn.gauss(0, noise)}
            for _ in range(count)]  # fmt: skip


GOOD = steps(20, -0.5, 0.9, 0.5, 0.05)


@pytest.mark.parametrize(
    ("after", "collapsed"),
    [
        (steps(5, -3.0, 0.1, 0.0), True),
        (steps(4, -3.0, 0.1, 0.0), False),
        ([*steps(4, -3.0, 0.1, 0.0), *steps(1, -0.5, 0.9, 0.5), *steps(4, -3.0, 0.1, 0.0)], False),
        (steps(9, -0.6, 0.1, 0.0), False),
        (steps(9, -3.0, 0.9, 0.5), False),
        (steps(200, -0.9, 0.7, 0.5, 0.4), False),
    ],
    ids=["fell", "not yet", "a step between", "questions are hard", "other ways are right too", "noise"],
)
def test_a_run_has_collapsed_where_right_episodes_are_unlikely_and_something_else_fell(
    after: list[Row], collapsed: bool
) -> None:
    assert bool(fallen([*GOOD, *after], "grpo")) == collapsed
    assert sound(GOOD, "grpo")
    assert sound([*GOOD, *steps(1, -3.0, 0.1, 0.0)], "grpo") is False, "its weights are not the last good ones"


def test_a_supervised_loss_that_climbs_is_a_collapse_and_one_that_wavers_is_none() -> None:
    assert fallen([{"loss": value} for value in (2.0, 1.0, 0.5, *[4.0] * 5)], "sft")
    assert not fallen([{"loss": value} for value in (2.0, 1.0, 0.5, *[1.2, 0.4] * 9)], "sft")
    assert not fallen([{"loss": 9.0}] * 20, "critic")
