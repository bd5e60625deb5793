"""What a run will cost that asks models about questions: `steprag plan`, `steprag plan infer`. Nothing is spent.

From the recipe alone it says what the run costs at most: every call there can be, each with the longest prompt and
reply; how long that takes at the pace that is given, or that the recipe bounds; and what is likely, as it was
elsewhere. Given a run of the same recipe over a few questions (`--like`), it forecasts from that run's results: their
means times the questions, with the bootstrap's interval. Given the whole run too (`--took`), it says how far off the
forecast was.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steprag.agent.open import longest_prompt
from steprag.agent.profiles import load_profile
from steprag.batch.journal import JOURNAL, Journal
from steprag.batch.results import ResultKind, places_of
from steprag.config.sections import JudgeConfig
from steprag.console.progress import say, say_next
from steprag.errors import ConfigError, counted
from steprag.policy.budget import Spending, dollars, prices_of
from steprag.records.jsonl import existing
from steprag.runs.run import events_of, read_manifest
from steprag.scores.stats import mean_interval
from steprag.types import Question, Usage

UNPRICED = "no price given (policy.price.*, judge.price.*)"
UNPACED = "no pace given (--pace TOKENS_A_SECOND, or policy.rate.*)"
STEP_TOKENS, GROWN = 35, 0.28
"""Of the shipped trees: tokens of a step, and by how much of its longest growth a prompt has grown on average."""
JUDGED_TOKENS = 300
"""Of a judge's prompt: question, golden answers, answer."""

_OWN = ("--like", "--took", "--pace")
"""Options of a forecast alone, which its command does not take; nor --json."""


@dataclass(frozen=True)
class Forecast:
    """What is planned. `config` has policy, prompt and episode; `judge` is None where nobody judges.

    `max_calls`: calls of one question by role that no run exceeds; `likely`: those that are likely, of `replies`
    completions each, as was seen `elsewhere`. `results`: the file of the run's results and their kind, called `unit`;
    `alike`: the keys in which a run must agree to forecast from it.
    """

    config: Any
    questions: list[Question]
    judge: JudgeConfig | None
    max_calls: dict[str, int]
    likely: dict[str, float]
    replies: int
    elsewhere: str
    results: tuple[str, ResultKind[Any]]
    unit: str
    alike: tuple[str, ...]


def add_forecast_options(parser: argparse.ArgumentParser) -> None:
    """`--like`, `--took`, `--pace` and `--json`."""
    parser.add_argument("--like", metavar="RUN", help="a run of the same recipe over some questions, to forecast from")
    parser.add_argument("--took", metavar="RUN", help="the run that was forecast: says how far off the forecast was")
    parser.add_argument("--pace", type=float, metavar="N", help="tokens a second that the engine was seen to work at")
    parser.add_argument("--json", action="store_true", help="the forecast as JSON")


def print_forecast(plan: Forecast, given: argparse.Namespace, planned: Sequence[str]) -> int:
    """Writes the forecast of the command `planned` to standard output. Raises ConfigError."""
    if given.pace is not None and not given.pace > 0:
        raise ConfigError(f"--pace {given.pace:g}: give tokens a second, more than 0")
    used = most_usage(plan)
    whole, likely = sum(used.values(), Usage()), likely_usage(plan)
    report: dict[str, Any] = {
        "questions": len(plan.questions),
        "calls_at_most": whole.calls,
        "prompt_tokens_at_most": whole.prompt_tokens,
        "completion_tokens_at_most": whole.completion_tokens,
        "dollars_at_most": most_dollars(plan, used),
        "hours_at_most": most_hours(plan, used, given.pace),
    }
    hours = most_hours(plan, likely, given.pace)
    report["likely"] = {**vars(sum(likely.values(), Usage())), "dollars": most_dollars(plan, likely), "hours": hours}
    if given.like:
        report["forecast"] = forecast(plan, Path(given.like))
    if given.took:
        _compare(report, amounts_of(existing(given.took, "run folder"), plan), plan.unit)
    sys.stdout.write(json.dumps(report, indent=2) + "\n" if given.json else _table(report, plan))
    words = zip(planned, ("", *planned), strict=False)
    say_next(*(word for word, before in words if before not in _OWN and not word.startswith((*_OWN, "--json"))))
    return 0


def most_usage(plan: Forecast) -> dict[str, Usage]:
    """What all questions use by role, each call with the longest prompt of an episode and the longest reply."""
    policy, episode = plan.config.policy, plan.config.episode
    profile = load_profile(plan.config.prompt.profile, plan.config.prompt.examples)
    longest = max((question.question for question in plan.questions), key=len, default="")
    prompt = longest_prompt(profile, episode.depth, episode.top_k, policy.max_tokens, longest)
    return _usage(plan, plan.max_calls, prompt, policy.max_tokens)


def _usage(plan: Forecast, calls: Mapping[str, float], prompt: int, reply: int) -> dict[str, Usage]:
    """What so many calls a question use by role, where the policy has such prompts and replies, in tokens."""
    judged = JUDGED_TOKENS, plan.judge.max_tokens if plan.judge else 0
    sizes = {role: (prompt, reply) for role in calls} | {"judge": judged}
    counts = {role: round(len(plan.questions) * each) for role, each in calls.items()}
    return {role: Usage(count, *(count * each for each in sizes[role])) for role, count in counts.items() if count}


def likely_usage(plan: Forecast) -> dict[str, Usage]:
    """What the questions are likely to use by role, within a factor of two, as it was elsewhere."""
    profile, episode = load_profile(plan.config.prompt.profile, plan.config.prompt.examples), plan.config.episode
    start = longest_prompt(profile, 1, 0, STEP_TOKENS)
    grown = longest_prompt(profile, episode.depth, episode.top_k, STEP_TOKENS) - start
    return _usage(plan, plan.likely, round(start + GROWN * grown), STEP_TOKENS * plan.replies)


def most_dollars(plan: Forecast, used: dict[str, Usage]) -> float | None:
    """What so much use costs; None where a role that is asked has no price."""
    prices = prices_of(plan.config.policy, plan.judge)
    if not all(prices[role].known for role in used):
        return None
    return sum(dollars(each, prices[role]) for role, each in used.items())


def most_hours(plan: Forecast, used: dict[str, Usage], pace: float | None) -> float | None:
    """How long so much use takes at `pace` tokens a second, or at the limits that the recipe sets its endpoint; None
    where neither is told.
    """
    if pace is not None:
        return sum(each.prompt_tokens + each.completion_tokens for each in used.values()) / pace / 3600
    minutes, rates = [], [(plan.config.policy.rate, ("policy", "score"))]
    rates += [(plan.judge.rate, ("judge",))] if plan.judge else []
    for rate, roles in rates:
        whole = sum((used[role] for role in roles if role in used), Usage())
        minutes += [whole.calls / rate.requests] if rate.requests else []
        minutes += [(whole.prompt_tokens + whole.completion_tokens) / rate.tokens] if rate.tokens else []
    return max(minutes, default=0) / 60 or None


def forecast(plan: Forecast, like: Path) -> list[dict[str, Any]]:
    """What the questions take: the amount and a 95 % interval, from the results of the run `like`.

    Raises ConfigError where that was made by another recipe, or has fewer than two results.
    """
    amounts = amounts_of(existing(like, "run folder"), plan)
    done = len(amounts["calls"])
    if done < 2:
        raise ConfigError(f"{like} has {done} finished {plan.unit}; a forecast needs two, and ten to be of use")
    return [_total(what, each, len(plan.questions)) for what, each in amounts.items()]


def amounts_of(run: Path, plan: Forecast) -> dict[str, list[float | None]]:
    """What each finished result of a run took; the run's minutes are shared out by calls. None: a price is missing.
    What those took that are only begun is shared out too: those that end first are the quick ones.

    Raises ConfigError where the run was made by another recipe.
    """
    manifest = read_manifest(run, "config")
    wanted = plan.config.model_dump(include={*plan.alike})
    for key, value in wanted.items():
        made, several = manifest["config"].get(key), isinstance(value, dict)
        if ({**(made or {}), "drill": None} != {**value, "drill": None}) if several else made != value:
            named = f"{key}.*" if several else key
            raise ConfigError(f"{run} was made with another {named} configuration; a forecast needs the same")
    if not (run / JOURNAL).is_file():
        raise ConfigError(f"{run} has no journal ({JOURNAL}); what it cost is not known")
    done = {place.id for place in places_of(run / plan.results[0], plan.results[1])}
    prices = prices_of(plan.config.policy, plan.judge)
    spent = {question_id: Spending(prices=prices) for question_id in sorted(done)}
    begun = Spending(prices=prices)
    for question_id, role, used in Journal(run / JOURNAL, reading=True).usage():
        spent.get(question_id, begun).add(role, used, question_id)
    if begun.paid:
        say(f"{run}: {len(begun.paid)} {plan.unit} are begun and not finished; what they took is shared out over the "
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


def _compare(report: dict[str, Any], took: dict[str, list[float | None]], unit: str) -> None:
    """Adds to each line of the forecast what the run took, and its excess over the forecast as a share of it."""
    if "forecast" not in report:
        raise ConfigError("--took compares a run with a forecast: give the run that it was made from as --like")
    if len(took["calls"]) != report["questions"]:
        raise ConfigError(
            f"the run has {len(took['calls'])} {unit}, the forecast is for {report['questions']} questions"
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


def _table(report: dict[str, Any], plan: Forecast) -> str:
    dollars, hours, likely = report["dollars_at_most"], report["hours_at_most"], report["likely"]
    parts = [f"${likely['dollars']:,.2f}"] if likely["dollars"] else []
    parts += [f"{counted(likely['calls'], 'call')}", *([f"{likely['hours']:,.1f} hours"] if likely["hours"] else [])]
    lines = [
        f"likely             {', '.join(parts)}" + (f"; at most ${dollars:,.2f}" if dollars else ""),
        f"                   half or double: {plan.unit} took that elsewhere ({plan.elsewhere})",
    ] if "forecast" not in report else []  # fmt: skip
    lines += [
        f"questions          {report['questions']:,}",
        f"calls, at most     {report['calls_at_most']:,}",
        f"tokens, at most    {report['prompt_tokens_at_most']:,} of prompts, "
        f"{report['completion_tokens_at_most']:,} of replies",
        f"dollars, at most   {UNPRICED if dollars is None else f'{dollars:,.2f}'}",
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
        lines.append("For a forecast with hours, run ten questions (--limit 10) and give that run as --like.")
    if dollars:
        lines.append("To stop at $5: --usd 5. The same command with a higher limit continues.")
    return "\n".join(lines) + "\n"
