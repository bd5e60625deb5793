"""The tunnel's page: the goals, what each arm reached, its labels, and the curve by hops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from apps.tunnel.arms import CELLS, CURE, LIST_CELLS, MAIN, POOLED, TEXT_CELLS, VILLAGE, WORLDS
from apps.tunnel.statistics import PairedDifference, holm, of_seeds, trend
from inference.scoring.tables import markdown
from steprag.console.plots import can_draw, new_figure, save_png
from steprag.errors import ConfigError, counted
from steprag.records.jsonl import read_json, written_whole

BASE, FACTS, TURNED = "outcomes", "marked facts", "marked facts, 20 % turned"
UNMARKED = ("chained match", POOLED, "judge: a stronger policy", "gain, guarded", "string match")
"""Labels without marked facts, for goal e."""
CURVES = ("rollouts", POOLED, "judge: a stronger policy", TURNED, FACTS, "oracle")
BY_HOPS = ("1 or 2 hops", MAIN.name, "4 to 6 hops")
"""Cells by the length of what is trained on."""
LABELS = ("chained match", "marked facts, as many pairs")
EXPECTED = {LIST_CELLS[0].name: "shown", LIST_CELLS[1].name: "opposite", TEXT_CELLS[0].name: "shown",
            TEXT_CELLS[1].name: "opposite", CURE.name: "shown"}  # fmt: skip
"""Of each cell of the village whether `LABELS` were thought to win, before any arm was run."""
QUICK = "These sizes show that the tunnel runs. They judge no goal."
CELL_NAMES = tuple(cell.name for world in WORLDS.values() for cell in world.cells)
RATES_NAMES = tuple(world.rates_cell.name for world in WORLDS.values())


@dataclass(frozen=True)
class CellResults:
    """One cell. `told`: by arm and seed what its file says; `hops`: of each test question."""

    name: str
    told: dict[str, dict[int, dict[str, Any]]]
    hops: np.ndarray

    @property
    def lengths(self) -> list[int]:
        """The hops of its test questions, each once."""
        return np.unique(self.hops).tolist()

    def right(self, arm: str, seeds: Iterable[int] | None = None) -> np.ndarray:
        """In points, 0 or 100, by seed and question; `seeds`: all that the arm has where none are given."""
        return 100.0 * np.array([self.told[arm][seed]["right"] for seed in sorted(seeds or self.told[arm])])

    def shared(self, *arms: str) -> list[np.ndarray]:
        """`right` of each, by the seeds that all of them have."""
        seeds = set.intersection(*(set(self.told[arm]) for arm in arms))
        return [self.right(arm, seeds) for arm in arms]

    def gap(self, arm: str) -> np.ndarray:
        """An arm minus outcomes."""
        one, base = self.shared(arm, BASE)
        return one - base

    def over(self, arm: str, hops: int | None = None) -> PairedDifference:
        """An arm minus outcomes, in all or on questions of so many hops."""
        return of_seeds(self.gap(arm)[:, slice(None) if hops is None else self.hops == hops])


def read_cell(folder: Path) -> CellResults | None:
    """What a cell's folder holds; None where nothing is there. Raises ConfigError for results of another version."""
    told: dict[str, dict[int, dict[str, Any]]] = {}
    one: dict[str, Any] = {}
    for file in sorted(folder.glob("*/*.json")):
        one = read_json(file)
        if not isinstance(one.get("arm"), str) or "cell" not in one:
            raise ConfigError(f"{file}: no result of this version of the tunnel; give another --out")
        told.setdefault(one["arm"], {})[int(file.parent.name)] = one
    return CellResults(one["cell"], told, np.array(one["hops"])) if told else None


class Goal(NamedTuple):
    """Set before the run. `found.p`: of no difference; of (c), of lying outside."""

    name: str
    found: PairedDifference
    reached: bool


def goals_of(cells: Mapping[str, CellResults]) -> Iterator[Goal]:
    """The goals of which the arms are there, by letter; (f) is the time and stands apart."""
    main = cells.get(MAIN.name)
    if main is None or len(main.told.get(BASE, ())) < 2:
        return
    there = main.told.keys()
    if FACTS in there:
        gap = main.over(FACTS)
        yield Goal("a: marked facts beat outcomes by 10 points", gap, gap.mean >= 10 and gap.low > 0)
    if all(name in cells and {BASE, FACTS} <= cells[name].told.keys() for name in BY_HOPS):
        gaps = [cells[name].gap(FACTS) for name in BY_HOPS]
        rise = trend([each[: min(map(len, gaps))] for each in gaps])
        yield Goal("b: (a) grows with the hops trained on; points a cell", rise, rise.low > 0)
    if "rollouts" in there:
        one = main.over("rollouts")
        outside = replace(one, p=max(one.beyond(-5), 1 - one.beyond(5)))
        name = "c: rollouts lie within 5 points of outcomes; p of lying outside"
        yield Goal(name, outside, one.low > -5 and one.high < 5)
    if {FACTS, TURNED} <= there:
        base, facts, turned = main.shared(BASE, FACTS, TURNED)
        lost = of_seeds((facts - turned) - 0.5 * (facts - base))
        yield Goal("d: 20 % turned labels lose half of (a); loss beyond half", lost, lost.mean >= 0)
    for name in UNMARKED:
        if name in there:
            gap = main.over(name)
            yield Goal(f"e: {name} beats outcomes by 5 points", gap, gap.mean >= 5 and gap.low > 0)


def _goals(cells: Mapping[str, CellResults]) -> list[str]:
    goals = list(goals_of(cells))
    corrected = holm({goal.name: goal.found.p for goal in goals})
    rows = []
    for goal in goals:
        rows.append([goal.name, *goal.found.shown, f"{corrected[goal.name]:.2g}", "yes" if goal.reached else "no"])
    hours = {name: sum(one["seconds"] for told in cell.told.values() for one in told.values()) / 3600
             for name, cell in cells.items()}  # fmt: skip
    told = ", ".join(f"{name} {each:.2f}" for name, each in hours.items())
    whole = sum(hours.values())
    rows.append(["f: all within two core-hours", f"{whole:.2f} ({told})", "", "", "yes" if whole <= 2 else "no"])
    head = ["goal", "points (95 %, t)", "bootstrap", "p (Holm)", "reached"]
    return ["## Goals, set before the run", "", markdown(head, rows)]


def verdict(found: PairedDifference) -> str:
    """Shown: 5 points or more, and the interval above 0. Opposite: its upper end below 5. Else open."""
    if found.mean >= 5 and found.low > 0:
        return "shown"
    return "opposite" if found.high < 5 else "open"


Differences = list[tuple[str, str, PairedDifference]]
"""Of a cell and a label: by how much it beats outcomes."""


def against_outcomes(cells: Mapping[str, CellResults]) -> Differences:
    """Of each cell of the village that is there and each of `LABELS`. Fewer questions, as of --quick, judge nothing."""
    return [(name, arm, cells[name].over(arm)) for name in EXPECTED for arm in LABELS
            if name in cells and len(cells[name].hops) >= VILLAGE.tests
            and len(cells[name].told.get(arm, {}).keys() & cells[name].told.get(BASE, {}).keys()) > 1]  # fmt: skip


def _hypotheses(told: Differences) -> list[str]:
    """What was expected of the village, and what came of it."""
    rows = [[name, arm, str(len(found.seeds)), *found.shown, EXPECTED[name], verdict(found)]
            for name, arm, found in told]  # fmt: skip
    if not rows:
        return []
    head = ["cell", "label", "seeds", "points over outcomes (95 %, t)", "bootstrap", "expected", "found"]
    return ["## Expected before the run", "", "Shown: 5 points or more, and the interval above 0. Opposite: its upper "
            "end below 5.", "", markdown(head, rows)]  # fmt: skip


def _cell(cell: CellResults) -> list[str]:
    """What each arm reached, the best first; and its pairs: right, wrong, undecided."""
    seeds = max(map(len, cell.told.values()))
    reached, made = [], []
    for arm, right in sorted(((arm, cell.right(arm)) for arm in cell.told), key=lambda one: -one[1].mean()):
        over = cell.over(arm).shown if BASE in cell.told and arm != BASE else ("", "")
        by_hop = [f"{right[:, cell.hops == hops].mean():.0f}" for hops in cell.lengths]
        each = " ".join(f"{one:.0f}" for one in right.mean(1))
        reached.append([arm, f"{right.mean():.1f}", each, *over, *by_hop])
        told = list(cell.told[arm].values())
        made += [_pairs(arm, told, cell.lengths)] if "calls" in told[0] else []
    each_hop = [f"hops: {hops}" for hops in cell.lengths]
    return [f"## {cell.name}", "", f"{counted(seeds, 'seed')}, {len(cell.hops)} test questions. EM in %. Intervals: "
            "95 %, t over seeds; bootstrap over seeds and questions.", "",
            markdown(["arm", "EM", "each seed", "over outcomes", "bootstrap", *each_hop], reached),
            "Pairs a seed: right / wrong / undecided, as the world knows.", "",
            markdown(["arm", "rate", "calls", "all", "of unsolved trees", *each_hop], made)]  # fmt: skip


def _pairs(arm: str, told: Sequence[Mapping[str, Any]], lengths: Sequence[int]) -> list[str]:
    """The row of an arm's pairs, of what its seeds told."""
    groups = ("all", "unsolved", *map(str, lengths))
    counts = [[one["pairs"].get(group, (0, 0, 0)) for one in told if "pairs" in one] for group in groups]
    shown = [" / ".join(f"{mean:.0f}" for mean in np.mean(each, axis=0)) if each else "" for each in counts]
    return [arm, f"{told[0]['rate']:g}", f"{np.mean([one['calls'] for one in told]):.0f}", *shown]


def _rates(cell: CellResults) -> list[str]:
    """The validation of learning rates: EM by arm and rate."""
    seeds = ", ".join(map(str, sorted({seed for told in cell.told.values() for seed in told})))
    shown = {name: f"{cell.right(name).mean():.1f}" for name in cell.told}
    named = [name.rpartition(" at ") for name in cell.told]
    arms, rates = sorted({arm for arm, _, _ in named}), sorted({rate for _, _, rate in named}, key=float)
    rows = ([arm, *(shown.get(f"{arm} at {rate}", "") for rate in rates)] for arm in arms)
    return ["## Learning rates", "", f"Validation EM, mean of the seeds {seeds}, on questions of their own.", "",
            markdown(["arm", *rates], rows)]  # fmt: skip


def draw(cell: CellResults, path: Path) -> bool:
    """The curve of points over outcomes by hops; False where it cannot be drawn."""
    names = [name for name in CURVES if name in cell.told]
    if BASE not in cell.told or not names or not can_draw():
        return False
    figure = new_figure(8, 4.5)
    axes = figure.subplots()
    for number, name in enumerate(names):
        found = [cell.over(name, hops) for hops in cell.lengths]
        half = np.nan_to_num([one.high - one.mean for one in found])
        places = np.array(cell.lengths) + 0.06 * (number - (len(names) - 1) / 2)
        axes.errorbar(places, [one.mean for one in found], half, marker="o", capsize=3, label=name)
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set_xlabel("hops of the test question")
    axes.set_ylabel("points of EM over outcomes (95 %)")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
    save_png(figure, path, 120)
    return True


def draw_cells(told: Differences, path: Path) -> bool:
    """The labels' points over outcomes, a line a cell; False where it cannot be drawn."""
    if not told or not can_draw():
        return False
    names = list(dict.fromkeys(name for name, _, _ in told))
    figure = new_figure(8, 1.5 + 0.6 * len(names))
    axes = figure.subplots()
    for number, arm in enumerate(LABELS):
        own = [(names.index(name) + 0.2 * number - 0.1, found) for name, label, found in told if label == arm]
        axes.errorbar([found.mean for _, found in own], [place for place, _ in own],
                      xerr=[found.high - found.mean for _, found in own], fmt="o", capsize=3, label=arm)  # fmt: skip
    axes.axvline(0, color="grey", linewidth=0.8)
    axes.axvline(5, color="grey", linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(names)), [name.removeprefix("village: ") for name in names])
    axes.invert_yaxis()
    axes.set_xlabel("points of EM over outcomes (95 %)")
    axes.legend(loc="best", fontsize="small")
    save_png(figure, path, 120)
    return True


def write(out: Path, command: str) -> Path:
    """Reads the cells of a run folder and writes its page, also of a run that is not done."""
    found = {cell.name: cell for folder in out.iterdir() if folder.is_dir() and (cell := read_cell(folder))}
    cells = {name: found[name] for name in [*CELL_NAMES, *RATES_NAMES] if name in found}
    if not cells:
        raise ConfigError(f"{out} holds no results; run steprag tunnel without --jobs 0 first")
    main = cells.get(MAIN.name, next(iter(cells.values())))
    picture = "![Points over outcomes by hops of the test question](hops.png)"
    judged = len(main.hops) >= MAIN.tests  # fewer questions of --quick judge nothing
    goals = _goals(cells) if judged else [QUICK, ""] if main.name in [cell.name for cell in CELLS] else []
    told = against_outcomes(cells)
    lines = ["# The wind tunnel", "", f"    {command}", "", *goals, *_hypotheses(told)]
    lines += ["![Points over outcomes by cell](cells.png)", ""] * draw_cells(told, out / "cells.png")
    lines += [picture, ""] * draw(main, out / "hops.png")
    for name, cell in cells.items():
        lines += _rates(cell) if name in RATES_NAMES else _cell(cell)
    with written_whole(out / "report.md") as stream:
        stream.write("\n".join(lines) + "\n")
    return out / "report.md"
