"""`steprag compare RUN RUN …`: scores side by side, each with its interval and its difference from the first run.

Writes compare.md, compare.csv, compare.json and plots. Runs that are unfinished, of other questions, another index or
another harness are refused unless forced: their figures do not belong in one table. A forced one holds the questions
that all runs share, and says that it was forced.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from inference.plots import draw
from inference.quality_tables import quality_of, quality_tables
from inference.runs_compared import (
    Scored,
    asked_of,
    check_alike,
    check_direct,
    difference,
    groups_of,
    read_run,
    right,
    shared,
)
from inference.scores import HARNESS, gold_recall, mean
from steprag.cli import guarded
from steprag.config import parse_arguments
from steprag.errors import ConfigError, quoted
from steprag.figures import can_draw
from steprag.files import existing, write_json, written_whole

ENDS = {"": "value", "_low": "low", "_high": "high", "_n": "n"}
"""Columns of a figure: its name with these ends, and what of `inference.quality.figures` they hold."""


def main(argv: list[str]) -> int:
    """Runs `steprag compare`; returns the exit code."""
    parser = argparse.ArgumentParser(prog="steprag compare", description="Runs of steprag infer, side by side.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders; differences are from the first")
    parser.add_argument("--names", nargs="+", metavar="NAME", help="what to call them [the folders' names]")
    parser.add_argument(
        "--direct", metavar="RUN", help="the base model without searching: tells over- from under-search"
    )
    parser.add_argument("--out", metavar="DIR", help="folder for compare.md, .csv, .json and the plots")
    parser.add_argument(
        "--force",
        action="store_true",
        help="compare runs that are unfinished or of other questions",
    )
    given = parse_arguments(parser, argv)
    names = given.names or [Path(run).name for run in given.runs]
    if len(names) != len(given.runs):
        raise ConfigError(f"{len(given.runs)} runs, {len(names)} names")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"two runs are called {quoted(twice)}; tell them apart with --names")

    def read(run: str, name: str) -> Scored:
        return read_run(existing(run, "run folder"), name, forced=given.force)

    runs = [read(run, name) for run, name in zip(given.runs, names, strict=True)]
    direct = read(given.direct, "direct") if given.direct else None
    together = [*runs, direct] if direct else runs
    if given.force:
        together = shared(together)
    else:
        check_alike(together)
    runs, direct = together[: len(runs)], together[-1] if direct else None
    if direct:
        check_direct(direct)
    rows = [row(run, runs[0], direct) for run in runs]
    quality = {run.name: quality_of(run, runs[0]) for run in runs}
    tables = markdown(rows, given.force) + by_group(runs) + quality_tables(quality)
    sys.stdout.write(tables)
    if given.out:
        write(Path(given.out), runs, rows, direct, given.force, quality, tables)
    return 0


def row(run: Scored, base: Scored, direct: Scored | None) -> dict[str, Any]:
    """A line of the table: plain numbers and texts by column name."""
    scores = list(run.scores.values())
    line: dict[str, Any] = {
        "run": run.name,
        "questions": len(scores),
        "failed": len(run.failed),
        "strict_em": right(run) / len(asked_of(run)),
        **{f"{name}{end}": one[key] for name, one in run.figures.items() for end, key in ENDS.items()},
        "gold_recall": gold_recall(scores),
        "seconds_median": run.seconds["median"] if run.seconds else None,
        "seconds_p95": run.seconds["p95"] if run.seconds else None,
        **fingerprints(run.identity),
    }
    if run is not base:
        line |= {f"gain_{key}": value for key, value in vars(difference(run, base)).items()}
    if direct is not None:
        line |= search_errors(run, direct)
    return line


def fingerprints(identity: dict[str, Any]) -> dict[str, Any]:
    """What the figures of a run were made with; compare.json holds the whole identity beside them."""
    prompt = identity.get("prompt") or {}
    names = {"harness": identity.get("harness"), "questions_hash": identity.get("questions")}
    return names | {"index": identity.get("index"), "profile": prompt.get("profile"), "prompt_hash": prompt.get("hash")}


def search_errors(run: Scored, direct: Scored) -> dict[str, float | None]:
    """How often the model searches needlessly, and how often it should have searched; both 0 to 1.

    over_search: the share of the questions it answers alone (`known_alone`) for which it still searched.
    under_search: the share of the other questions (`unknown_alone`) to which it gave a wrong answer without a search.
    None where there is no such question.
    """
    known = [run.scores[key] for key, alone in direct.scores.items() if alone.em == 1 and key in run.scores]
    unknown = [run.scores[key] for key, alone in direct.scores.items() if alone.em < 1 and key in run.scores]
    return {
        "over_search": mean(one.searches > 0 for one in known) if known else None,
        "under_search": mean(one.answered and not one.searches and one.em < 1 for one in unknown) if unknown else None,
        "known_alone": len(known),
        "unknown_alone": len(unknown),
    }


def markdown(rows: list[dict[str, Any]], forced: bool = False) -> str:
    """The table as Markdown, percentages with their intervals; with strict EM where a question of any run failed."""
    head = ["run", "questions", "EM", "F1", "cover", "gold found", "answered", "steps", "searches", "tokens"]
    head.append("EM over the first (95 % interval, p)")
    strict = any(line["failed"] for line in rows)
    if strict:
        head += ["strict EM (failed is wrong)", "over the first"]
    if "over_search" in rows[0]:
        head += ["over-search", "under-search"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(_cells(line, strict)) + " |" for line in rows]
    if forced:
        lines += [
            "",
            "Forced: not checked for end, questions, index and harness; over the questions that all runs came to.",
        ]
    return "\n".join(lines) + "\n"


def by_group(runs: list[Scored]) -> str:
    """EM of each run on each group of questions, and of every run but the first its difference from that; "" without
    groups.
    """
    groups = groups_of(runs)
    if not groups:
        return ""
    head = ["EM by kind of question", *(f"{name} ({len(part[0].scores)})" for name, part in groups.items())]
    lines = ["", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for place, run in enumerate(runs):
        cells = [_group_cell(part[place], part[0]) for part in groups.values()]
        lines.append("| " + " | ".join([run.name, *cells]) + " |")
    return "\n".join(lines) + "\n"


def _group_cell(run: Scored, base: Scored) -> str:
    em = _percent(mean(one.em for one in run.scores.values()))
    if run.name == base.name:
        return em
    gain = difference(run, base)
    return f"{em} ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})"


def _cells(line: dict[str, Any], strict: bool) -> list[str]:
    cells = [line["run"], f"{line['questions']}" + (f" (+{line['failed']} failed)" if line["failed"] else "")]
    cells += [_with_range(line, name) for name in ("em", "f1")]
    cells += [_percent(line[name]) for name in ("cover", "gold_recall", "format")]
    cells += [f"{line['steps']:.1f}", f"{line['searches']:.1f}", f"{line['tokens']:,.0f}"]
    if "gain_em" in line:
        span = f"{100 * line['gain_low']:+.1f} to {100 * line['gain_high']:+.1f}"
        cells.append(f"{100 * line['gain_em']:+.1f} ({span}, p {line['gain_p']:.3g})")
    else:
        cells.append("")
    if strict:
        cells += [_percent(line["strict_em"]), f"{100 * line['gain_strict']:+.1f}" if "gain_strict" in line else ""]
    return cells + [
        _share_of(line[name], line[of])
        for name, of in (("over_search", "known_alone"), ("under_search", "unknown_alone"))
        if name in line
    ]


def _with_range(line: dict[str, Any], name: str) -> str:
    low, high = line[f"{name}_low"], line[f"{name}_high"]
    return f"{_percent(line[name])} ({100 * low:.1f} to {100 * high:.1f})"


def _share_of(value: float | None, count: int) -> str:
    return "" if value is None else f"{100 * value:.1f} of {count}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def write(
    out: Path,
    runs: list[Scored],
    rows: list[dict[str, Any]],
    direct: Scored | None,
    forced: bool,
    quality: dict[str, Any],
    tables: str,
) -> None:
    """compare.md, compare.csv, three plots, and compare.json.

    compare.json holds, by the runs' names, the table's rows, every run's difference from every other (in all, and by
    group of questions, `Score.groups`), every run's quality figures and identity; that of the direct run; the harness
    that scored them; and whether it was forced.
    """
    out.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    columns = list(dict.fromkeys(key for line in rows for key in line))
    table = csv.DictWriter(text, columns, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    differences = {
        run.name: {other.name: vars(difference(run, other)) for other in runs if other is not run} for run in runs
    }
    groups = {
        name: {
            run.name: {"questions": len(run.scores), "em": mean(one.em for one in run.scores.values()),
                       "differences": {o.name: vars(difference(run, o)) for o in part if o is not run}}
            for run in part
        }
        for name, part in groups_of(runs).items()
    }  # fmt: skip
    ends = {run.name: Counter([*(one.finish for one in run.scores.values()), *run.failed.values()]) for run in runs}
    pictures = draw(out, rows, ends) if can_draw() else []
    compared = {
        "runs": {line["run"]: line for line in rows},
        "differences": differences,
        "groups": groups,
        "quality": quality,
        "identities": {run.name: run.identity for run in runs},
        "direct": direct.identity if direct else None,
        "scored_with": HARNESS,
        "forced": forced,
    }
    write_json(out / "compare.json", compared)
    shown = "".join(f"\n![{picture}]({picture})\n" for picture in pictures)
    for name, content in (
        ("compare.csv", text.getvalue()),
        ("compare.md", tables + shown),
    ):
        with written_whole(out / name) as stream:
            stream.write(content)


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
