"""The report of `steprag reproduce stack`: the gate, tables a task and a context, conclusions, and commands."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from steprag.engines.threads import usable_cores
from steprag.experiments.report import as_typed, bears, compared_runs, write_with_costs
from steprag.experiments.stack_arms import ARMS, StackProof
from steprag.experiments.stages import Contender, Pipeline
from steprag.records.jsonl import read_json, read_records
from steprag.records.training_rows import Trajectory
from steprag.runs.run import code_version
from steprag.types import Prediction

GATE = 0.75
"""Balanced accuracy from which on going back can be expected to mean something; set before the run."""


def write_report(
    proof: StackProof,
    learnt: list[Trajectory],
    tables: list[tuple[str, list[Contender]]],
    report: Path,
    pipeline: Pipeline,
) -> None:
    """Compares the runs under every heading and writes `report`, its plots in a folder of its name beside it.

    `learnt`: the stack agent's supervised steps.
    """
    lines = ["# Results: an agent that sums up and goes back", "", introduction(proof, learnt), ""]
    lines += [*gate(proof.out / "gate"), ""]
    for heading, runs in tables:
        folder = report.parent / report.stem / heading.lower().replace(",", "").replace(" ", "-")
        table, compared = compared_runs(runs, folder, report)
        base = runs[0].label
        lines += [f"## {heading}", "", table, "", *did(runs), ""]
        lines += [f"- {run.label}: {bears(compared['differences'][run.label][base])}." for run in runs[1:]]
        lines += [*by_size(runs, compared), ""]
    write_with_costs(lines, proof.out, report, pipeline)


def introduction(proof: StackProof, learnt: list[Trajectory]) -> str:
    """What was run, on what."""
    asked = {**vars(proof.sizes), "engine": proof.engine, "lanes": proof.lanes}
    if len(proof.arms) < len(ARMS):
        asked["arms"] = " ".join(arm.name for arm in proof.arms)
    steps = ", ".join(f"{count} {action}" for action, count in sorted(Counter(one.action for one in learnt).items()))
    return (
        f"Written by `steprag reproduce stack{as_typed(asked)}` (version {code_version()}, {usable_cores()} cores).\n\n"
        "SmolLM2-135M-Instruct with LoRA. Every arm learnt "
        f"{proof.sizes.episodes} worked episodes in its own words, for as many supervised tokens as the others (the "
        f"stack agent's steps: {steps}). Greedy decoding. Ledger asks several things at once; its EM is the share of "
        "parts that are right. Forks leads to the wrong country first. Beyond the context an agent may only sum up or "
        "answer."
    )


def gate(run: Path) -> list[str]:
    """Whether the stack agent tells readings that help from others."""
    scores = read_json(run / "metrics.json")
    both = scores["balanced_accuracy"]
    if both is None:
        return ["The gate was not tried: the held-out readings are all of one sort."]
    spans = {name: "{:.3f} to {:.3f}".format(*scores[f"{name}_interval"]) for name in ("kept", "dropped")}
    return [
        f"Gate, {scores['readings']} held-out readings: balanced accuracy {both:.3f} (goal {GATE}). Of the readings to "
        f"keep {scores['kept']:.3f} are kept ({spans['kept']}), of those to take back {scores['dropped']:.3f} are "
        f"({spans['dropped']})."
    ]


def did(runs: list[Contender]) -> list[str]:
    """A table of what the agents did, means an episode: steps by what they are, and tokens of a prompt.

    Of a vote's episodes the steps are those of the chosen one, and the usage is that of all: prompts are counted by
    requests, one a step.
    """
    lines = ["| run | searches | steps back | summaries | prompt tokens a step |", "|---|---|---|---|---|"]
    for run in runs:
        played = list(read_records(run.run / "predictions.jsonl", Prediction))
        actions = Counter(step.action for one in played for step in one.steps)
        asked, prompts = (sum(getattr(one.usage, key) for one in played) for key in ("calls", "prompt_tokens"))
        each = (actions["query"] + actions["search"], actions["backtrack"], actions["summary"])
        cells = [f"{count / len(played):.1f}" for count in each]
        lines.append(f"| {run.label} | {' | '.join(cells)} | {prompts / max(1, asked):.0f} |")
    return lines


def by_size(runs: list[Contender], compared: dict[str, Any]) -> list[str]:
    """The stack against the base, by the questions' own kind (parts of a ledger, false starts of a fork)."""
    base, *others = (run.label for run in runs)
    stack = next((label for label in others if label == "stack"), None)
    if stack is None:
        return []
    parts = {kind: part for kind, part in compared.get("groups", {}).items() if kind[-1:].isdigit()}
    return [f"- stack on {kind}: {bears(part[stack]['differences'][base])}." for kind, part in parts.items()]
