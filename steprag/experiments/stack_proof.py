"""`steprag reproduce stack`: what does an agent gain that sums up and goes back? Four arms, two tasks, one report.

Every arm learns the same worked episodes in its own words, for as many supervised tokens as the others, and answers the
same test questions with as many steps at most. A context of 512 tokens and, as a control, one of 2,048.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from steprag import atlas
from steprag.atlas.readings import TaskEpisode
from steprag.cli import guarded
from steprag.config import parse_arguments
from steprag.engines.threads import spin_briefly, usable_cores
from steprag.errors import ConfigError
from steprag.experiments import stack_words
from steprag.experiments.contenders import served_by
from steprag.experiments.lanes import Lanes
from steprag.experiments.reproduce import fast, recipe, usual_lanes
from steprag.experiments.stack_report import write_report
from steprag.experiments.stages import RECIPES, Contender, Stage, StageBook, stage
from steprag.files import read_records, write_records
from steprag.inputs import read_questions
from steprag.training_rows import Trajectory
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


@dataclass(frozen=True)
class Arm:
    """A way to remember: its prompt profile, its words for a worked episode, and its label in tables."""

    name: str
    profile: str
    words: Callable[[TaskEpisode], list[stack_words.Step]]
    label: str


ARMS = (
    Arm("transcript", "transcript", stack_words.transcript, "transcript"),
    Arm("stack", "stack", stack_words.stack, "stack"),
    Arm("flat", "flat", stack_words.flat, "stack without going back and summing up"),
    Arm("all", "transcript-all", stack_words.transcript, "transcript with all passages"),
)
"""The first is what the others are compared with."""
NEEDED = ("transcript", "stack")
"""The arms that are in question."""


@dataclass(frozen=True)
class StackSizes:
    """How much of everything; HELP says what each number counts."""

    episodes: int
    passes: int
    test: int
    grpo: int

    HELP: ClassVar[dict[str, str]] = {
        "episodes": "worked episodes that every arm learns from",
        "passes": "passes over those of the arm whose steps are longest",
        "test": "questions of each task, evenly taken; 0: all",
        "grpo": "steps of reinforcement learning of the stack agent; 0: none",
    }


FULL = StackSizes(episodes=300, passes=2, test=0, grpo=20)
QUICK = StackSizes(episodes=6, passes=1, test=4, grpo=1)


@dataclass(frozen=True)
class StackProof:
    """What was asked for, and where it goes."""

    out: Path
    sizes: StackSizes
    engine: str
    lanes: int
    arms: tuple[Arm, ...]

    @property
    def served(self) -> tuple[str, ...]:
        """Options of `steprag infer` that name the engine."""
        return served_by(self.engine)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="steprag reproduce stack", description="What do steps back and summaries bring?"
    )
    parser.add_argument("--out", default="runs/reproduce-stack", metavar="DIR", help="folder [runs/reproduce-stack]")
    parser.add_argument("--report", metavar="FILE", help="where the report goes [DIR/results-stack.md]")
    parser.add_argument("--quick", action="store_true", help="sizes that show that it runs, and nothing else")
    for name, value in vars(FULL).items():
        text = f"{StackSizes.HELP[name]} [{value}; quick {getattr(QUICK, name)}]"
        parser.add_argument(f"--{name}", type=int, metavar="N", help=text)
    parser.add_argument(
        "--engine", default="llamacpp", choices=("llamacpp", "vllm"), help="what serves the policies [llamacpp]"
    )
    parser.add_argument("--lanes", type=int, metavar="N", help="stages that run side by side [2 where there are cores]")
    names = [arm.name for arm in ARMS]
    parser.add_argument(
        "--arms", nargs="+", choices=names, default=names, metavar="NAME",
        help=f"arms beside {' and '.join(NEEDED)}, which are always there: {', '.join(names)} [all]",
    )  # fmt: skip
    given = parse_arguments(parser, argv)
    usual = QUICK if given.quick else FULL
    sizes = StackSizes(**{name: _or_usual(getattr(given, name), value, name) for name, value in vars(usual).items()})
    lanes = usual_lanes(given.engine) if given.lanes is None else given.lanes
    spin_briefly()
    arms = tuple(arm for arm in ARMS if arm.name in (*NEEDED, *given.arms))
    proof = StackProof(Path(given.out), sizes, given.engine, max(1, min(lanes, usable_cores())), arms)
    book = StageBook(proof.out / "stages.json", Lanes(proof.lanes))
    run_stages(proof, book)
    report = Path(given.report) if given.report else proof.out / "results-stack.md"
    write_report(title(proof), tables(proof), proof.out, report, book)
    sys.stdout.write(f"{report}\n")
    return 0


def _or_usual(asked: int | None, usual: int, name: str) -> int:
    if asked is not None and asked < (0 if name in ("test", "grpo") else 1):
        raise ConfigError(f"--{name} is too small")
    return usual if asked is None else asked


def run_stages(proof: StackProof, book: StageBook) -> None:
    """Index, worked episodes, an adapter an arm, the gate, every score; then best-of-N at equal tokens, and GRPO."""
    out = proof.out
    book.run(stage(out / "index", "index build", corpus=atlas.path("corpus")))
    for task in TASKS:
        write_records(out / f"{task}.jsonl", asked_of(proof, task))
    for arm in proof.arms:
        book.run(worked(proof, arm, "train"))
    stacked = next(arm for arm in ARMS if arm.name == "stack")
    book.run(worked(proof, stacked, "dev"))
    steps = training_steps(proof)
    gate = stage(out / "gate", "readings", *proof.served, "--prompt.profile", stacked.profile,
                 worked=out / "worked-dev-stack", adapter=out / "adapter-stack")  # fmt: skip
    book.together([
        [train(proof, arm, steps[arm.name]), *([gate] if arm is stacked else []), *scores(proof, arm)]
        for arm in proof.arms
    ])  # fmt: skip
    last = [[vote(proof, size) for size in CONTEXTS]]
    if proof.sizes.grpo:
        last.append([reinforced(proof, stacked), *scores(proof, stacked, "grpo")])
    book.together(last)


def worked(proof: StackProof, arm: Arm, split: str) -> Stage:
    """The arm's supervised steps of that split's worked episodes."""
    suffix = arm.name if split == "train" else f"{split}-{arm.name}"
    episodes = proof.out / f"episodes-{suffix}.jsonl"
    proof.out.mkdir(parents=True, exist_ok=True)
    stack_words.write_worked(atlas.task(f"worked.{split}"), episodes, arm.words)
    return stage(
        proof.out / f"worked-{suffix}", "worked", *_profile(arm), episodes=episodes, limit=proof.sizes.episodes,
        corpus=atlas.path("corpus"), index=proof.out / "index",
    )  # fmt: skip


def _profile(arm: Arm) -> tuple[str, ...]:
    return ("--prompt.profile", arm.profile, "--episode.depth", str(DEPTH))


def training_steps(proof: StackProof) -> dict[str, int]:
    """Batches of each arm: all see as many supervised tokens as the longest arm does in its passes."""
    from steprag.engines.models import EMBEDDED, resolve_model
    from steprag.engines.tokens import load_tokenizer
    from steprag.yaml_files import read_yaml

    tokenizer = load_tokenizer(resolve_model(EMBEDDED))
    batch = read_yaml(recipe("warmstart"))["batch_size"]
    rows, tokens = {}, {}
    for arm in proof.arms:
        texts = [row.completion[0]["content"] for row in _rows(proof, arm)]
        rows[arm.name] = len(texts)
        tokens[arm.name] = sum(len(ids) for ids in tokenizer(texts)["input_ids"])
    most = max(tokens.values())
    return {
        name: math.ceil(proof.sizes.passes * rows[name] * most / tokens[name] / batch) for name in rows
    }  # fmt: skip


def _rows(proof: StackProof, arm: Arm) -> list[Trajectory]:
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
    base = ARMS[0]
    took = [_tokens(proof.out / f"forks-{size}-{name}") for name in ("stack", base.name)]
    times = min(MOST_VOTES, max(2, round(took[0] / max(1, took[1]))))
    sampled = ("--policy.temperature", "0.7", "--policy.min_p", "0.05", "--best_of", str(times))
    adapter = ("--adapter", str(proof.out / f"adapter-{base.name}"))
    return _infer(proof, base, f"forks-{size}-vote", "forks", size, *adapter, *sampled)


def _tokens(run: Path) -> int:
    usage = sum((one.usage for one in read_records(run / "predictions.jsonl", Prediction)), Usage())
    return usage.prompt_tokens + usage.completion_tokens


def reinforced(proof: StackProof, arm: Arm) -> Stage:
    """GRPO on top of the arm's adapter, on the questions of its worked episodes."""
    questions = proof.out / "grpo.jsonl"
    write_records(questions, _questions())
    return stage(proof.out / "grpo", "train", *fast(), *_profile(arm), "--grpo.max_tokens", "96",
                 config=recipe("grpo"), questions=questions, index=proof.out / "index",
                 adapter=proof.out / f"adapter-{arm.name}", max_steps=proof.sizes.grpo)  # fmt: skip


def _questions() -> list[Question]:
    """The worked episodes' questions with more than one reading to make."""
    return [one for one in read_questions(atlas.task("worked.train")) if one.metadata["type"] not in ("ledger-1",)]


def tables(proof: StackProof) -> list[tuple[str, list[Contender]]]:
    """What the report compares: a heading, and the runs under it, the base first."""
    found = []
    for task in TASKS:
        for size in CONTEXTS:
            names = [(arm.name, arm.label) for arm in proof.arms]
            if task == "forks":
                names.append(("vote", "transcript, best of N by vote"))
            if proof.sizes.grpo:
                names.append(("grpo", "stack, then GRPO"))
            runs = [Contender(label, proof.out / f"{task}-{size}-{name}") for name, label in names]
            found.append((f"{task.capitalize()}, context of {size:,} tokens", runs))
    return found


def title(proof: StackProof) -> dict[str, Any]:
    """What the report's introduction says of the run."""
    counts = Counter(one.action for one in _rows(proof, proof.arms[1]))
    asked = {**vars(proof.sizes), "engine": proof.engine, "lanes": proof.lanes}
    if len(proof.arms) < len(ARMS):
        asked["arms"] = " ".join(arm.name for arm in proof.arms)
    return {"asked": asked, "episodes": proof.sizes.episodes, "actions": dict(counts)}


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
