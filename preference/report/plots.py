"""Plots of a report: margins, depths, actions, lengths, tokens against the cut-off, reward against judge.

Every picture is drawn from report.json alone, so that the same report gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle
from typing import TYPE_CHECKING, Any

from steprag.console.plots import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999", "#F0E442", "#000000")
"""Okabe and Ito's colours, told apart by the colour-blind."""
SIZE = (6.4, 3.6)


def draw(report: dict[str, Any]) -> Iterator[tuple[str, Figure]]:
    """Name and picture of every plot that the report has numbers for."""
    pairs = report["pairs"]
    if pairs["pairs"]:
        if sum(pairs["margins"]["counts"]):
            yield "margins", _painted(lambda axes: _margins(axes, report))
        yield "depths", _painted(lambda axes: _depths(axes, pairs))
        yield "actions", _painted(lambda axes: _actions(axes, pairs))
        yield "lengths", _painted(lambda axes: _lengths(axes, pairs["lengths"]))
        if pairs["tokens"]:
            yield "tokens", _painted(lambda axes: _tokens(axes, pairs["tokens"]))
    credit = report.get("credit")
    if credit and any(map(any, credit["reward_against_judge"])):
        yield "reward_against_judge", _painted(lambda axes: _grid(axes, credit["reward_against_judge"]))

    if calibration := report.get("calibration"):
        yield "calibration", _painted(lambda axes: _calibration(axes, calibration))


def _painted(paint: Callable[[Any], None]) -> Figure:
    figure = new_figure(*SIZE)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    paint(axes)
    return figure


def _bars(axes: Any, edges: list[float], counts: list[int], **style: Any) -> None:
    widths = [right - left for left, right in zip(edges, edges[1:], strict=False)]
    axes.bar(edges[:-1], counts, width=widths, align="edge", **style)


def _margins(axes: Any, report: dict[str, Any]) -> None:
    margins, rules = report["pairs"]["margins"], report["config"].get("pairs")
    _bars(axes, margins["edges"], margins["counts"], color=COLOURS[0], edgecolor="white")
    if rules:
        axes.axvline(rules["margin"], color=COLOURS[5], linestyle="--", label=f"least margin {rules['margin']:g}")
    axes.axvline(margins["median"], color="black", linestyle=":", label=f"median {margins['median']:.2f}")
    axes.set(title="Margin between chosen and rejected", xlabel="margin", ylabel="pairs", xlim=(0, 1))
    axes.legend(frameon=False)


def _depths(axes: Any, pairs: dict[str, Any]) -> None:
    depths = [int(depth) for depth in pairs["depths"]]
    below = [0] * len(depths)
    for colour, action in zip(cycle(COLOURS), pairs["actions"], strict=False):
        heights = [row.get(action, 0) for row in pairs["depths"].values()]
        axes.bar(depths, heights, bottom=below, color=colour, label=action, edgecolor="white")
        below = [base + height for base, height in zip(below, heights, strict=True)]
    axes.set(title="Pairs by depth of the step", xlabel="depth", ylabel="pairs", xticks=range(1, max(depths) + 1))
    axes.legend(frameon=False, fontsize="small")


def _actions(axes: Any, pairs: dict[str, Any]) -> None:
    names = sorted(pairs["actions"], key=lambda name: (pairs["actions"][name], name))
    counts = [pairs["actions"][name] for name in names]
    bars = axes.barh(names, counts, color=COLOURS[0])
    axes.bar_label(bars, [f"{count:,} ({count / sum(counts):.0%})" for count in counts], padding=3, fontsize="small")
    axes.set(title="Pairs by action, chosen over rejected", xlabel="pairs", xlim=(0, 1.25 * max(counts)))


def _lengths(axes: Any, lengths: dict[str, Any]) -> None:
    for side, colour in (("chosen", COLOURS[0]), ("rejected", COLOURS[5])):
        axes.stairs(lengths["counts"][side], lengths["edges"], color=colour, fill=True, alpha=0.35)
        axes.stairs(lengths["counts"][side], lengths["edges"], color=colour, linewidth=1.5,
                    label=f"{side}, mean {lengths[side]['mean']:.0f}")  # fmt: skip
    shorter, longer = lengths["chosen_is_shorter"], lengths["chosen_is_longer"]
    axes.set(title=f"Length of the steps (chosen shorter {shorter:,}, longer {longer:,})", xlabel="characters",
             ylabel="pairs", xlim=(0, None))  # fmt: skip
    axes.legend(frameon=False)


def _tokens(axes: Any, tokens: dict[str, Any]) -> None:
    _bars(axes, tokens["edges"], tokens["counts"]["pair"], color=COLOURS[0], edgecolor="white")
    axes.axvline(tokens["cutoff"], color=COLOURS[5], linestyle="--", label=f"cut-off {tokens['cutoff']:,}")
    axes.axvline(tokens["p99"], color="black", linestyle=":", label=f"99 % below {tokens['p99']:.0f}")
    axes.set(title="Prompt and longer step", xlabel="tokens of the model to be trained", ylabel="pairs")
    axes.legend(frameon=False)


def _calibration(axes: Any, calibration: dict[str, Any]) -> None:
    axes.plot([0, 1], [0, 1], color="black", linestyle=":", label="belief is right")
    for colour, (kind, row) in zip(COLOURS, calibration.items(), strict=False):
        curve = row["curve"]
        shares = [point["share"] for point in curve]
        errors = [
            [point["share"] - point["low"] for point in curve],
            [point["high"] - point["share"] for point in curve],
        ]
        axes.errorbar([point["believed"] for point in curve], shares, yerr=errors, color=colour, marker="o", capsize=3,
                      label=f"{kind}, {row['answers']:,} answers, Brier {row['brier']:.3f}")  # fmt: skip
    axes.set(title="Answers by the policy's belief", xlabel="probability of the golden answer", ylabel="share right",
             xlim=(0, 1), ylim=(0, 1))  # fmt: skip
    axes.legend(frameon=False, fontsize="small")


def _grid(axes: Any, grid: list[list[int]]) -> None:
    from matplotlib.colors import LogNorm

    rows = [list(column) for column in zip(*grid, strict=True)]  # reward runs along x, the judge's score along y
    greatest = max(map(max, rows))
    picture = axes.imshow(rows, origin="lower", extent=(0, 1, 0, 1), cmap="viridis", norm=LogNorm(1, max(2, greatest)))
    axes.figure.colorbar(picture, label="steps")
    axes.set(title="Reward of rollouts against judge", xlabel="reward", ylabel="judge's score")
