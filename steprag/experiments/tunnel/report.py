"""The tunnel's page: what each arm reached, its labels, the curve by hops, and the goals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from steprag.console.plots import can_draw, new_figure, save_png
from steprag.experiments.tunnel.statistics import PairedDifference, difference, holm, of_seeds, trend
from steprag.experiments.tunnel.world import HOPS
from steprag.records.jsonl import read_json, written_whole

BASE = "outcomes"
FACTS = "marked facts"
CURVES = ("outcomes", "rollouts", "string match", "gain", "marked facts", "oracle")


@dataclass(frozen=True)
class CellResults:
    """One cell. `right`: by arm (seeds, questions); `facts`: by arm each seed's file; `hops`: of each question."""

    name: str
    seeds: tuple[int, ...]
    right: dict[str, np.ndarray]
    facts: dict[str, list[dict[str, Any]]]
    hops: np.ndarray

    def over(self, arm: str, base: str = BASE, hops: int | None = None) -> PairedDifference:
        """An arm minus another, in all or on questions of so many hops."""
        asked = None if hops is None else np.flatnonzero(self.hops == hops)
        return difference(self.right[arm], self.right[base], asked)

    def gap(self, arm: str, base: str = BASE) -> np.ndarray:
        """Points by seed and question."""
        return 100.0 * (self.right[arm].astype(float) - self.right[base])


def read_cell(folder: Path) -> CellResults | None:
    """The arms of a cell that every seed has; None where nothing is there."""
    seeds = sorted((path for path in folder.glob("*") if path.is_dir()), key=lambda path: int(path.name))
    files = [{path.stem: read_json(path) for path in seed.glob("*.json")} for seed in seeds]
    names = [name for name in files[0] if all(name in seed for seed in files)] if files else []
    if not names:
        return None
    facts = {name: [seed[name] for seed in files] for name in names}
    right = {name: np.array([one["right"] for one in told]) for name, told in facts.items()}
    return CellResults(
        folder.name.replace("-", " "),
        tuple(int(s.name) for s in seeds),
        right,
        facts,
        np.array(facts[names[0]][0]["hops"]),
    )


def page(cells: Sequence[CellResults], command: str, picture: str | None) -> str:
    """The whole page, Markdown."""
    lines = ["# The wind tunnel", "", f"    {command}", ""]
    lines += _goals({cell.name: cell for cell in cells})
    if picture:
        lines += [f"![Points over outcomes by hops of the test question]({picture})", ""]
    for cell in cells:
        lines += _table(cell)
    return "\n".join(lines) + "\n"


def _table(cell: CellResults) -> list[str]:
    seeds = f"{len(cell.seeds)} seed{'s' if len(cell.seeds) > 1 else ''}"
    lines = [f"## {cell.name}", "", f"{seeds}, {len(cell.hops)} test questions. Intervals: 95 %, t over seeds.",
             "", "| arm | EM, % | seeds | over outcomes | pairs: right, wrong, undecided | of unsolved trees | "
             + " | ".join(f"{hops} hops" for hops in HOPS) + " |", "|---" * (6 + len(HOPS)) + "|"]  # fmt: skip
    ranked = sorted(cell.right, key=lambda name: -cell.right[name].mean())
    for name in ranked:
        by_seed = 100 * cell.right[name].mean(1)
        over = cell.over(name).shown if BASE in cell.right and name != BASE else ""
        by_hop = [f"{100 * cell.right[name][:, cell.hops == hops].mean():.0f}" for hops in HOPS]
        seeds = f"{by_seed.min():.1f} to {by_seed.max():.1f}"
        counted = [_pairs(cell.facts[name], group) for group in ("all", "unsolved")]
        lines.append("| " + " | ".join([name, f"{by_seed.mean():.1f}", seeds, over, *counted, *by_hop]) + " |")
    return [*lines, ""]


def _pairs(told: list[dict[str, Any]], group: str) -> str:
    if "pairs" not in told[0]:
        return ""
    means = np.mean([one["pairs"][group] for one in told], axis=0)
    return ", ".join(f"{mean:.0f}" for mean in means)


def _goals(cells: Mapping[str, CellResults]) -> list[str]:
    """What was to be shown, written down before the run, and what came out; p-values after Holm."""
    told: dict[str, tuple[PairedDifference, str]] = {}
    main = cells.get("1 to 6 hops")
    if main and {BASE, FACTS} <= main.right.keys():
        told["a: marked facts beat outcomes by 10 points or more"] = (main.over(FACTS), "")
        if "rollouts" in main.right:
            told["c: rollouts lie within 5 points of outcomes"] = (main.over("rollouts"), "")
        if (turned := "marked facts, 20 % turned") in main.right:
            lost = of_seeds(main.gap(FACTS, turned) - 0.5 * main.gap(FACTS))
            told["d: 20 % turned labels lose half of (a) or more"] = (lost, "lost beyond half")
        for name in ("string match", "chained match", "gain"):
            if name in main.right:
                told[f"e: {name} beats outcomes by 5 points or more"] = (main.over(name), "")
    steps = [cells.get(name) for name in ("1 or 2 hops", "1 to 6 hops", "4 to 6 hops")]
    if all(cell and {BASE, FACTS} <= cell.right.keys() for cell in steps):
        told["b: (a) grows with the hops trained on"] = (trend([c.gap(FACTS) for c in steps if c]), "a step")
    if not told:
        return []
    ps = holm({name: found.p for name, (found, _) in told.items()})
    rows = [
        f"| {name} | {f'{found.shown} {unit}'.strip()} | {ps[name]:.3g} |"
        for name, (found, unit) in sorted(told.items())
    ]
    return ["| goal | points | p (Holm) |", "|---|---|---|", *rows, ""]


def draw(cell: CellResults, path: Path) -> bool:
    """The curve of points over outcomes by hops; False where it cannot be drawn."""
    names = [name for name in CURVES if name in cell.right and name != BASE]
    if BASE not in cell.right or not names or not can_draw():
        return False
    figure = new_figure(7, 4)
    axes = figure.subplots()
    for name in names:
        found = [cell.over(name, hops=hops) for hops in HOPS]
        half = np.nan_to_num([one.high - one.mean for one in found])
        axes.errorbar(HOPS, [one.mean for one in found], half, marker="o", capsize=3, label=name)
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set_xlabel("hops of the test question")
    axes.set_ylabel("points of EM over outcomes")
    axes.legend()
    save_png(figure, path, 120)
    return True


def write(out: Path, command: str) -> Path:
    """Reads the cells of a run folder and writes its page."""
    cells = [found for folder in sorted(out.iterdir()) if folder.is_dir() and (found := read_cell(folder))]
    main = next((cell for cell in cells if cell.name == "1 to 6 hops"), cells[0])
    drawn = draw(main, out / "hops.png")
    with written_whole(out / "report.md") as stream:
        stream.write(page(cells, command, "hops.png" if drawn else None))
    return out / "report.md"
