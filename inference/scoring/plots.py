"""The pictures of a comparison."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from steprag.console.plots import new_figure, save_png


def draw(out: Path, rows: list[dict[str, Any]], ends: dict[str, Counter[str]]) -> list[str]:
    """Writes scores.png, searches.png and endings.png into `out`; returns their names."""
    pictures = {"scores.png": _scores, "searches.png": _searches, "endings.png": _endings}
    for name, paint in pictures.items():
        figure = new_figure(7, 0.9 + 0.55 * len(rows) if name != "searches.png" else 4)
        paint(figure.subplots(), rows, ends)
        save_png(figure, out / name, dpi=130)
    return list(pictures)


def _scores(axes: Any, rows: list[dict[str, Any]], ends: dict[str, Counter[str]]) -> None:
    """EM and F1 of each run with their 95 % intervals."""
    for shift, name, colour in ((-0.12, "em", "tab:blue"), (0.12, "f1", "tab:orange")):
        values = [100 * row[name] for row in rows]
        places = [place + shift for place in range(len(rows))]
        axes.errorbar(values, places, xerr=_bars(rows, name), fmt="o", capsize=3, color=colour, label=name.upper())
    axes.set_yticks(range(len(rows)), [row["run"] for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("%, with 95 % intervals")
    axes.grid(axis="x", alpha=0.3)
    axes.legend()


def _searches(axes: Any, rows: list[dict[str, Any]], ends: dict[str, Counter[str]]) -> None:
    """EM against what it took."""
    for row in rows:
        axes.errorbar(
            row["searches"], 100 * row["em"], fmt="o", capsize=3,
            yerr=_bars([row], "em"), label=row["run"],
        )  # fmt: skip
    axes.set_xlabel("searches a question (of best-of-N all N episodes')")
    axes.set_ylabel("EM, %")
    axes.set_xlim(0, 1.1 * max(1, *(row["searches"] for row in rows)))
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.figure.legend(loc="outside right center")


def _bars(rows: list[dict[str, Any]], name: str) -> list[list[float]]:
    """Lengths of the error bars below and above, in points of 100: rounding may put a mean just outside them."""
    return [
        [max(0.0, 100 * (row[name] - row[f"{name}_low"])) for row in rows],
        [max(0.0, 100 * (row[f"{name}_high"] - row[name])) for row in rows],
    ]


def _endings(axes: Any, rows: list[dict[str, Any]], ends: dict[str, Counter[str]]) -> None:
    """How episodes ended, and why questions failed, as shares of each run's questions."""
    kinds = [kind for kind, _ in sum(ends.values(), Counter[str]()).most_common()]
    left = [0.0] * len(rows)
    for kind in kinds:
        shares = [100 * ends[row["run"]][kind] / ends[row["run"]].total() for row in rows]
        axes.barh(range(len(rows)), shares, left=left, label=kind)
        left = [start + share for start, share in zip(left, shares, strict=True)]
    axes.set_yticks(range(len(rows)), [row["run"] for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("% of the questions")
    axes.figure.legend(loc="outside lower center", ncols=min(4, len(kinds)))
