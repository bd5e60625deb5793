"""Scores of predictions, with intervals. `steprag evaluate` scores a run again, without a model."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from inference.predictions import read_predictions
from inference.quality import errors_of, figures, how_counted, read_bertscore, text_scores, write_bertscore, written_by
from inference.scores import HARNESS, Score, gold_recall, interval, mean, score
from steprag.batch.worklist import failures_in
from steprag.cli import guarded
from steprag.config import parse_arguments
from steprag.errors import ConfigError
from steprag.files import existing, write_json
from steprag.runs import checked_manifest, events_of, has_ended
from steprag.types import Usage

AVERAGED = ("em", "f1", "precision", "recall", "cover")
COUNTED = {"format": "answered", "steps": "steps", "searches": "searches", "tokens": "tokens"}
"""Other means over the predictions, and what of a score they are the mean of."""


def main(argv: list[str]) -> int:
    """Runs `steprag evaluate`; returns the exit code."""
    parser = argparse.ArgumentParser(prog="steprag evaluate", description="Score predictions again.")
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
    return 0


def evaluate(run: Path) -> dict[str, Any]:
    """Scores of the run's predictions, also written to metrics.json with what they were made with.

    EM and F1 are means over the predictions (0 to 1), None where there are none; an episode that ended without an
    answer scores 0, for that is what the model did. `figures` has every mean with its n, interval and definition.
    Questions that failed for other reasons are in no mean: `failed` counts them, and `strict_em` has them in its
    denominator. `ended`: whether every question has an outcome; those without are in no figure. Raises ConfigError
    where none has one.
    """
    each, kinds, usage, texts = [], [], Usage(), {}
    bert, likeness = read_bertscore(run)
    for prediction in read_predictions(run):
        each.append(score(prediction))
        texts |= text_scores([prediction], likeness if bert else None)
        kind = prediction.metadata.get("type")
        kinds.append(kind if isinstance(kind, str) else None)
        usage += prediction.usage
    manifest = checked_manifest(run, "identity")
    failed = len(failures_in(run).keys() - {one.id for one in each})
    if not each and not failed:
        raise ConfigError(f"{run} has no predictions to score")
    scores: dict[str, Any] = {
        "scored_with": HARNESS,
        "identity": manifest["identity"],
        "ended": manifest.get("stage") == "serve" or has_ended(manifest, len(each) + failed),
        "questions": len(each) + failed,
        "answered": sum(one.answered for one in each),
        "failed": failed,
        **{f"{name}{end}": value for name in AVERAGED for end, value in _with_interval(each, name)},
        "strict_em": sum(one.em for one in each) / (len(each) + failed),
        "gold_recall": gold_recall(each),
        **{name: mean(getattr(one, of) for one in each) if each else None for name, of in COUNTED.items()},
        "seconds": episode_seconds(run / "metrics.jsonl"),
        "finish": dict(Counter(one.finish for one in each).most_common()),
        "by_type": _by_type(kinds, [one.em for one in each]),
        "usage": vars(usage),
        "figures": figures(each, texts),
        "written": written_by(each),
        "errors": errors_of(each),
        "counted_with": how_counted(bert),
    }
    write_json(run / "metrics.json", scores)
    return scores


def _with_interval(each: list[Score], name: str) -> list[tuple[str, Any]]:
    if not each:
        return [("", None), ("_interval", None)]
    return [("", mean(getattr(one, name) for one in each)), ("_interval", interval(each, name))]


def episode_seconds(events: Path) -> dict[str, float] | None:
    """Median and 95th percentile of an episode's seconds, of those that were played in one go; None without any."""
    whole = (row for row in events_of(events) if row.get("event") == "done" and not row.get("part"))
    seconds = sorted(row["seconds"] for row in whole if "seconds" in row)
    if not seconds:
        return None
    return {"median": seconds[len(seconds) // 2], "p95": seconds[min(len(seconds) - 1, int(0.95 * len(seconds)))]}


def _by_type(kinds: list[str | None], matches: list[float]) -> dict[str, dict[str, float]]:
    """EM by the question's `metadata.type`, where it has one."""
    groups: dict[str, list[float]] = {}
    for kind, match in zip(kinds, matches, strict=True):
        if kind:
            groups.setdefault(kind, []).append(match)
    return {kind: {"questions": len(group), "em": sum(group) / len(group)} for kind, group in sorted(groups.items())}


def table(scores: dict[str, Any]) -> str:
    """The scores in a few readable lines."""
    head = f"questions  {scores['questions']} ({scores['answered']} answered, {scores['failed']} failed)"
    if not scores["ended"]:
        head += "\nunfinished the run did not come to its end: run it again to go on"
    if scores["em"] is None:
        return f"{head}\nno question has a prediction; failures.jsonl says why"
    lines = [
        head,
        f"EM         {_percent(scores['em'], scores['em_interval'])}",
        *([f"strict EM  {100 * scores['strict_em']:.1f} (failed questions are wrong)"] if scores["failed"] else []),
        f"F1         {_percent(scores['f1'], scores['f1_interval'])}",
        f"cover EM   {_percent(scores['cover'], scores['cover_interval'])}",
        f"tokens     {scores['tokens']:,.0f} an episode",
        f"steps      {scores['steps']:.1f} an episode, {scores['searches']:.1f} searches",
    ]
    if scores["gold_recall"] is not None:
        lines.append(f"gold       {100 * scores['gold_recall']:.1f} % of the marked passages were found")
    lines += [
        f"EM {kind:<12} {100 * part['em']:.1f} of {part['questions']}" for kind, part in scores["by_type"].items()
    ]
    return "\n".join([*lines, *_quality_lines(scores)])


def _quality_lines(scores: dict[str, Any]) -> list[str]:
    """Words and forms of the answers, in a line each."""
    told, kept = scores["figures"], scores["written"]
    lines = [
        f"{told[name]['label']:<10} {_percent(told[name]['value'], (told[name]['low'], told[name]['high']))}"
        for name in ("rouge_l", "bleu", "bertscore")
        if name in told
    ]
    if kept["n"]:
        actions = ", ".join(f"{one['action']} {100 * one['value']:.1f} of {one['n']}" for one in kept["actions"])
        lines.append(f"grammar    {_percent(kept['value'], (kept['low'], kept['high']))} of {kept['n']} completions "
                     f"follow it: {actions}")  # fmt: skip
    lines.append("errors     " + ", ".join(f"{kind} {count}" for kind, count in scores["errors"].items()))
    if "missing" in scores["counted_with"]:
        lines.append(scores["counted_with"]["missing"])
    return lines


def _percent(value: float, interval: tuple[float, float]) -> str:
    return f"{100 * value:.1f} (95 % interval {100 * interval[0]:.1f} to {100 * interval[1]:.1f})"


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
