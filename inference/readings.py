"""`steprag score readings`: does a policy keep what helps, and take back what does not?

Asked where a worked episode has just searched: the prompt is the episode's own, and what the policy does next is
compared with what the episode does. Only grammars that can go back have such a choice.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from inference.config import GreedyConfig
from steprag.agent.checkpoints import checked_profile
from steprag.agent.grammar import Grammar
from steprag.batch.results import ResultKind, Results
from steprag.batch.worklist import ask_all, model_asked, run_interruptible
from steprag.config.load import StageConfig, add_options, config_from, parse_arguments
from steprag.config.recipes import out_of
from steprag.config.sections import Positive, PromptConfig
from steprag.errors import PART_DONE, ConfigError, StepFormatError
from steprag.policy.budget import BudgetConfig
from steprag.policy.protocols import Policy
from steprag.records.jsonl import existing, file_hash, read_records, write_json
from steprag.records.training_rows import Trajectory
from steprag.runs.run import checked_manifest, open_run
from steprag.scores.stats import share_interval
from steprag.types import Question, Usage

ROWS = "sft.train.jsonl"


class ReadingsConfig(StageConfig):
    """`steprag score readings`: the policy, its prompts and its budget."""

    policy: GreedyConfig = Field(default_factory=GreedyConfig)
    prompt: PromptConfig = Field(default_factory=lambda: PromptConfig(profile="stack"))
    limit: Positive | None = Field(default=None, description="use the first so many readings only")
    budget: BudgetConfig = Field(default_factory=BudgetConfig)


@dataclass(frozen=True)
class ReadingChoice:
    """What was done with the passages of one search: `wanted` by the worked episode, `said` by the policy. None where
    its completion was no step of the grammar.
    """

    id: str
    wanted: str
    said: str | None
    usage: Usage


CHOICES = ResultKind(ReadingChoice, lambda choice: choice.id)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag score readings", description="Does a policy keep what helps?")
    parser.add_argument("--worked", required=True, metavar="RUN", help="run folder of steprag trees worked")
    parser.add_argument("--out", metavar="RUN", help="run folder: choices.jsonl, metrics.json [runs/readings-NAME]")
    parser.add_argument("--json", action="store_true", help="scores as JSON on standard output")
    add_options(parser, ReadingsConfig)
    given = parse_arguments(parser, argv)
    worked = existing(given.worked, "run folder")
    config = config_from(ReadingsConfig, given)
    scores, failed = run_interruptible(readings(config, worked, out_of(given, "readings", worked)))
    sys.stdout.write((json.dumps(scores, indent=2) if given.json else table(scores)) + "\n")
    return PART_DONE if failed else 0


async def readings(config: ReadingsConfig, worked: Path, out: Path) -> tuple[dict[str, Any], int]:
    """Runs the stage; returns the scores, also in metrics.json, and how many requests failed. Raises ConfigError."""
    profile = checked_profile(config.prompt, config.policy)
    grammar, file = profile.grammar, existing(worked / ROWS, "supervised steps of the run")
    theirs = checked_manifest(worked).get("prompt") or {}
    if theirs.get("hash") != profile.hash:
        raise ConfigError(
            f"{worked} was worked with prompt profile {theirs.get('profile')}, of other words; give --prompt.profile"
        )
    rows = dict(list(after_a_search(file, grammar))[: config.limit])
    if not rows:
        raise ConfigError(f"{file} has no step that follows a search and may go back; grammar {grammar.name}")
    questions = [Question(name, row.prompt[-1]["content"], ("",)) for name, row in rows.items()]
    identity = {
        "readings": file_hash(file),
        "limit": config.limit,
        "prompt": {"hash": profile.hash},
        "policy": model_asked(config.policy),
    }

    async def one(question: Question, policy: Policy) -> ReadingChoice:
        return await chosen(question.id, rows[question.id], grammar, policy)

    with open_run(out, "readings", identity=identity, config=config.model_dump()) as run:
        choices = Results(run.path / "choices.jsonl", CHOICES)
        failed = await ask_all(run, questions, choices, one, role="policy", model=config.policy, replies=grammar,
                                budget=config.budget)  # fmt: skip
        made = list(read_records(choices.path, ReadingChoice))
        scores = {**scored(made, grammar), "failed": failed, "identity": identity}
        write_json(run.path / "metrics.json", scores)
        run.set(counts={"readings": scores["readings"]}, usage=scores["usage"])
    return scores, failed


def after_a_search(file: Path, grammar: Grammar) -> list[tuple[str, Trajectory]]:
    """The rows, by name, whose step keeps or takes back a search: they follow the row of a search, or a step without a
    row (the search of a detour).
    """
    following = set(_after_call(grammar)) - {grammar.answer.name}
    rows = {(row.question_id, row.depth): row for row in read_records(file, Trajectory)}
    return [
        (f"{question}/{depth}", row)
        for (question, depth), row in rows.items()
        if row.action in following
        and "pop" in grammar.effects.values()
        and ((before := rows.get((question, depth - 1))) is None or grammar.effects[before.action] == "call")
    ]


async def chosen(name: str, row: Trajectory, grammar: Grammar, policy: Policy) -> ReadingChoice:
    """What the policy does at that place."""
    allowed = _after_call(grammar)
    sample = await policy.sample(row.prompt, allowed, n=1, seed=0)
    try:
        said = grammar.parse(sample.completions[0], allowed).action
    except StepFormatError:
        said = None
    return ReadingChoice(name, row.action, said, sample.usage)


def _after_call(grammar: Grammar) -> tuple[str, ...]:
    call = next(action.name for action in grammar.actions if action.effect == "call")
    return tuple(grammar.transitions[call])


def scored(choices: list[ReadingChoice], grammar: Grammar) -> dict[str, Any]:
    """`kept`: of the readings to keep, the share that is kept; `dropped`: of those to take back, the share that is.
    `balanced_accuracy` is their mean, chance 0.5. Both with Wilson's 95 % interval. An answer keeps; no step is wrong.
    """
    effects = grammar.effects
    helpful = [one for one in choices if effects[one.wanted] != "pop"]
    useless = [one for one in choices if effects[one.wanted] == "pop"]
    kept = sum(one.said is not None and effects[one.said] != "pop" for one in helpful)
    dropped = sum(one.said is not None and effects[one.said] == "pop" for one in useless)
    both = kept / len(helpful) + dropped / len(useless) if helpful and useless else None
    return {
        "readings": len(choices),
        "balanced_accuracy": None if both is None else both / 2,
        **_share("kept", kept, len(helpful)),
        **_share("dropped", dropped, len(useless)),
        "usage": sum((one.usage for one in choices), Usage()).shown,
    }


def _share(name: str, hits: int, count: int) -> dict[str, Any]:
    return {
        f"{name}_of": count,
        name: hits / count if count else None,
        f"{name}_interval": share_interval(hits, count) if count else None,
    }


def table(scores: dict[str, Any]) -> str:
    """The scores in a few readable lines."""
    both = scores["balanced_accuracy"]
    lines = [f"readings           {scores['readings']}" + (f", {scores['failed']} failed" if scores["failed"] else "")]
    lines.append(f"balanced accuracy  {'–' if both is None else f'{both:.3f}'}")
    for name in ("kept", "dropped"):
        if scores[name] is not None:
            low, high = scores[f"{name}_interval"]
            lines.append(f"{name:<18} {scores[name]:.3f} ({low:.3f} to {high:.3f}) of {scores[f'{name}_of']}")
    return "\n".join(lines)
