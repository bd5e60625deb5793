"""The tables of `steprag compare`, as Markdown, and its pictures."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from inference.scoring.figures import KINDS, MAIN, shown
from inference.scoring.runs_compared import Scored, difference, groups_of
from inference.scoring.scores import ERRORS, mean
from steprag.console.plots import new_figure, save_png

FORCED = "Forced: not checked for end, questions, index and harness; over the questions that all runs came to."


def markdown(head: list[str], rows: Iterable[list[str]]) -> str:
    """A table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(row) + " |" for row in rows)]
    return "\n".join(lines) + "\n"


def main_table(rows: list[dict[str, Any]], forced: bool = False) -> str:
    """The short table, percentages with their intervals; with strict EM where a question of any run failed."""
    return markdown(*_main(rows)) + (f"\n{FORCED}\n" if forced else "")


def _main(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Its head and its cells."""
    head = ["run", "questions", *(KINDS[name].label for name in MAIN), "EM over the first (95 % interval, p)"]
    strict = any(line["failed"] for line in rows)
    if strict:
        head += ["strict EM (failed is wrong)", "over the first"]
    if "over_search" in rows[0]:
        head += ["over-search", "under-search"]
    return head, [_cells(line, strict) for line in rows]


def _cells(line: dict[str, Any], strict: bool) -> list[str]:
    cells = [line["run"], f"{line['questions']}" + (f" (+{line['failed']} failed)" if line["failed"] else "")]
    cells += [_ranged("share", line[name], line[f"{name}_low"], line[f"{name}_high"]) for name in ("em", "f1")]
    cells += [_percent(line[name]) for name in ("cover", "gold_recall", "format")]
    counts = {"steps": ".1f", "searches": ".1f", "tokens": ",.0f"}
    cells += [f"{line[name]:{form}}" if name in line else "" for name, form in counts.items()]
    if "gain_em" in line:
        low, em, high = (shown("share", line[f"gain_{end}"], "+") for end in ("low", "em", "high"))
        cells.append(f"{em} ({low} to {high}, p {line['gain_p']:.3g})")
    else:
        cells.append("")
    if strict:
        gained = shown("share", line["gain_strict"], "+") if "gain_strict" in line else ""
        cells += [_percent(line["strict_em"]), gained]
    return cells + [
        "" if line[name] is None else f"{_percent(line[name])} of {line[of]}"
        for name, of in (("over_search", "known_alone"), ("under_search", "unknown_alone"))
        if name in line
    ]


def _ranged(unit: str, value: float, low: float, high: float, sign: str = "") -> str:
    return f"{shown(unit, value, sign)} ({shown(unit, low, sign)} to {shown(unit, high, sign)})"


def _percent(value: float | None) -> str:
    return "" if value is None else shown("share", value)


def by_group(runs: list[Scored]) -> str:
    """EM of each run on each group of questions, and of every run but the first its difference from that; "" without
    groups.
    """
    groups = groups_of(runs)
    if not groups:
        return ""
    head = ["EM by kind of question", *(f"{name} ({len(part[0].scores)})" for name, part in groups.items())]
    rows = (
        [run.name, *(_group_cell(part[place], part[0]) for part in groups.values())] for place, run in enumerate(runs)
    )
    return "\n" + markdown(head, rows)


def _group_cell(run: Scored, base: Scored) -> str:
    em = _percent(mean(one.em for one in run.scores.values()))
    if run.name == base.name:
        return em
    gain = difference(run, base)
    return f"{em} ({shown('share', gain.low, '+')} to {shown('share', gain.high, '+')})"


def quality_tables(quality: Mapping[str, dict[str, Any]]) -> str:
    """The figures with their intervals and differences from the first run, completions, errors; `quality` holds what
    `inference.scoring.runs_compared.quality` has of every run, by its name.
    """
    names, told = list(quality), list(quality.values())
    named = [kind for kind in KINDS.values() if any(kind.name in one["figures"] for one in told)]
    parts = [
        markdown(["figure (95 % interval; less the first run)", *names, "means"],
                 [[kind.label, *(_figure(one, kind.name) for one in told), kind.definition] for kind in named]),
        markdown(["completions that follow the grammar, %", *names], _by_action([one["written"] for one in told])),
        markdown(["predictions by error", *names, "means"],
                 [[kind, *(_share(one["errors"], kind) for one in told), means] for kind, means in ERRORS.items()
                  if any(kind in one["errors"] for one in told)]),
    ]  # fmt: skip
    notes = [f"{name}: {words}" for name, one in quality.items() for words in _notes(one["counted_with"])]
    return "".join(f"\n{part}" for part in parts) + "".join(f"\n{note}\n" for note in notes)


def _figure(told: dict[str, Any], name: str) -> str:
    one, gained = told["figures"].get(name), told["gains"].get(name)
    if one is None:
        return ""
    text = f"{_ranged(one['unit'], one['value'], one['low'], one['high'])}, n {one['n']}"
    return f"{text}; {_ranged(one['unit'], gained['value'], gained['low'], gained['high'], '+')}" if gained else text


def _by_action(each: list[dict[str, Any]]) -> list[list[str]]:
    actions = list(dict.fromkeys(one["action"] for told in each for one in told["actions"]))
    parts = [{one["action"]: one for one in told["actions"]} for told in each]
    rows = [["all", *(_kept(told) for told in each)]]
    return rows + [[action, *(_kept(part.get(action)) for part in parts)] for action in actions]


def _kept(one: dict[str, Any] | None) -> str:
    if not one or not one["n"]:
        return ""
    reasons = "".join(f", {reason} {count}" for reason, count in one["reasons"].items())
    return f"{_ranged('share', one['value'], one['low'], one['high'])}, n {one['n']}{reasons}"


def _share(errors: dict[str, int], kind: str) -> str:
    count = errors.get(kind, 0)
    return f"{count} ({_percent(count / max(1, sum(errors.values())))} %)"


def _notes(counted: dict[str, Any]) -> list[str]:
    notes = [counted["missing"]] if "missing" in counted else []
    if bert := counted.get("bertscore"):
        notes.append(f"BERTScore by {bert['model']}, layer {bert['layer']}, weights {bert['weights']}")
    return notes


def draw(
    out: Path, rows: list[dict[str, Any]], ends: dict[str, Counter[str]], errors: dict[str, Counter[str]]
) -> list[str]:
    """Writes the table, scores, searches, endings and kinds of errors into `out`, each as NAME.png; returns the names.

    `ends`, `errors`: by run, how many predictions ended so, and have this error.
    """
    pictures = {"table.png": _table, "scores.png": _scores, "searches.png": _searches, "endings.png": _endings}
    pictures["errors.png"] = lambda axes, rows, ends: _shares(axes, rows, errors, "% of the predictions")
    for name, paint in pictures.items():
        width, height = 12 if name == "table.png" else 7, 0.9 + 0.55 * len(rows)
        figure = new_figure(width, 4 if name == "searches.png" else height)
        paint(figure.subplots(), rows, ends)
        save_png(figure, out / name, dpi=130)
    return list(pictures)


def _table(axes: Any, rows: list[dict[str, Any]], ends: dict[str, Counter[str]]) -> None:
    """The short table."""
    head, cells = _main(rows)
    axes.axis("off")
    drawn = axes.table([list(map(_wrapped, row)) for row in cells], colLabels=list(map(_wrapped, head)), loc="center")
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(8)
    for place in drawn.get_celld():
        drawn[place].set_height((1.5 if place[0] else 2.2) / (2.2 + 1.5 * len(cells)))
        drawn[place].set_edgecolor("lightgrey")
    drawn.auto_set_column_width(range(len(head)))


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 18, break_long_words=False)


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
        axes.errorbar(row["searches"], 100 * row["em"], fmt="o", capsize=3, yerr=_bars([row], "em"), label=row["run"])
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
    _shares(axes, rows, ends, "% of the questions")


def _shares(axes: Any, rows: list[dict[str, Any]], counts: dict[str, Counter[str]], what: str) -> None:
    kinds = [kind for kind, _ in sum(counts.values(), Counter[str]()).most_common()]
    left = [0.0] * len(rows)
    for kind in kinds:
        shares = [100 * counts[row["run"]][kind] / max(1, counts[row["run"]].total()) for row in rows]
        axes.barh(range(len(rows)), shares, left=left, label=kind)
        left = [start + share for start, share in zip(left, shares, strict=True)]
    axes.set_yticks(range(len(rows)), [row["run"] for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel(what)
    axes.figure.legend(loc="outside lower center", ncols=max(1, min(4, len(kinds))))
