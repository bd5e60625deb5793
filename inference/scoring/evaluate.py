"""Scores of predictions, with intervals. `steprag score evaluate` scores a run again, without a model."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from inference.predictions import read_predictions
from inference.scoring.bertscore import with_bertscore, write_bertscore
from inference.scoring.figures import figures, quality_of, shown
from inference.scoring.scores import HARNESS, Score, mean, word_score
from steprag.agent.profiles import told_grammar
from steprag.batch.worklist import failures_in
from steprag.config.load import parse_arguments
from steprag.console.progress import say_next
from steprag.errors import ConfigError
from steprag.records.jsonl import existing, write_json
from steprag.runs.run import checked_manifest, events_of, has_ended
from steprag.types import Usage

FLAT = ("em", "f1", "precision", "recall", "cover")
"""Figures that metrics.json has by themselves too, with their intervals."""
FLAT_MEANS = ("gold_recall", "format", "steps", "searches", "tokens")
"""Those that it has without."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag score evaluate", description="Score predictions again.")
    parser.add_argument("--predictions", required=True, metavar="RUN", help="run folder of steprag infer")
    parser.add_argument("--json", action="store_true", help="scores as JSON on standard output")
    parser.add_argument("--bertscore", metavar="MODEL", help="score by BERTScore too, which loads a model: minilm (the "
                        "embedded encoder), a folder or a hub id")  # fmt: skip
    parser.add_argument("--bertscore_layer", type=int, metavar="N", help="the model's layer that counts [the last]")
    arguments = parse_arguments(parser, argv)
    run = existing(arguments.predictions, "run folder")
    if arguments.bertscore:
        write_bertscore(run, arguments.bertscore, arguments.bertscore_layer)
    scores = evaluate(run)
    sys.stdout.write((json.dumps(scores, indent=2) if arguments.json else table(scores)) + "\n")
    say_next("view", run)
    return 0


def evaluate(run: Path) -> dict[str, Any]:
    """Scores of the run's predictions, also written to metrics.json with what they were made with.

    EM and F1 are means over the predictions (0 to 1), None where there are none; an episode that ended without an
    answer scores 0, for that is what the model did. `figures` has every mean with its n, interval and definition.
    Questions that failed for other reasons are in no mean: `failed` counts them, and `strict_em` has them in its
    denominator. `ended`: whether every question has an outcome; those without are in no figure. Raises ConfigError
    where none has one.
    """
    each, usage = [], Usage()
    for prediction in read_predictions(run):
        each.append(word_score(prediction))
        usage += prediction.usage
    each, bert = with_bertscore(run, each)
    manifest = checked_manifest(run, "identity")
    told_grammar(manifest)
    failed = len(failures_in(run).keys() - {one.id for one in each})
    if not each and not failed:
        raise ConfigError(f"{run} has no predictions to score")
    told = figures(each)
    scores: dict[str, Any] = {
        "scored_with": HARNESS,
        "identity": manifest["identity"],
        "ended": manifest.get("stage") == "serve" or has_ended(manifest, len(each) + failed),
        "questions": len(each) + failed,
        "answered": sum(one.answered for one in each),
        "failed": failed,
        **{f"{name}{end}": value for name in FLAT for end, value in _with_interval(told.get(name))},
        "strict_em": sum(one.em for one in each) / (len(each) + failed),
        **{name: told[name]["value"] if name in told else None for name in FLAT_MEANS},
        "seconds": episode_seconds(run / "metrics.jsonl"),
        "finish": dict(Counter(one.finish for one in each).most_common()),
        "by_type": _by_type(each),
        "usage": usage.shown,
        **quality_of(each, told, bert),
    }
    write_json(run / "metrics.json", scores)
    return scores


def _with_interval(figure: dict[str, Any] | None) -> list[tuple[str, Any]]:
    return [("", figure and figure["value"]), ("_interval", figure and (figure["low"], figure["high"]))]


def episode_seconds(events: Path) -> dict[str, float] | None:
    """Median and 95th percentile of an episode's seconds, of those that were played in one go; None without any."""
    whole = (row for row in events_of(events) if row.get("event") == "done" and not row.get("part"))
    seconds = sorted(row["seconds"] for row in whole if "seconds" in row)
    if not seconds:
        return None
    return {"median": median(seconds), "p95": seconds[min(len(seconds) - 1, int(0.95 * len(seconds)))]}


def _by_type(scores: list[Score]) -> dict[str, dict[str, float]]:
    """EM by the question's `metadata.type`, where it has one."""
    groups: dict[str, list[float]] = defaultdict(list)
    for one in scores:
        for kind in one.groups[:-1]:
            groups[kind].append(one.em)
    return {kind: {"questions": len(group), "em": mean(group)} for kind, group in sorted(groups.items())}


def table(scores: dict[str, Any]) -> str:
    """The scores in a few readable lines."""
    told = scores["figures"]
    lines = [f"questions  {scores['questions']} ({scores['answered']} answered, {scores['failed']} failed)"]
    if not scores["ended"]:
        lines[0] += "\nunfinished the run did not come to its end: run it again to continue"
    if not told:
        return f"{lines[0]}\nno question has a prediction; failures.jsonl says why"
    strict = f"strict EM  {shown('share', scores['strict_em'])} (failed questions are wrong)"
    lines += [_line(told["em"]), *([strict] if scores["failed"] else []), _line(told["f1"]), _line(told["cover"])]
    lines.append(f"tokens     {scores['tokens']:,.0f} an episode")
    lines.append(f"steps      {scores['steps']:.1f} an episode, {scores['searches']:.1f} searches")
    if "gold_recall" in told:
        lines.append(f"gold       {shown('share', scores['gold_recall'])} % of the marked passages were found")
    lines += [f"EM {kind:<12} {shown('share', part['em'])} of {part['questions']}"
              for kind, part in scores["by_type"].items()]  # fmt: skip
    lines += [_line(told[name]) for name in ("rouge_l", "bleu", "bertscore") if name in told]
    kept = scores["written"]
    if kept["n"]:
        actions = ", ".join(f"{one['action']} {shown('share', one['value'])} of {one['n']}" for one in kept["actions"])
        lines.append(f"{_line({'label': 'grammar', **kept})} of {kept['n']} completions follow it: {actions}")
    lines.append("errors     " + ", ".join(f"{kind} {count}" for kind, count in scores["errors"].items()))
    lines += [scores["counted_with"]["missing"]] if "missing" in scores["counted_with"] else []
    return "\n".join(lines)


def _line(one: dict[str, Any]) -> str:
    """A figure that is a share, in percent with its interval."""
    value, low, high = (shown("share", one[key]) for key in ("value", "low", "high"))
    return f"{one['label']:<10} {value} (95 % interval {low} to {high})"
