"""`steprag reproduce stack`: does an agent gain by summing up and going back? Four arms, two tasks, one report.

Every arm learns the same worked episodes in its own words, for as many supervised tokens as the others, and answers the
same test questions with as many steps at most. A context of 512 tokens and, as a control, one of 2,048.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from apps.reproduce.options import fast, lanes_asked, proof_parser, recipe, sizes_asked
from apps.reproduce.report import as_typed, bears, compared_runs, write_with_costs
from apps.reproduce.stack_arms import ARMS, BASE, STACKED, Arm, StackProof, StackSizes, write_worked
from apps.reproduce.stages import Contender, Pipeline, Stage, stage
from steprag import atlas
from steprag.config.load import parse_arguments
from steprag.config.recipes import RECIPES
from steprag.console.progress import say_next
from steprag.engines.threads import spin_briefly, usable_cores
from steprag.records.inputs import read_questions
from steprag.records.jsonl import read_json, read_records, write_records
from steprag.records.training_rows import Trajectory
from steprag.records.yaml_files import read_yaml
from steprag.runs.run import code_version
from steprag.types import Prediction, Question, Usage

CHARS_PER_TOKEN = 3.7
"""Of these prompts, by the embedded model's tokenizer: 3.5 to 3.8 in the four arms."""
ROOM = 1024
"""Tokens that the engine takes beyond a context: the last search's passages, the step itself, denser texts. Without
them the engine refuses the very prompts at which an agent is to sum up or answer.
"""
DEPTH = 32
"""Steps of an episode at most, in every arm."""
MOST_VOTES = 8
SHARING = ("--side_by_side", "question", "--row_tokens", "2048")
"""An episode's steps stand side by side in a batch, and what their prompts share is computed once."""
TASKS = ("ledger", "forks")
CONTEXTS = (512, 2048)


def main(argv: list[str]) -> int:
    parser = proof_parser("steprag reproduce stack", "What do steps back and summaries bring?",
                          "runs/reproduce-stack", "results-stack.md", StackSizes)  # fmt: skip
    names = [arm.name for arm in ARMS]
    parser.add_argument(
        "--arms", nargs="+", choices=names, default=names, metavar="NAME",
        help=f"arms beside {BASE.name} and {STACKED.name}, which are always there: {', '.join(names)} [all]",
    )  # fmt: skip
    given = parse_arguments(parser, argv)
    proof = StackProof(
        out=Path(given.out),
        engine=given.engine,
        lanes=lanes_asked(given),
        sizes=sizes_asked(given, StackSizes),
        arms=tuple(arm for arm in ARMS if arm in (BASE, STACKED) or arm.name in given.arms),
    )
    spin_briefly()
    pipeline = Pipeline(proof.out, proof.lanes)
    run_stages(proof, pipeline)
    report = Path(given.report) if given.report else proof.out / "results-stack.md"
    write_report(proof, report, pipeline)
    sys.stdout.write(f"{report}\n")
    say_next("view", proof.out)
    return 0


def run_stages(proof: StackProof, pipeline: Pipeline) -> None:
    """Index, worked episodes, an adapter an arm, the gate, every score; then best-of-N at equal tokens, and GRPO."""
    out = proof.out
    pipeline.run(stage(out / "index", "index build", corpus=atlas.path("corpus")))
    for task in TASKS:
        write_records(out / f"{task}.jsonl", asked_of(proof, task))
    for arm in proof.arms:
        pipeline.run(worked(proof, arm, "train"))
    pipeline.run(worked(proof, STACKED, "dev"))
    steps = training_steps(proof)
    gate = stage(out / "gate", "score readings", *proof.served, "--prompt.profile", STACKED.profile,
                 worked=out / "worked-dev-stack", adapter=out / "adapter-stack")  # fmt: skip
    pipeline.together([
        [train(proof, arm, steps[arm.name]), *([gate] if arm is STACKED else []), *scores(proof, arm)]
        for arm in proof.arms
    ])  # fmt: skip
    last = [[vote(proof, size) for size in CONTEXTS]]
    if proof.sizes.grpo:
        last.append([reinforced(proof, STACKED), *scores(proof, STACKED, "grpo")])
    pipeline.together(last)


def worked(proof: StackProof, arm: Arm, split: str) -> Stage:
    """The arm's supervised steps of that split's worked episodes."""
    suffix = arm.name if split == "train" else f"{split}-{arm.name}"
    episodes = proof.out / f"episodes-{suffix}.jsonl"
    write_worked(atlas.task(f"worked.{split}"), episodes, arm.words)
    return stage(
        proof.out / f"worked-{suffix}", "trees worked", *_profile(arm), episodes=episodes, limit=proof.sizes.episodes,
        corpus=atlas.path("corpus"), index=proof.out / "index",
    )  # fmt: skip


def _profile(arm: Arm) -> tuple[str, ...]:
    return ("--prompt.profile", arm.profile, "--episode.depth", str(DEPTH))


def training_steps(proof: StackProof) -> dict[str, int]:
    """Batches of each arm: all see as many supervised tokens as the longest arm does in its passes."""
    from steprag.engines.models import EMBEDDED, resolve_model
    from steprag.engines.weights import load_tokenizer

    tokenizer = load_tokenizer(resolve_model(EMBEDDED))
    batch = read_yaml(recipe("warmstart"))["batch_size"]
    rows, tokens = {}, {}
    for arm in proof.arms:
        texts = [row.completion[0]["content"] for row in learnt_rows(proof, arm)]
        rows[arm.name] = len(texts)
        tokens[arm.name] = sum(len(ids) for ids in tokenizer(texts)["input_ids"])
    most = max(tokens.values())
    return {name: math.ceil(proof.sizes.passes * rows[name] * most / tokens[name] / batch) for name in rows}


def learnt_rows(proof: StackProof, arm: Arm) -> list[Trajectory]:
    """The supervised steps of the arm's worked episodes."""
    return list(read_records(proof.out / f"worked-{arm.name}" / "sft.train.jsonl", Trajectory))


def train(proof: StackProof, arm: Arm, steps: int) -> Stage:
    """The arm's adapter, taught from the bare model."""
    epochs = 20  # more than the steps need: these end the run
    return stage(proof.out / f"adapter-{arm.name}", "train", *fast(), *SHARING, config=recipe("warmstart"),
                 pairs=proof.out / f"worked-{arm.name}", epochs=epochs, max_steps=steps)  # fmt: skip


def scores(proof: StackProof, arm: Arm, adapter: str | None = None) -> list[Stage]:
    """Inference on every task at every context; `adapter` names another than the arm's."""
    name = adapter or arm.name
    folder = proof.out / (adapter or f"adapter-{arm.name}")
    return [
        _infer(proof, arm, f"{task}-{size}-{name}", task, size, "--adapter", str(folder))
        for task in TASKS
        for size in CONTEXTS
    ]


def _infer(proof: StackProof, arm: Arm, name: str, task: str, size: int, *more: str) -> Stage:
    bounds = ("--episode.chars", str(round(size * CHARS_PER_TOKEN)), "--policy.context", str(max(2048, size + ROOM)))
    return stage(
        proof.out / name, "infer", *proof.served, *_profile(arm), *bounds, *more,
        config=RECIPES / "inference/demo.yaml", questions=proof.out / f"{task}.jsonl", index=proof.out / "index",
    )  # fmt: skip


def asked_of(proof: StackProof, task: str) -> list[Question]:
    """The task's test questions, or as many as asked for, at equal distances: the file goes from short to long."""
    questions = read_questions(atlas.task(f"{task}.test"))
    asked = min(proof.sizes.test or len(questions), len(questions))
    return [questions[place * len(questions) // asked] for place in range(asked)]


def vote(proof: StackProof, size: int) -> Stage:
    """The transcript's best of N on Forks, with as many tokens as the stack agent took: N is 2 to MOST_VOTES."""
    took, base = (_tokens(proof.out / f"forks-{size}-{arm.name}") for arm in (STACKED, BASE))
    times = min(MOST_VOTES, max(2, round(took / max(1, base))))
    sampled = ("--policy.temperature", "0.7", "--policy.min_p", "0.05", "--best_of", str(times))
    adapter = ("--adapter", str(proof.out / f"adapter-{BASE.name}"))
    return _infer(proof, BASE, f"forks-{size}-vote", "forks", size, *adapter, *sampled)


def _tokens(run: Path) -> int:
    usage = sum((one.usage for one in read_records(run / "predictions.jsonl", Prediction)), Usage())
    return usage.prompt_tokens + usage.completion_tokens


def reinforced(proof: StackProof, arm: Arm) -> Stage:
    """GRPO on top of the arm's adapter, on those worked episodes' questions that need more than one reading."""
    questions = [one for one in read_questions(atlas.task("worked.train")) if one.metadata["type"] != "ledger-1"]
    write_records(proof.out / "grpo.jsonl", questions)
    return stage(proof.out / "grpo", "train", *fast(), *_profile(arm), "--grpo.max_tokens", "96",
                 config=recipe("grpo"), questions=proof.out / "grpo.jsonl", index=proof.out / "index",
                 adapter=proof.out / f"adapter-{arm.name}", max_steps=proof.sizes.grpo)  # fmt: skip


def tables(proof: StackProof) -> list[tuple[str, list[Contender]]]:
    """What the report compares: a heading, and the runs under it, the base first."""
    found = []
    for task in TASKS:
        names = {arm.name: arm.label for arm in proof.arms}
        names |= {"vote": "transcript, best of N by vote"} if task == "forks" else {}
        names |= {"grpo": "stack, then GRPO"} if proof.sizes.grpo else {}
        for size in CONTEXTS:
            runs = [Contender(label, proof.out / f"{task}-{size}-{name}") for name, label in names.items()]
            found.append((f"{task.capitalize()}, context of {size:,} tokens", runs))
    return found


GATE = 0.75
"""Balanced accuracy from which on going back can be expected to mean something; set before the run."""


def write_report(proof: StackProof, report: Path, pipeline: Pipeline) -> None:
    """Compares the runs under every heading and writes `report`, its plots in a folder of its name beside it."""
    lines = ["# Results: an agent that sums up and goes back", "", introduction(proof), ""]
    lines += [*gate(proof.out / "gate"), ""]
    for heading, runs in tables(proof):
        folder = report.parent / report.stem / heading.lower().replace(",", "").replace(" ", "-")
        table, compared = compared_runs(runs, folder, report)
        base = runs[0].label
        lines += [f"## {heading}", "", table, "", *did(runs), ""]
        lines += [f"- {run.label}: {bears(compared['differences'][run.label][base])}." for run in runs[1:]]
        lines += [*by_size(runs, compared), ""]
    write_with_costs(lines, proof.out, report, pipeline)


def introduction(proof: StackProof) -> str:
    """What was run, on what."""
    asked = {**vars(proof.sizes), "engine": proof.engine, "lanes": proof.lanes}
    if len(proof.arms) < len(ARMS):
        asked["arms"] = " ".join(arm.name for arm in proof.arms)
    learnt = Counter(row.action for row in learnt_rows(proof, STACKED))
    steps = ", ".join(f"{count} {action}" for action, count in sorted(learnt.items()))
    return (
        f"Written by `steprag reproduce stack{as_typed(asked)}` (version {code_version()}, {usable_cores()} cores).\n\n"
        "SmolLM2-135M-Instruct with LoRA. Every arm learnt "
        f"{proof.sizes.episodes} worked episodes in its own words, for as many supervised tokens as the others (the "
        f"stack agent's steps: {steps}). Greedy decoding. Ledger asks several things at once; its EM is the share of "
        "parts that are right. Forks leads to the wrong country first. Beyond the context an agent may only sum up or "
        "answer."
    )


def gate(run: Path) -> list[str]:
    """Whether the stack agent distinguishes readings that help from others."""
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
