"""`steprag compare RUN RUN …`: scores side by side, each with its interval and its difference from the first run.

Writes compare.md, compare.csv, compare.json and plots. Runs of other questions, another index or another harness are
refused unless forced: their figures do not belong in one table.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.plots import draw
from inference.scores import Score, gold_recall, interval, mean, score
from steprag.cli import guarded
from steprag.config import parse_arguments
from steprag.errors import ConfigError
from steprag.files import existing, read_records, write_json, written_whole
from steprag.questions import failures_in
from steprag.runs import read_manifest
from steprag.stats import mcnemar, mean_interval
from steprag.types import Prediction

ALIKE = ("questions", "index", "harness")
"""Keys of a run's identity that must be equal in all runs of one table."""


@dataclass(frozen=True)
class Scored:
    """A run with its scores by question id; `failed` are the questions that have none."""

    name: str
    identity: dict[str, Any]
    scores: dict[str, Score]
    failed: set[str]


@dataclass(frozen=True)
class Difference:
    """EM of a run less that of the first, on the `questions` that both answered, in points of 1.

    `p`: exact McNemar test of the same questions; `better`, `worse`: questions that only one of both got right.
    """

    em: float
    low: float
    high: float
    p: float
    better: int
    worse: int
    questions: int


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag compare", description="Runs of steprag infer, side by side.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders; differences are from the first")
    parser.add_argument("--names", nargs="+", metavar="NAME", help="what to call them [the folders' names]")
    parser.add_argument(
        "--direct", metavar="RUN", help="the same model without searching: tells over- from under-search"
    )
    parser.add_argument("--out", metavar="DIR", help="folder for compare.md, .csv, .json and the plots")
    parser.add_argument("--force", action="store_true", help="compare runs of different questions, index or harness")
    given = parse_arguments(parser, argv)
    names = given.names or [Path(run).name for run in given.runs]
    if len(names) != len(given.runs):
        raise ConfigError(f"{len(given.runs)} runs, {len(names)} names")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"two runs are called {twice!r}; tell them apart with --names")
    runs = [read_run(existing(run, "run folder"), name) for run, name in zip(given.runs, names, strict=True)]
    direct = read_run(existing(given.direct, "run folder"), "direct") if given.direct else None
    if not given.force:
        check_alike([*runs, direct] if direct else runs)
    rows = [row(run, runs[0], direct) for run in runs]
    sys.stdout.write(markdown(rows))
    if given.out:
        write(Path(given.out), runs, rows)
    return 0


def read_run(folder: Path, name: str) -> Scored:
    """Raises ConfigError where the folder is not a run of steprag infer or holds no predictions."""
    manifest = read_manifest(folder)
    if manifest.get("stage") != "infer":
        raise ConfigError(f"{folder} is a run of {manifest.get('stage')!r}, not of 'infer'")
    predictions = read_records(existing(folder / "predictions.jsonl", "predictions of the run"), Prediction)
    scores = {one.id: score(one) for one in predictions}
    if not scores:
        raise ConfigError(f"{folder} has no predictions to compare")
    return Scored(name, manifest["identity"], scores, failures_in(folder))


def check_alike(runs: list[Scored]) -> None:
    first = runs[0]
    for run in runs[1:]:
        for key in ALIKE:
            one, other = first.identity.get(key), run.identity.get(key)
            if one != other:
                raise ConfigError(
                    f"{first.name} and {run.name} differ in {key} ({one} and {other}): not one table; --force compares "
                    "them all the same"
                )
        if run.scores.keys() | run.failed != first.scores.keys() | first.failed:
            raise ConfigError(
                f"{first.name} and {run.name} have other questions (see limit); --force compares the shared"
            )


def difference(run: Scored, base: Scored) -> Difference:
    """Raises ConfigError where the runs share no question."""
    shared = [key for key in base.scores if key in run.scores]
    if not shared:
        raise ConfigError(f"{run.name} and {base.name} share no question")
    gains = [run.scores[key].em - base.scores[key].em for key in shared]
    low, high = mean_interval(gains)
    better, worse = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    return Difference(mean(gains), low, high, mcnemar(better, worse), better, worse, len(shared))


def row(run: Scored, base: Scored, direct: Scored | None) -> dict[str, Any]:
    """A line of the table: plain numbers and texts by column name."""
    scores = list(run.scores.values())
    (em_low, em_high), (f1_low, f1_high) = interval(scores, "em"), interval(scores, "f1")
    line: dict[str, Any] = {
        "run": run.name,
        "questions": len(scores),
        "failed": len(run.failed),
        "em": mean(one.em for one in scores),
        "em_low": em_low,
        "em_high": em_high,
        "f1": mean(one.f1 for one in scores),
        "f1_low": f1_low,
        "f1_high": f1_high,
        "cover": mean(one.cover for one in scores),
        "gold_recall": gold_recall(scores),
        "answered": mean(one.answered for one in scores),
        "steps": mean(one.steps for one in scores),
        "searches": mean(one.searches for one in scores),
        "tokens": mean(one.tokens for one in scores),
    }
    if run is not base:
        line |= {f"gain_{key}": value for key, value in vars(difference(run, base)).items()}
    if direct is not None:
        line |= search_errors(run, direct)
    return line


def search_errors(run: Scored, direct: Scored) -> dict[str, float | None]:
    """over_search: of the questions that the model answers alone, the share that it searched for all the same;
    under_search: of those that it does not, the share that it answered wrongly without a search. None of no question.
    """
    known = [run.scores[key] for key, alone in direct.scores.items() if alone.em and key in run.scores]
    unknown = [run.scores[key] for key, alone in direct.scores.items() if not alone.em and key in run.scores]
    return {
        "over_search": mean(one.searches > 0 for one in known) if known else None,
        "under_search": mean(one.searches == 0 and not one.em for one in unknown) if unknown else None,
    }


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table as Markdown, percentages with their intervals."""
    head = ["run", "questions", "EM", "F1", "cover", "gold found", "answered", "steps", "searches", "tokens"]
    head.append("EM over the first (95 % interval, p)")
    if "over_search" in rows[0]:
        head += ["over-search", "under-search"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(_cells(line)) + " |" for line in rows]) + "\n"


def _cells(line: dict[str, Any]) -> list[str]:
    cells = [line["run"], f"{line['questions']}" + (f" (+{line['failed']} failed)" if line["failed"] else "")]
    cells += [_with_range(line, name) for name in ("em", "f1")]
    cells += [_percent(line[name]) for name in ("cover", "gold_recall", "answered")]
    cells += [f"{line['steps']:.1f}", f"{line['searches']:.1f}", f"{line['tokens']:,.0f}"]
    if "gain_em" in line:
        span = f"{100 * line['gain_low']:+.1f} to {100 * line['gain_high']:+.1f}"
        cells.append(f"{100 * line['gain_em']:+.1f} ({span}, p {line['gain_p']:.3g})")
    else:
        cells.append("")
    return cells + [_percent(line[name]) for name in ("over_search", "under_search") if name in line]


def _with_range(line: dict[str, Any], name: str) -> str:
    low, high = line[f"{name}_low"], line[f"{name}_high"]
    return f"{_percent(line[name])} ({100 * low:.1f} to {100 * high:.1f})"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def write(out: Path, runs: list[Scored], rows: list[dict[str, Any]]) -> None:
    """compare.md, compare.csv, three plots, and compare.json: the table's rows and every run's difference from every
    other, by their names.
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
    ends = {run.name: Counter(one.finish for one in run.scores.values()) for run in runs}
    pictures = draw(out, rows, ends)
    write_json(out / "compare.json", {"runs": {line["run"]: line for line in rows}, "differences": differences})
    for name, content in (
        ("compare.csv", text.getvalue()),
        ("compare.md", markdown(rows) + "".join(f"\n![{picture}]({picture})\n" for picture in pictures)),
    ):
        with written_whole(out / name) as stream:
            stream.write(content)


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
