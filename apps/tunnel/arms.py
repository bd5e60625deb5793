"""What is compared: the cells, and the arms in them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from apps.tunnel.world import HOPS

RATES = (5e-5, 1.5e-4, 4.5e-4)
"""Learning rates from which each arm has its own, by validation on other seeds."""


@dataclass(frozen=True)
class LabelArm:
    """How a policy is trained. `label`: a name of `LABELS`, or an own one. `how`: the search that grows its trees.

    `keep`: which pairs stay: all, those of "mixed" trees (right and wrong answers), or as "many" as outcomes make.
    `turned`: the share of labels turned round. `method`: dpo, sft (on right episodes), both (sft, then dpo),
    whole (DPO on episodes), grpo (the product's; `keys` names its `GRPO_KEYS`), none. `rounds`: trees are grown, and
    pairs made, so often, each time by the policy so far; calls and steps are shared out. `margin`, `errors`: the least
    gap of a pair.
    """

    name: str
    label: str = ""
    how: str = "flat"
    one_action: bool = True
    keep: str = "all"
    turned: float = 0.0
    method: str = "dpo"
    rounds: int = 1
    margin: float = 0.1
    errors: float = 1.0
    rate: float = 1.5e-4
    keys: str = field(default="", repr=False)  # the name tells, and earlier results stay those of their arms


OUTCOMES = LabelArm("outcomes", "outcomes", one_action=False)
"""What every arm is compared with: where a right episode parts from a wrong one."""
POOLED = "outcomes, pooled over questions"
GRPO_KEYS: dict[str, dict[str, Any]] = {
    "outcomes": {},
    "marked facts a turn": {"turns": "gold"},
    "chained match a turn": {"turns": "chained"},
    "states": {"credit": "state"},
    "branches": {"episodes": 5, "branch": 4},
}
"""Of section `grpo` of a recipe, by `LabelArm.keys`. Branches take more calls where episodes are short."""
GOAL_ARMS = (
    LabelArm("start", method="none"),
    OUTCOMES,
    LabelArm("marked facts", "marked facts"),
    LabelArm("rollouts", "rollouts", one_action=False),
    LabelArm("marked facts, 20 % turned", "marked facts", turned=0.2),
    LabelArm(POOLED, "pooled", margin=0.03),
    LabelArm("chained match", "chained match"),
)
"""What the goals need, in every cell."""
ARMS = (
    *GOAL_ARMS,
    LabelArm("oracle", "oracle"),
    LabelArm("judge: a stronger policy", "judge"),
    LabelArm("gain", "gain"),
    LabelArm("gain, guarded", "gain, guarded"),
    LabelArm("string match", "string match"),
    LabelArm("SFT on right episodes", method="sft"),
    LabelArm("SFT, then outcomes", "outcomes", one_action=False, method="both"),
    LabelArm("SFT, then marked facts", "marked facts", method="both"),
    LabelArm("outcomes, whole episodes", method="whole"),
    LabelArm("marked facts, as many pairs", "marked facts", keep="many"),
    LabelArm("marked facts, mixed trees", "marked facts", keep="mixed"),
    LabelArm("marked facts, 10 % turned", "marked facts", turned=0.1),
    LabelArm("marked facts, 35 % turned", "marked facts", turned=0.35),
    LabelArm("outcomes, one action", "outcomes"),
    LabelArm("rollouts, one action", "rollouts"),
    LabelArm("marked facts, any action", "marked facts, one scale", one_action=False),
    LabelArm("rollouts, discounted", "rollouts, discounted", one_action=False),
    *(LabelArm(f"GRPO, {keys}", method="grpo", keys=keys) for keys in ("start", *GRPO_KEYS)),  # fmt: skip
    LabelArm("outcomes, two rounds", "outcomes", one_action=False, rounds=2),
    LabelArm("marked facts, two rounds", "marked facts", rounds=2),
    *(
        LabelArm(f"{name}, {how}", name, how, one_action=name == "marked facts")
        for how in ("UCT", "branching")
        for name in ("outcomes", "rollouts", "rollouts, discounted", "marked facts")
    ),
)


@dataclass(frozen=True)
class Cell:
    """What all arms share: the start, the questions, the calls a question, the steps of training, the test."""

    name: str
    level: str = "middle"
    hops: tuple[int, ...] = HOPS
    guessable: float = 0.0
    questions: int = 120
    calls: int = 64
    steps: int = 80
    tests: int = 600
    test_world: int = 77


MAIN = Cell("1 to 6 hops")
CELLS = (
    MAIN,
    Cell("4 to 6 hops", hops=(4, 5, 6)),
    Cell("1 or 2 hops", hops=(1, 2)),
    Cell("weak start", level="weak"),
    Cell("strong start", level="strong"),
    Cell("half guessable", guessable=0.5),
)
RATES_CELL = Cell("rates", tests=240, test_world=78)
"""Where learning rates are chosen: the main cell, with seeds and questions of its own."""
RATES_SEEDS = (100, 101)


@dataclass(frozen=True)
class VillageCell(Cell):
    """A cell of the village. `level`: how often the start asks a right later query; `told`: as `Village.told`;
    `worked`: trees hold a worked way and restart from its states.
    """

    told: str = "text"
    worked: bool = False


VILLAGE = VillageCell("village: list, high support", level="high", hops=(2, 3, 3), steps=30, tests=400, told="list")
LIST_CELLS = (VILLAGE, replace(VILLAGE, name="village: list, low support", level="low"))
TEXT_CELLS = tuple(replace(cell, name=cell.name.replace("list", "text"), told="text") for cell in LIST_CELLS)
CURE = replace(TEXT_CELLS[1], name="village: text, low support, worked", worked=True)
MARKED = LabelArm("marked facts", "marked facts", "UCT")
SHORT_ARMS = (
    LabelArm("start", method="none"),
    LabelArm("outcomes", "outcomes", "UCT", one_action=False),
    LabelArm("chained match", "chained match", "UCT"),
    LabelArm("marked facts, as many pairs", "marked facts", "UCT", keep="many"),
)
"""What every cell of the village runs."""


@dataclass(frozen=True)
class TunnelWorld:
    """What `--world` names. Cells beside the `whole` ones run the `needed` arms alone where `--arms` says all. `how`:
    the search that grows trees for a reward of one's own; `quick`: sizes of `--quick`; `rates`: as `RATES`.
    """

    cells: tuple[Cell, ...]
    whole: tuple[Cell, ...]
    arms: tuple[LabelArm, ...]
    needed: tuple[LabelArm, ...]
    rates_cell: Cell
    how: str
    quick: dict[str, int]
    rates: tuple[float, ...] = RATES


WORLDS = {
    "facts": TunnelWorld(CELLS, (MAIN,), ARMS, GOAL_ARMS, RATES_CELL, "flat",
                         {"questions": 12, "calls": 24, "steps": 4, "tests": 60}),
    "village": TunnelWorld(
        (*LIST_CELLS, *TEXT_CELLS, CURE), LIST_CELLS,
        (*SHORT_ARMS, MARKED, LabelArm("rollouts", "rollouts", "UCT", one_action=False)),
        SHORT_ARMS, replace(VILLAGE, name="village: rates", tests=120, test_world=78), "UCT",
        {"questions": 3, "calls": 12, "steps": 1, "tests": 6}, (1.5e-4, 4.5e-4, 1.35e-3),
    ),
}  # fmt: skip
