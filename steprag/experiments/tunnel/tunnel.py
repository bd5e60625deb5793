"""`steprag tunnel`: which step labels are worth their calls, over seeds, in minutes.

Arms train one small policy on labels of the same trees, at equal calls and equal gradient steps, and are tested on the
same questions. A reward of your own is one arm more: `--reward my_module:my_reward`.
"""

from __future__ import annotations

import argparse
import importlib
import shlex
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

from preference.rewards import Rewards
from steprag.agent.grammar import Grammar
from steprag.agent.grammars import TRANSCRIPT
from steprag.config.load import parse_arguments
from steprag.console.progress import say
from steprag.console.terminal import guarded
from steprag.engines.threads import usable_cores
from steprag.errors import ConfigError, quoted
from steprag.experiments.tunnel.arms import ARMS, CELLS, LABELS, Cell, Label, LabelArm
from steprag.experiments.tunnel.world import FactWorld
from steprag.tree import Tree

MINE = "mine"
"""The arm of `--reward`."""


def main(argv: list[str]) -> int:
    """Runs `steprag tunnel`; returns the exit code."""
    given = _arguments(argv)
    from steprag.experiments.tunnel.cells import start_of
    from steprag.experiments.tunnel.report import write

    cells, arms = _chosen(CELLS, given.cells, "cell"), list(_chosen(ARMS, given.arms, "arm"))
    if given.reward:
        reward_of(given.reward)  # named wrongly, it is refused before any work
        arms.append(LabelArm(MINE, MINE))
    if given.quick:
        cells = [replace(cell, questions=12, calls=24, steps=4, tests=60) for cell in cells]
    out = Path(given.out)
    for cell in cells:
        start_of(cell.level, out)  # before processes side by side would make it twice
    units = [(cell, seed, arms, given.reward, out) for cell in cells for seed in range(1, given.seeds + 1)]
    lanes = min(len(units), given.lanes or usable_cores())
    say(f"tunnel: {len(units)} seeds of {len(cells)} cells, {len(arms)} arms each, {lanes} side by side; in {out}")
    if lanes == 1:
        for unit in units:
            run_unit(*unit)
    else:
        with ProcessPoolExecutor(lanes, get_context("spawn")) as pool:
            for done in [pool.submit(run_unit, *unit) for unit in units]:
                done.result()
    print(write(out, f"steprag tunnel {shlex.join(argv)}").read_text(encoding="utf-8"))  # noqa: T201
    return 0


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="steprag tunnel", description="Step labels compared over seeds, in minutes.")
    parser.add_argument("--out", default="runs/tunnel", metavar="DIR", help="run folder [runs/tunnel]")
    names = "; ".join(cell.name for cell in CELLS)
    parser.add_argument("--cells", nargs="+", default=[CELLS[0].name], metavar="CELL", help=f"of: {names} [the first]")
    parser.add_argument(
        "--arms", nargs="+", default=["outcomes", "rollouts", "marked facts"], metavar="ARM",
        help=f"of: {'; '.join(arm.name for arm in ARMS)}; or all [outcomes, rollouts, marked facts]".replace("%", "%%"),
    )  # fmt: skip
    parser.add_argument("--seeds", type=int, default=8, metavar="N", help="seeds 1 to N [8]")
    parser.add_argument("--reward", metavar="MODULE:FUNCTION", help="a reward of your own: (Tree, Grammar) -> Rewards")
    parser.add_argument("--lanes", type=int, metavar="N", help="seeds side by side, a core each [all cores]")
    parser.add_argument("--quick", action="store_true", help="sizes that show that it runs, and nothing else")
    given = parse_arguments(parser, argv)
    for name in ("seeds", "lanes"):
        if getattr(given, name) is not None and getattr(given, name) < 1:
            raise ConfigError(f"--{name} is 1 or more")
    return given


def _chosen(known: Sequence[Cell] | Sequence[LabelArm], names: list[str], what: str) -> list:
    """Those of that name, in their order; `all` names every one. Raises ConfigError."""
    by_name = {each.name: each for each in known}
    if names == ["all"]:
        return list(known)
    if unknown := next((name for name in names if name not in by_name), None):
        raise ConfigError(f"unknown {what} {quoted(unknown)}; known: {'; '.join(by_name)}")
    return [each for name, each in by_name.items() if name in names]


def run_unit(cell: Cell, seed: int, arms: Sequence[LabelArm], reward: str | None, out: Path) -> None:
    """One seed of a cell, in any process."""
    from steprag.experiments.tunnel.cells import Seed

    labels = dict(LABELS)
    if reward:
        labels[MINE] = _label(reward_of(reward))
    Seed(cell, seed, out).run(arms, labels)


def reward_of(place: str) -> Callable[[Tree, Grammar], Rewards]:
    """The function named `module:function`. Raises ConfigError."""
    module, _, name = place.partition(":")
    sys.path.insert(0, "")  # as `python -m` would find it
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"--reward {quoted(place)}: {error}; give module:function, found from this folder") from None


def _label(reward: Callable[[Tree, Grammar], Rewards]) -> Label:
    def label(world: FactWorld, tree: Tree) -> Rewards:
        del world
        return reward(tree, TRANSCRIPT)

    return label


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
