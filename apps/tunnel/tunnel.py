"""`steprag tunnel`: which step labels are worth their calls, over seeds, in minutes.

Arms train one small policy on labels of the same trees, at equal calls and equal gradient steps, and are tested on the
same questions. A reward or a search of your own is one arm more: `--reward my_module:my_reward`.
"""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apps.tunnel import arms as known
from apps.tunnel.arms import WORLDS, Cell, LabelArm, TunnelWorld, VillageCell
from steprag.config.load import parse_arguments
from steprag.console.progress import say, say_next
from steprag.engines.threads import usable_cores
from steprag.errors import ConfigError, counted, quoted
from steprag.extras import function_at
from steprag.records.jsonl import read_json, write_json

if TYPE_CHECKING:
    from apps.tunnel.grow import Search
    from apps.tunnel.labels import Label

OWN = "own"
"""The label of `--reward`, and the growth of `--search`."""
CHUNK = {False: 12, True: 2}
"""Arms that one process trains one after the other, on the same trees; by GRPO, which takes longer, fewer."""
SHIPPED = Path(__file__).parent / "rates.json"
"""Learning rates by arm, chosen by a whole run."""
PAUSE = 30.0
"""Seconds between two pages of a run under way."""
Unit = tuple[Cell, int, tuple[LabelArm, ...]]
"""What a process does at a time: arms of one seed of a cell."""


def main(argv: list[str]) -> int:
    """Runs `steprag tunnel`; returns the exit code."""
    given = _arguments(argv)
    from apps.tunnel.report import write

    world = WORLDS[given.world]
    cells = _chosen(world.cells, given.cells or [world.cells[0].name], "cell")
    arms = _chosen(world.arms, given.arms, "arm")
    out, command = Path(given.out), f"steprag tunnel {shlex.join(argv)}"
    _ = _by_name(given)  # named wrongly, a reward or search is refused before any work
    if given.jobs:
        arms = _with_rates([*arms, *_own_arms(given)], world.rates_cell, given)
        units = list(_units(cells, arms, world, given))
        work = f"{counted(len(units), 'unit')}, {counted(len(arms), 'arm')}, {counted(len(cells), 'cell')}"
        say(f"tunnel: {work}, {given.jobs} side by side; in {out}")
        written = time.monotonic()
        for _ in _done(units, given):
            if time.monotonic() - written > PAUSE:
                write(out, command)
                written = time.monotonic()
    print(write(out, command).read_text(encoding="utf-8"))  # noqa: T201
    say_next(*(("tunnel", *(word for word in argv if word != "--quick")) if given.quick else ("demo",)))
    return 0


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="steprag tunnel", description="Step labels compared over seeds, in minutes.")
    some = [[each.name for world in WORLDS.values() for each in kind(world)]
            for kind in (lambda world: world.cells, lambda world: world.arms)]  # fmt: skip
    cells, arms = ("; ".join(dict.fromkeys(names)).replace("%", "%%") for names in some)
    parser.add_argument("--out", default="runs/tunnel", metavar="DIR", help="run folder [runs/tunnel]")
    parser.add_argument("--world", choices=WORLDS, default="facts", help="facts: passages of four words, a policy of "
                        "190,000 weights; village: pages to be read, 890,000 weights [facts]")  # fmt: skip
    parser.add_argument("--cells", nargs="+", metavar="CELL", help=f"of: {cells}; or all [the first of its world]")
    parser.add_argument("--arms", nargs="+", default=["outcomes", "rollouts", "marked facts"], metavar="ARM",
                        help=f"of: {arms}; or all, where in cells after the first only those run that the goals need "
                        "[outcomes, rollouts, marked facts]")  # fmt: skip
    parser.add_argument("--seeds", type=int, default=8, metavar="N", help="seeds 1 to N [8]")
    parser.add_argument("--reward", metavar="NAME", help="one reward more: any label.name of steprag pairs, your own "
                        "module:function too")  # fmt: skip
    parser.add_argument("--search", metavar="MODULE:FUNCTION",
                        help="a search of your own, as data_generation.search:grow")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=usable_cores(), metavar="N",
                        help="processes, one core each; 0: write the page again [all cores]")  # fmt: skip
    parser.add_argument(
        "--rates", action="store_true", help="choose all learning rates again, including the shipped ones"
    )
    parser.add_argument("--quick", action="store_true", help="sizes that show that it runs, and nothing else")
    given = parse_arguments(parser, argv)
    for name, least in (("seeds", 1), ("jobs", 0)):
        if getattr(given, name) < least:
            raise ConfigError(f"--{name} is {least} or more")
    if not given.jobs and not Path(given.out).is_dir():
        raise ConfigError(f"{given.out} holds no results; run steprag tunnel without --jobs 0 first")
    return given


def _chosen(some: Sequence[Any], names: list[str], what: str) -> list[Any]:
    """Those of that name, in their order; `all` names every one. Raises ConfigError."""
    by_name = {each.name: each for each in some}
    if unknown := next((name for name in names if name not in by_name and names != ["all"]), None):
        raise ConfigError(f"unknown {what} {quoted(unknown)}; known: {'; '.join(by_name)}")
    return [each for name, each in by_name.items() if name in names or names == ["all"]]


def _own_arms(given: argparse.Namespace) -> list[LabelArm]:
    """The own reward on the world's trees; on those of an own search outcomes, marked facts and the own reward."""
    rewarded = [LabelArm("own reward", OWN, WORLDS[given.world].how)] if given.reward else []
    if not given.search:
        return rewarded
    searched = [known.OUTCOMES, LabelArm("marked facts", "marked facts"), *rewarded]
    return [*rewarded, *(replace(arm, name=f"{arm.name}, own search", how=OWN) for arm in searched)]


def _units(
    cells: Sequence[Cell], arms: Sequence[LabelArm], world: TunnelWorld, given: argparse.Namespace
) -> Iterator[Unit]:
    """What remains to be done, most important first: cell by cell, those arms first that the goals need."""
    needed, wide = {arm.name for arm in world.needed}, {cell.name for cell in world.whole}
    for cell in cells:
        whole = given.arms != ["all"] or cell.name in wide
        taken = [arm for arm in arms if whole or arm.name in needed or OWN in (arm.label, arm.how)]
        if cell.level != "middle" and any(arm.method == "grpo" for arm in taken):
            raise ConfigError(f"cell {quoted(cell.name)}: GRPO's arms have one start, of level middle; leave them out")
        if given.quick:
            cell = replace(cell, **world.quick)
        yield from _split(cell, range(1, given.seeds + 1), taken)


def _split(cell: Cell, seeds: Iterable[int], arms: Sequence[LabelArm]) -> Iterator[Unit]:
    """Units of arms whose trees are the same."""
    alike: dict[tuple[bool, str, int], list[LabelArm]] = {}
    for arm in arms:
        alike.setdefault((arm.method == "grpo", arm.how, arm.rounds), []).append(arm)
    for (slow, *_), same in alike.items():
        for first in range(0, len(same), CHUNK[slow]):
            yield from ((cell, seed, tuple(same[first : first + CHUNK[slow]])) for seed in seeds)


def _done(units: Sequence[Unit], given: argparse.Namespace) -> Iterator[None]:
    """Runs the units that have something to do, in their order, as many at a time as there are jobs."""
    from apps.tunnel.unit import missing

    todo = [unit for unit in units if missing(Path(given.out), *unit)]
    if given.jobs == 1 or len(todo) < 2:
        yield from (run_unit(unit, given) for unit in todo)
        return
    with ProcessPoolExecutor(min(given.jobs, len(todo)), get_context("spawn")) as pool:
        for done in as_completed([pool.submit(run_unit, unit, given) for unit in todo]):
            done.result()
            yield


def run_unit(unit: Unit, given: argparse.Namespace) -> None:
    """Runs in any process, on one core."""
    import torch

    from apps.tunnel.unit import Seed, work_of

    torch.set_num_threads(1)
    cell, seed, arms = unit
    out, named = Path(given.out), _by_name(given)
    if isinstance(cell, VillageCell):
        from apps.tunnel.village_unit import VillageSeed

        VillageSeed(cell, seed, *named, work_of(out, cell, seed)).run(arms, out)
        return
    Seed(cell, seed, *named).run(arms, out)


def _by_name(given: argparse.Namespace) -> tuple[dict[str, Label], dict[str, Search]]:
    """Labels and searches, those of `--reward` and `--search` among them. Raises ConfigError where there are none."""
    from apps.tunnel.grow import SEARCHES
    from apps.tunnel.labels import LABELS, named_label

    label = {} if given.reward is None else {OWN: named_label(given.reward)}
    search = {} if given.search is None else {OWN: function_at(given.search, "--search")}
    return LABELS | label, SEARCHES | search


def _with_rates(arms: list[LabelArm], cell: Cell, given: argparse.Namespace) -> list[LabelArm]:
    """The arms with the learning rate that is best on validation questions, over seeds of their own."""
    from apps.tunnel.unit import file_of

    out, seeds, rates = Path(given.out), known.RATES_SEEDS, WORLDS[given.world].rates
    told: dict[str, float] = {} if given.rates or given.world != "facts" else read_json(SHIPPED)
    todo = [arm for arm in arms if arm.name not in told and arm.method != "none" and not given.quick]
    tried = {arm: [replace(arm, name=f"{arm.name} at {rate:g}", rate=rate) for rate in rates] for arm in todo}
    say(f"tunnel: learning rates of {counted(len(todo), 'arm')} are chosen")
    for _ in _done(list(_split(cell, seeds, [one for some in tried.values() for one in some])), given):
        pass
    for arm, some in tried.items():
        right = {one.rate: sum(sum(read_json(file_of(out, cell, seed, one))["right"]) for seed in seeds)
                 for one in some}  # fmt: skip
        told[arm.name] = max(right, key=right.__getitem__)
    if todo:
        write_json(out / "rates.json", told)
    return [replace(arm, rate=told.get(arm.name, arm.rate)) for arm in arms]
