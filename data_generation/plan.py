"""`steprag plan`: calls, tokens, dollars and minutes of a generation run, before anything is spent.

From the recipe alone it can only say what a tree costs at most. Given a run of the same recipe over a few questions
(`--like`), it forecasts from that run's trees: their means times the questions, with the bootstrap's interval.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_generation.config import GenerateConfig
from steprag.budget import dollars
from steprag.cli import guarded
from steprag.config import add_options, config_from, parse_arguments
from steprag.errors import ConfigError
from steprag.files import existing, read_questions, read_records, read_rows
from steprag.runs import read_manifest
from steprag.stats import mean_interval
from steprag.types import Tree


@dataclass(frozen=True)
class Forecast:
    """What a whole run takes: the expected amount and a 95 % interval, from `trees` trees of an earlier run."""

    what: str
    amount: float
    low: float
    high: float


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag plan", description="What a generation run will cost")
    parser.add_argument("--questions", required=True, metavar="FILE", help="questions, JSON Lines")
    parser.add_argument("--like", metavar="RUN", help="a run of the same recipe over some questions, to forecast from")
    parser.add_argument("--json", action="store_true", help="the forecast as JSON")
    add_options(parser, GenerateConfig)
    given = parse_arguments(parser, argv)
    config = config_from(GenerateConfig, given)
    count = len(read_questions(existing(given.questions, "question file"))[: config.limit])
    report: dict[str, Any] = {"questions": count, "calls_at_most": count * most_calls(config)}
    if given.like:
        report["forecast"] = [vars(line) for line in forecast(config, count, Path(given.like))]
    sys.stdout.write(json.dumps(report, indent=2) + "\n" if given.json else _table(report))
    return 0


def most_calls(config: GenerateConfig) -> int:
    """The calls that no tree exceeds: every iteration as deep as can be, and the judge's second tries."""
    search = config.search
    steps = search.depth if search.play else 1
    asked = search.children if config.reward.judged else 0
    most = (search.rollouts + search.extra) * (steps + 2 * asked * (steps if search.play else 1))
    return min(most, config.tree.calls + search.wave * steps) if config.tree.calls else most


def forecast(config: GenerateConfig, count: int, like: Path) -> list[Forecast]:
    """Totals for `count` questions from the trees of the run `like`. Raises ConfigError where it does not fit."""
    manifest = read_manifest(existing(like, "run folder"))
    for section in ("search", "reward"):
        if manifest["config"].get(section) != getattr(config, section).model_dump():
            raise ConfigError(f"{like} was made with another {section}.* configuration; a forecast needs the same")
    trees = [tree.usage for tree in read_records(like / "trees.jsonl", Tree)]
    if len(trees) < 2:
        raise ConfigError(f"{like} has {len(trees)} finished trees; a forecast needs two, and ten to be of use")
    amounts: dict[str, list[float]] = {
        "calls": [usage.calls for usage in trees],
        "prompt tokens": [usage.prompt_tokens for usage in trees],
        "of them cached": [usage.cached_tokens for usage in trees],
        "completion tokens": [usage.completion_tokens for usage in trees],
        "dollars": [dollars(usage, config.policy.price) for usage in trees],
    }
    lines = [_total(what, each, count) for what, each in amounts.items()]
    seconds = _seconds(like / "metrics.jsonl")
    if seconds:
        calls = lines[0]
        pace = seconds / sum(amounts["calls"]) / 60
        lines.append(Forecast("minutes", calls.amount * pace, calls.low * pace, calls.high * pace))
    return lines


def _total(what: str, each: list[float], count: int) -> Forecast:
    low, high = mean_interval(each)
    return Forecast(what, count * sum(each) / len(each), count * low, count * high)


def _seconds(metrics: Path) -> float:
    """From the first finished tree's start to the last one's end, as far as the run's events tell."""
    times = [datetime.datetime.fromisoformat(row["time"]) for _, row in read_rows(metrics) if row.get("event")]
    return (times[-1] - times[0]).total_seconds() * len(times) / (len(times) - 1) if len(times) > 1 else 0.0


def _table(report: dict[str, Any]) -> str:
    lines = [f"questions          {report['questions']:,}", f"calls, at most     {report['calls_at_most']:,}"]
    for line in report.get("forecast", ()):
        amounts = "".join(f"{line[key]:>14,.2f}" for key in ("amount", "low", "high"))
        lines.append(f"{line['what']:<18}{amounts}")
    if "forecast" in report:
        lines.insert(2, f"{'':<18}{'expected':>14}{'95 % from':>14}{'to':>14}")
    else:
        lines.append("For a forecast, search ten questions (--limit 10) and give that run as --like.")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
