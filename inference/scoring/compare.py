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

from inference.scoring.runs_compared import (
    Scored,
    check_alike,
    check_direct,
    difference,
    groups_of,
    quality,
    read_run,
    row,
    shared,
)
from inference.scoring.scores import HARNESS, mean
from inference.scoring.tables import by_group, draw, main_table, quality_tables
from steprag.config.load import parse_arguments
from steprag.console.plots import can_draw
from steprag.console.progress import say_next
from steprag.errors import ConfigError, quoted
from steprag.records.jsonl import existing, write_json, written_whole


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag compare", description="Runs of steprag infer, side by side.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders; differences are from the first")
    parser.add_argument("--names", nargs="+", metavar="NAME", help="what to call them [the folders' names]")
    parser.add_argument(
        "--direct", metavar="RUN", help="the base model without searching: separates over-search from under-search"
    )
    parser.add_argument("--out", metavar="DIR", help="folder for compare.md, .csv, .json and the plots")
    parser.add_argument("--force", action="store_true", help="compare runs that are unfinished or of other questions")
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
    told = {run.name: quality(run, runs[0]) for run in runs}
    tables = main_table(rows, given.force) + by_group(runs) + quality_tables(told)
    sys.stdout.write(tables)
    if given.out:
        write(Path(given.out), runs, rows, direct, given.force, told, tables)
    say_next("view", *given.runs)
    return 0


def write(
    out: Path,
    runs: list[Scored],
    rows: list[dict[str, Any]],
    direct: Scored | None,
    forced: bool,
    told: dict[str, Any],
    tables: str,
) -> None:
    """compare.md, compare.csv, five pictures, and compare.json.

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
    errors = {name: Counter(one["errors"]) for name, one in told.items()}
    pictures = draw(out, rows, ends, errors) if can_draw() else []
    compared = {
        "runs": {line["run"]: line for line in rows},
        "differences": differences,
        "groups": groups,
        "quality": told,
        "identities": {run.name: run.identity for run in runs},
        "direct": direct.identity if direct else None,
        "scored_with": HARNESS,
        "forced": forced,
    }
    write_json(out / "compare.json", compared)
    shown = "".join(f"\n![{picture}]({picture})\n" for picture in pictures)
    for name, content in (("compare.csv", text.getvalue()), ("compare.md", tables + shown)):
        with written_whole(out / name) as stream:
            stream.write(content)
