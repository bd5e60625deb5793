"""Contenders of `steprag reproduce`: names, labels, and options of `steprag pairs` and `steprag infer` for each."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from apps.reproduce.options import ProofOptions, ProofSizes, size
from apps.reproduce.stages import Contender
from steprag.records.jsonl import read_json

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
"""Contenders by the folder of what was trained; the first is what the table's differences are from. `shipped`, trained
on all 300 episodes, is scored only when this run's warm start used fewer. `gain` to `outcome` are the arms (`RULES`):
SFT, then DPO, on as many steps and as many pairs each. `dpo1` is the same on all that `gain` found.
"""
UNTRAINED = ("vote", "warm", "shipped", "bare")
"""Contenders that can be scored before any training on a search, the longest first."""

SOUND = ("--filters.repeating", "true", "--filters.again", "true", "--filters.unread", "true",
         "--filters.made_up", "true", "--pairs.cross_action", "false", "--balance.unsolved_first", "false",
         "--sft.per_tree", "3")  # fmt: skip
"""What is learnt from in every arm. A small model rambles, asks again, makes evidence up, and guesses at the end. Pairs
of a search and an answer are left out: the agent learnt to search on and on
(docs/figures/results.md). One episode a tree would be too few.
"""
STEPS = ("--label.grounded", "true", "--sft.paths", "shortest")
"""Only right episodes with their facts found (luck teaches guessing), and the shortest ones (others dawdle)."""
RULES = {
    "gain": (*SOUND, *STEPS, "--label.name", "gain", "--sft.partial", "kept"),
    "cover": (*SOUND, *STEPS, "--label.name", "cover", "--label.alpha", "1", "--sft.partial", "kept"),
    "rollouts": (*SOUND, "--label.name", "spre", "--label.alpha", "1", "--sft.paths", "surest"),
    "outcome": (*SOUND, "--label.name", "first_answer", "--label.metric", "em", "--label.alpha", "1",
                "--pairs.errors", "0", "--sft.paths", "all"),
}  # fmt: skip
"""What makes an arm's supervised steps and pairs: beliefs and found answers; string match; the mean of the rollouts
below; right episodes and where they part from wrong ones, whatever other episodes say. Without a discount: with one,
pairs would teach to answer early (docs/figures/results.md).
"""


@dataclass(frozen=True)
class Sizes(ProofSizes):
    """How much of everything."""

    demos: int = size(20, 0, "worked episodes that the warm start learns; 0: the shipped adapter", 0)
    train: int = size(100, 8, "questions of the first search")
    second: int = size(60, 8, "questions of the second search")
    third: int = size(0, 0, "questions of a third search; 0: none", 0)
    test: int = size(540, 12, "test questions")
    sft_steps: int = size(64, 3, "steps of a supervised training at most, for each round it learns from")
    dpo_steps: int = size(85, 4, "the same of DPO")
    grpo: int = size(20, 1, "steps of reinforcement learning; 0: none", 0)
    elsewhere: int = size(100, 4, "questions of every other set (--also)")


@dataclass(frozen=True)
class QuestionSet:
    """Questions beside Atlas, with the corpus that answers them; `name` is the questions' file without its ending."""

    name: str
    questions: Path
    corpus: Path


@dataclass(frozen=True, kw_only=True)
class Proof(ProofOptions):
    """What `steprag reproduce` was asked for.

    `lanes` runs share each round's search. `without` names contenders (`LABELS`) that are not scored. `trees`: finished
    trees of the first round's questions, which are then not searched.
    """

    sizes: Sizes
    without: tuple[str, ...] = ()
    also: tuple[QuestionSet, ...] = ()
    trees: Path | None = None

    @property
    def scored(self) -> tuple[str, ...]:
        """Names of the contenders that answer the test questions."""
        sizes = self.sizes
        optional = (("shipped", sizes.demos), ("dpo3", sizes.third), ("grpo", sizes.grpo))
        left_out = {*self.without, *(name for name, there in optional if not there)}
        return tuple(name for name in LABELS if name not in left_out)

    @property
    def warm(self) -> str:
        """The adapter that everything starts from."""
        return str(self.out / "warm") if self.sizes.demos else WARM


def the_contenders(proof: Proof, names: Collection[str] | None = None) -> list[Contender]:
    """The contenders of `names` in the order of `LABELS`; by default all that answer the test questions."""
    warm = ("--adapter", proof.warm)
    sampled = ("--policy.temperature", "0.7", "--policy.min_p", "0.05")
    options: dict[str, tuple[str, ...]] = {
        "warm": warm,
        "shipped": ("--adapter", WARM),
        "bare": ("--adapter", "none", "--prompt.examples", "2"),
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
        for name in proof.scored
        if name not in UNTRAINED
    }
    return max(scores, key=scores.__getitem__, default="dpo2")


def elsewhere(proof: Proof, questions: QuestionSet) -> list[Contender]:
    """The contenders that answer another set: the warm start, and the best trained one."""
    return [
        replace(contender, run=contender.run.with_name(f"{contender.run.name}-{questions.name}"))
        for contender in the_contenders(proof, ("warm", best_trained(proof)))
    ]
