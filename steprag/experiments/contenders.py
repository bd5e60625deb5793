"""Who meets in `steprag reproduce`: names, labels and the options of `steprag infer` that make each of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from steprag.experiments.stages import Contender
from steprag.files import read_json

WARM = "atlas-warmstart"
VOTES = 4
"""Episodes a question in best-of-N."""
LABELS = {
    "warm": "warm start",
    "shipped": "warm start from every worked episode",
    "bare": "bare model, 2 worked examples",
    "vote": f"warm start, best of {VOTES} by vote",
    "sft1": "SFT on the best ways found",
    "gain": "steps by gain",
    "cover": "steps by string match",
    "rollouts": "steps by rollouts",
    "outcome": "outcomes alone",
    "dpo1": "all steps by gain",
    "dpo2": "the same on both rounds together",
    "dpo3": "the same on three rounds together",
    "grpo": "both rounds, then GRPO with turn rewards",
}
"""Contenders by the folder of what was trained; the first is what the table's differences are from. `shipped` is one
beside a warm start from fewer episodes alone: what more of them would have brought. `gain` to `outcome` are the arms
(`arms.RULES`): SFT, then DPO, on as many steps and as many pairs each. `dpo1` is the same on all that `gain` found.
"""
UNTRAINED = ("vote", "warm", "shipped", "bare")
"""Those who can be scored before anything is learnt from a search, the longest first."""


@dataclass(frozen=True)
class Sizes:
    """How much of everything; HELP says what each number counts."""

    demos: int
    train: int
    second: int
    third: int
    test: int
    sft_steps: int
    dpo_steps: int
    grpo: int
    elsewhere: int

    HELP: ClassVar[dict[str, str]] = {
        "demos": "worked episodes that the warm start learns; 0: the shipped adapter",
        "train": "questions of the first search",
        "second": "questions of the second search",
        "third": "questions of a third search; 0: none",
        "test": "test questions",
        "sft_steps": "steps of a supervised training at most, for each round it learns from",
        "dpo_steps": "the same of DPO",
        "grpo": "steps of reinforcement learning; 0: none",
        "elsewhere": "questions of every other set (--also)",
    }


@dataclass(frozen=True)
class QuestionSet:
    """Questions beside Atlas, with the corpus that answers them; `name` is the questions' file without its ending."""

    name: str
    questions: Path
    corpus: Path


@dataclass(frozen=True)
class Proof:
    """What `steprag reproduce` was asked for: `without` names contenders (`LABELS`) that are not scored, `lanes` is the
    stages that run side by side, and the runs that share each round's search. `trees`: finished trees of the first
    round's questions, which are then not searched.
    """

    out: Path
    sizes: Sizes
    without: tuple[str, ...]
    also: tuple[QuestionSet, ...]
    engine: str = "llamacpp"
    lanes: int = 1
    trees: Path | None = None

    @property
    def scored(self) -> tuple[str, ...]:
        """Names of those that answer the test questions."""
        left_out, sizes = {*self.without}, self.sizes
        optional = (("shipped", sizes.demos), ("dpo3", sizes.third), ("grpo", sizes.grpo))
        left_out |= {name for name, there in optional if not there}
        return tuple(name for name in LABELS if name not in left_out)

    @property
    def served(self) -> tuple[str, ...]:
        """Options of `steprag generate` and `steprag infer` that name the engine."""
        return served_by(self.engine)

    @property
    def warm(self) -> str:
        """The adapter that everything starts from."""
        return str(self.out / "warm") if self.sizes.demos else WARM


def served_by(engine: str) -> tuple[str, ...]:
    """Options that name an engine; llama.cpp is served without them, and vLLM is best with many requests."""
    many = ("--policy.concurrency", "24") if engine == "vllm" else ()
    return () if engine == "llamacpp" else ("--policy.engine", engine, *many)


def the_contenders(proof: Proof, names: Collection[str] | None = None) -> list[Contender]:
    """Those of `names` in the order of `LABELS`, by default those that answer the test questions."""
    warm = ("--adapter", proof.warm)
    sampled = ("--policy.temperature", "0.7", "--policy.min_p", "0.05")
    options: dict[str, tuple[str, ...]] = {
        "warm": warm,
        "shipped": ("--adapter", WARM),
        "bare": ("--prompt.examples", "2"),
        "vote": (*warm, "--best_of", str(VOTES), *sampled),
    }
    return [
        Contender(label, proof.out / f"infer-{name}", options.get(name, ("--adapter", str(proof.out / name))))
        for name, label in LABELS.items()
        if name in (proof.scored if names is None else names)
    ]


def best_trained(proof: Proof) -> str:
    """The trained contender with the greatest EM on the test questions, what failed counted as wrong; that of both
    rounds if none was scored.
    """
    scores = {
        name: read_json(proof.out / f"infer-{name}" / "metrics.json")["strict_em"]
        for name in LABELS
        if name in proof.scored and name not in UNTRAINED
    }
    return max(scores, key=scores.__getitem__, default="dpo2")


def elsewhere(proof: Proof, questions: QuestionSet) -> list[Contender]:
    """Who answers the questions of another set: the warm start, and the best that was trained."""
    return [
        replace(contender, run=contender.run.with_name(f"{contender.run.name}-{questions.name}"))
        for contender in the_contenders(proof, ("warm", best_trained(proof)))
    ]
