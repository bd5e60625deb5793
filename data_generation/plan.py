"""`steprag plan`: calls, tokens, dollars and minutes of a generation run, before anything is spent.

From the recipe alone it says what a tree costs at most: every call there can be, each with the longest prompt and
reply; how long that takes at the pace that is given, or that the recipe bounds; and what trees are likely to cost, as
they did elsewhere. Given a run of the same recipe over a few questions (`--like`), it forecasts from that run's trees:
their means times the questions, with the bootstrap's interval. Given the whole run too (`--took`), it says how far off
the forecast was.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data_generation.config import GenerateConfig
from steprag.agent.belief import MOST_ANSWERS
from steprag.agent.open import longest_prompt
from steprag.agent.profiles import load_profile
from steprag.batch.datasets import add_dataset_options, chosen_file
from steprag.batch.journal import JOURNAL, Journal
from steprag.batch.results import places_of
from steprag.batch.tree_results import TREES
from steprag.config.load import add_options, config_from, parse_arguments
from steprag.console.progress import say
from steprag.console.terminal import guarded
from steprag.errors import ConfigError
from steprag.policy.budget import Spending, dollars, prices_of
from steprag.records.inputs import read_questions
from steprag.records.jsonl import existing
from steprag.runs.run import events_of, read_manifest
from steprag.scores.stats import mean_interval
from steprag.types import Question, Usage

UNPRICED = "no price given (policy.price.*, judge.price.*)"
UNPACED = "no pace given (--pace TOKENS_A_SECOND, or policy.rate.*)"
LIKELY_SHARE = {"default": 0.16, "fast": 0.59, "reasonrag": 0.53}
"""Of the calls that a tree of a preset may take, where one request gives all its samples, those that it took:
docs/figures/search.md, "Pairs a call, by preset".
"""
STEP_TOKENS, GROWN = 35, 0.28
"""Of the shipped trees: tokens of a step, and by how much of its longest growth a prompt has grown on average."""
JUDGED_TOKENS = 300
"""Of a judge's prompt: question, golden answers, answer."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag plan", description="What a generation run will cost")
    add_dataset_options(parser, "train, else the first there is")
    parser.add_argument("--like", metavar="RUN", help="a run of the same recipe over some questions, to forecast from")
    parser.add_argument("--took", metavar="RUN", help="the run that was forecast: says how far off the forecast was")
    parser.add_argument("--pace", type=float, metavar="N", help="tokens a second that the engine was seen to work at")
    parser.add_argument("--json", action="store_true", help="the forecast as JSON")
    add_options(parser, GenerateConfig)
    given = parse_arguments(parser, argv)
    config = config_from(GenerateConfig, given)
    questions = read_questions(chosen_file(given, learning=True))[: config.limit]
    count = len(questions)
    if given.pace is not None and not given.pace > 0:
        raise ConfigError(f"--pace {given.pace:g}: give tokens a second, more than 0")
    used = most_usage(config, most_calls(config), questions)
    whole = sum(used.values(), Usage())
    report: dict[str, Any] = {
        "questions": count,
        "calls_at_most": whole.calls,
        "prompt_tokens_at_most": whole.prompt_tokens,
        "completion_tokens_at_most": whole.completion_tokens,
        "dollars_at_most": most_dollars(config, used),
        "hours_at_most": most_hours(config, used, given.pace),
    }
    likely = likely_usage(config, count)
    report["likely"] = {**vars(sum(likely.values(), Usage())), "dollars": most_dollars(config, likely)}
    if given.like:
        report["forecast"] = forecast(config, count, Path(given.like))
    if given.took:
        _compare(report, amounts_of(existing(given.took, "run folder"), config))
    sys.stdout.write(json.dumps(report, indent=2) + "\n" if given.json else _table(report))
    return 0


def most_calls(config: GenerateConfig, *, split: bool = True) -> dict[str, int]:
    """The calls by role that no tree exceeds: every iteration as deep as can be, where `split` an endpoint that gives
    one completion a request, the judge's second tries, and the beliefs of all states.
    """
    search = config.search
    width = min(search.siblings or search.children, search.children) if split else 1
    steps = config.episode.depth if search.play else 1
    samples, tries = (search.rollouts + search.extra) * steps * width, 2 if config.reward.judged else 0
    policy, both = samples, samples * (1 + tries)
    if config.tree.calls:
        wave = search.wave * steps * width
        policy, both = min(samples, config.tree.calls + wave), min(both, config.tree.calls + wave * (1 + tries))
    return {"policy": policy, "judge": both - policy, "score": MOST_ANSWERS * (1 + samples) if search.score else 0}


def most_usage(config: GenerateConfig, calls: dict[str, int], questions: list[Question]) -> dict[str, Usage]:
    """What all questions use by role, at so many calls a tree, each with the longest prompt of an episode and the
    longest reply.
    """
    policy = config.policy
    profile, episode = load_profile(config.prompt.profile, config.prompt.examples), config.episode
    longest = max((question.question for question in questions), key=len, default="")
    prompt = longest_prompt(profile, episode.depth, episode.top_k, policy.max_tokens, longest)
    return _usage(config, {role: len(questions) * count for role, count in calls.items()}, prompt, policy.max_tokens)


def _usage(config: GenerateConfig, calls: dict[str, int], prompt: int, reply: int) -> dict[str, Usage]:
    """What so many calls of each role use, where the policy has such prompts and replies, in tokens."""
    sizes = {role: (prompt, reply) for role in calls} | {"judge": (JUDGED_TOKENS, config.judge.max_tokens)}
    return {role: Usage(count, *(count * each for each in sizes[role])) for role, count in calls.items() if count}


def likely_usage(config: GenerateConfig, count: int) -> dict[str, Usage]:
    """What `count` questions are likely to use by role, within a factor of two, as trees did elsewhere."""
    profile, search = load_profile(config.prompt.profile, config.prompt.examples), config.search
    start = longest_prompt(profile, 1, 0, STEP_TOKENS)
    grown = longest_prompt(profile, config.episode.depth, config.episode.top_k, STEP_TOKENS) - start
    most, share = most_calls(config, split=False), count * LIKELY_SHARE[search.preset]
    calls = {role: round(share * each) for role, each in most.items()}
    return _usage(config, calls, round(start + GROWN * grown), STEP_TOKENS * (search.siblings or search.children))


def most_dollars(config: GenerateConfig, used: dict[str, Usage]) -> float | None:
    """What so much use costs; None where a role that is asked has no price."""
    prices = prices_of(config.policy, config.judge if config.reward.judged else None)
    if not all(prices[role].known for role in used):
        return None
    return sum(dollars(each, prices[role]) for role, each in used.items())


def most_hours(config: GenerateConfig, used: dict[str, Usage], pace: float | None) -> float | None:
    """How long so much use takes at `pace` tokens a second, or at the limits that the recipe sets its endpoint; None
    where neither is told.
    """
    if pace is not None:
        return sum(each.prompt_tokens + each.completion_tokens for each in used.values()) / pace / 3600
    minutes = []
    for rate, roles in ((config.policy.rate, ("policy", "score")), (config.judge.rate, ("judge",))):
        whole = sum((used[role] for role in roles if role in used), Usage())
        minutes += [whole.calls / rate.requests] if rate.requests else []
        minutes += [(whole.prompt_tokens + whole.completion_tokens) / rate.tokens] if rate.tokens else []
    return max(minutes, default=0) / 60 or None


def forecast(config: GenerateConfig, count: int, like: Path) -> list[dict[str, Any]]:
    """What `count` questions take: the amount and a 95 % interval, from the trees of the run `like`.

    Raises ConfigError where that was made by another recipe, or has fewer than two trees.
    """
    amounts = amounts_of(existing(like, "run folder"), config)
    trees = len(amounts["calls"])
    if trees < 2:
        raise ConfigError(f"{like} has {trees} finished trees; a forecast needs two, and ten to be of use")
    return [_total(what, each, count) for what, each in amounts.items()]


def amounts_of(run: Path, config: GenerateConfig) -> dict[str, list[float | None]]:
    """What each finished tree of a run took; the run's minutes are shared out by calls. None: a price is missing. What
    trees took that are only begun is shared out too: those that end first are the quick ones.

    Raises ConfigError where the run was made by another recipe.
    """
    manifest = read_manifest(run, "config")
    for section in ("episode", "search", "reward"):
        made = manifest["config"].get(section) or {}
        if {**made, "drill": None} != {**getattr(config, section).model_dump(), "drill": None}:
            raise ConfigError(f"{run} was made with another {section}.* configuration; a forecast needs the same")
    if not (run / JOURNAL).is_file():
        raise ConfigError(f"{run} has no journal ({JOURNAL}); what it cost is not known")
    done = {place.id for place in places_of(run / "trees.jsonl", TREES)}
    prices = prices_of(config.policy, config.judge)
    spent = {question_id: Spending(prices=prices) for question_id in sorted(done)}
    begun = Spending(prices=prices)
    for question_id, role, used in Journal(run / JOURNAL, reading=True).usage():
        spent.get(question_id, begun).add(role, used, question_id)
    if begun.paid:
        say(f"{run}: {len(begun.paid)} trees are begun and not finished; what they took is shared out over the "
            f"{len(done)} finished ones, which are the quick ones")  # fmt: skip
    pace = _seconds(run / "metrics.jsonl") / 60 / max(1, sum(one.usage.calls for one in (begun, *spent.values())))

    def amounts(what: Callable[[Spending], float | None]) -> list[float | None]:
        each, rest = [what(one) for one in spent.values()], what(begun)
        return [None if None in (one, rest) else one + rest / len(each) for one in each]  # pyright: ignore[reportOptionalOperand]

    return {
        "calls": amounts(lambda one: one.usage.calls),
        "prompt tokens": amounts(lambda one: one.usage.prompt_tokens),
        "of them cached": amounts(lambda one: one.usage.cached_tokens),
        "completion tokens": amounts(lambda one: one.usage.completion_tokens),
        "dollars": amounts(lambda one: one.dollars),
        "minutes": amounts(lambda one: one.usage.calls * pace),
    }


def _compare(report: dict[str, Any], took: dict[str, list[float | None]]) -> None:
    """Adds to each line of the forecast what the run took, and its excess over the forecast as a share of it."""
    if "forecast" not in report:
        raise ConfigError("--took compares a run with a forecast: give the run that it was made from as --like")
    if len(took["calls"]) != report["questions"]:
        raise ConfigError(
            f"the run has {len(took['calls'])} trees, the forecast is for {report['questions']} questions"
        )
    for line in report["forecast"]:
        known = [amount for amount in took[line["what"]] if amount is not None]
        line["took"] = sum(known) if len(known) == len(took["calls"]) else None
        both = line["amount"] and line["took"] is not None
        line["off"] = line["took"] / line["amount"] - 1 if both else None


def _total(what: str, each: list[float | None], count: int) -> dict[str, Any]:
    known = [amount for amount in each if amount is not None]
    if len(known) < len(each):
        return {"what": what, "amount": None, "low": None, "high": None}
    low, high = mean_interval(known)
    return {"what": what, "amount": count * sum(known) / len(known), "low": count * low, "high": count * high}


def _seconds(metrics: Path) -> float:
    """From the start of a run to its last finished tree, over all the times that it was started."""
    spans: list[list[datetime.datetime]] = []
    for row in events_of(metrics):
        if "time" not in row:
            continue
        time = datetime.datetime.fromisoformat(row["time"])
        if row.get("event") == "begun":
            spans.append([time, time])
        elif row.get("event") and spans:
            spans[-1][1] = time
    return sum((last - first).total_seconds() for first, last in spans)


def _table(report: dict[str, Any]) -> str:
    most, hours = report["dollars_at_most"], report["hours_at_most"]
    lines = [
        f"questions          {report['questions']:,}",
        f"calls, at most     {report['calls_at_most']:,}",
        f"tokens, at most    {report['prompt_tokens_at_most']:,} of prompts, "
        f"{report['completion_tokens_at_most']:,} of replies",
        f"dollars, at most   {UNPRICED if most is None else f'{most:,.2f}'}",
        f"hours, at most     {UNPACED if hours is None else f'{hours:,.1f}'}",
    ]
    for line in report.get("forecast", ()):
        given = [line[key] for key in ("amount", "low", "high", "took") if key in line]
        amounts = f"    {UNPRICED}" if None in given else "".join(f"{amount:>14,.2f}" for amount in given)
        off = f"{line['off']:>+10.0%}" if line.get("off") is not None else ""
        lines.append(f"{line['what']:<18}{amounts}{off}")
    if "forecast" in report:
        after = f"{'took':>14}{'off by':>10}" if "took" in report["forecast"][0] else ""
        lines.insert(5, f"{'':<18}{'expected':>14}{'95 % from':>14}{'to':>14}{after}")
    else:
        calls, cost = report["likely"]["calls"], report["likely"]["dollars"]
        lines += [
            f"likely             {calls:,} calls" + (f", {cost:,.2f} dollars" if cost else "")
            + "; half or double, for it is what trees took elsewhere (docs/figures/search.md)",
            "For a forecast, hours too, search ten questions (--limit 10) and give that run as --like.",
        ]  # fmt: skip
    if most:
        lines.append("To stop at $5: --budget.usd 5. The same command with a higher limit goes on.")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
