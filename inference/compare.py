"""`steprag compare RUN RUN …`: scores side by side, each with its interval and its difference from the first run.

Writes compare.md, compare.csv, compare.json and plots. Runs of other questions, another index or another harness are
refused unless forced: their figures do not belong in one table. A forced one holds the questions that all runs share,
and says that it was forced.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from inference.evaluate import episode_seconds
from inference.plots import draw
from inference.scores import Score, gold_recall, interval, mean, score
from steprag.cli import guarded
from steprag.config import parse_arguments
from steprag.errors import ConfigError
from steprag.files import existing, read_records, write_json, written_whole
from steprag.questions import FAILED
from steprag.runs import read_manifest
from steprag.stats import mcnemar, mean_interval
from steprag.types import Failure, Prediction

ALIKE = ("questions", "index", "harness")
"""Keys of a run's identity that must be equal in all runs of one table."""


@dataclass(frozen=True)
class Scored:
    """A run with its scores by question id; `failed` are the questions that have none, and why (the error's class).

    `seconds`: an episode's median and 95th percentile, None where the run did not note them.
    """

    name: str
    identity: dict[str, Any]
    scores: dict[str, Score]
    failed: dict[str, str]
    seconds: dict[str, float] | None = None


@dataclass(frozen=True)
class Difference:
    """EM of a run less that of the first, on the `questions` that both answered, in points of 1.

    `p`: exact McNemar test of the same questions; `better`, `worse`: questions that only one of both got right.
    `strict`: the same difference over all questions of either run, those that failed in one counted as wrong there.
    """

    em: float
    low: float
    high: float
    p: float
    better: int
    worse: int
    questions: int
    strict: float


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
    together = [*runs, direct] if direct else runs
    if given.force:
        together = shared(together)
    else:
        check_alike(together)
    runs, direct = together[: len(runs)], together[-1] if direct else None
    if direct:
        check_direct(direct)
    rows = [row(run, runs[0], direct) for run in runs]
    sys.stdout.write(markdown(rows, given.force))
    if given.out:
        write(Path(given.out), runs, rows, given.force)
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
    failures = folder / FAILED
    failed = {one.id: one.reason for one in read_records(failures, Failure)} if failures.exists() else {}
    return Scored(name, manifest["identity"], scores, failed, episode_seconds(folder / "metrics.jsonl"))


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
        if asked_of(run) != asked_of(first):
            raise ConfigError(
                f"{first.name} and {run.name} have other questions (see limit, sample and seed); "
                "--force compares the shared"
            )


def asked_of(run: Scored) -> set[str]:
    return run.scores.keys() | run.failed.keys()


def shared(runs: list[Scored]) -> list[Scored]:
    """The runs with the questions that all of them were asked, and no others. Raises ConfigError where that is none."""
    common = set.intersection(*map(asked_of, runs))
    cut = [
        replace(
            run,
            scores={key: value for key, value in run.scores.items() if key in common},
            failed={key: value for key, value in run.failed.items() if key in common},
            seconds=run.seconds if asked_of(run) == common else None,
        )
        for run in runs
    ]
    if empty := next((run.name for run in cut if not run.scores), None):
        raise ConfigError(f"{empty} answered no question that all runs share")
    return cut


def check_direct(direct: Scored) -> None:
    if searched := sum(one.searches > 0 for one in direct.scores.values()):
        raise ConfigError(
            f"--direct searched for {searched} of its questions: over-search is told by a run that does not search "
            "(--prompt.profile direct, or --search.depth 1)"
        )


def difference(run: Scored, base: Scored) -> Difference:
    """Raises ConfigError where the runs share no question."""
    both = [key for key in base.scores if key in run.scores]
    if not both:
        raise ConfigError(f"{run.name} and {base.name} share no question")
    gains = [run.scores[key].em - base.scores[key].em for key in both]
    low, high = mean_interval(gains)
    better, worse = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    strict = (right(run) - right(base)) / len(asked_of(run) | asked_of(base))
    return Difference(mean(gains), low, high, mcnemar(better, worse), better, worse, len(both), strict)


def right(run: Scored) -> float:
    return sum(one.em for one in run.scores.values())


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
        "strict_em": right(run) / len(asked_of(run)),
        "precision": mean(one.precision for one in scores),
        "recall": mean(one.recall for one in scores),
        "cover": mean(one.cover for one in scores),
        "gold_recall": gold_recall(scores),
        "answered": mean(one.answered for one in scores),
        "steps": mean(one.steps for one in scores),
        "searches": mean(one.searches for one in scores),
        "tokens": mean(one.tokens for one in scores),
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
    """over_search: of the questions that the model answers alone (`known_alone`), the share that it searched for all
    the same; under_search: of those that it does not (`unknown_alone`), the share to which it gave a wrong answer
    without a search. None of no question.
    """
    known = [run.scores[key] for key, alone in direct.scores.items() if alone.em and key in run.scores]
    unknown = [run.scores[key] for key, alone in direct.scores.items() if not alone.em and key in run.scores]
    return {
        "over_search": mean(one.searches > 0 for one in known) if known else None,
        "under_search": mean(one.answered and not one.searches and not one.em for one in unknown) if unknown else None,
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
            "Forced: not checked for the same questions, index and harness; over the questions that all were asked.",
        ]
    return "\n".join(lines) + "\n"


def _cells(line: dict[str, Any], strict: bool) -> list[str]:
    cells = [line["run"], f"{line['questions']}" + (f" (+{line['failed']} failed)" if line["failed"] else "")]
    cells += [_with_range(line, name) for name in ("em", "f1")]
    cells += [_percent(line[name]) for name in ("cover", "gold_recall", "answered")]
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


def write(out: Path, runs: list[Scored], rows: list[dict[str, Any]], forced: bool = False) -> None:
    """compare.md, compare.csv, three plots, and compare.json: the table's rows, every run's difference from every
    other and every run's identity, by their names, and whether the comparison was forced.
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
    ends = {run.name: Counter([*(one.finish for one in run.scores.values()), *run.failed.values()]) for run in runs}
    pictures = draw(out, rows, ends)
    compared = {
        "runs": {line["run"]: line for line in rows},
        "differences": differences,
        "identities": {run.name: run.identity for run in runs},
        "forced": forced,
    }
    write_json(out / "compare.json", compared)
    for name, content in (
        ("compare.csv", text.getvalue()),
        ("compare.md", markdown(rows, forced) + "".join(f"\n![{picture}]({picture})\n" for picture in pictures)),
    ):
        with written_whole(out / name) as stream:
            stream.write(content)


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
