"""What new nodes of a search are worth: plain functions, chosen by `reward.name`, that the search takes as an argument.

Another value is another function and a row of `VALUES`; the search has no branch for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from data_generation.config import GenerateConfig
from data_generation.growth import Branch, seed_of
from steprag.agent.judge import Judge, Judgement
from steprag.gain import probability
from steprag.tree import discounted
from steprag.types import Question, Usage


@dataclass(frozen=True)
class Fresh:
    """What one iteration made: the leaf's new children that were not refused, the answers below, scored by F1, and all
    new steps that keep evidence.
    """

    children: Sequence[Branch]
    answers: Sequence[Branch]
    kept: Sequence[Branch] = ()


Valued = tuple[list[tuple[Branch, float]], Usage]
"""Branches with the rewards to back up from them, in that order, and what the judge cost."""
Value = Callable[[Question, Fresh], Awaitable[Valued]]
"""What an iteration's new nodes are worth. Raises RequestError."""


def outcome(answer: Branch, alpha: float) -> float:
    """An answer's F1, discounted by `alpha` a step: 0 to 1."""
    return discounted(answer.node.prediction_f1 or 0.0, answer.node.depth, alpha)


def outcomes(answers: Sequence[Branch], alpha: float) -> list[tuple[Branch, float]]:
    """Every answer with its outcome."""
    return [(branch, outcome(branch, alpha)) for branch in answers]


def spre_value(config: GenerateConfig, judge: Judge | None) -> Value:
    """The outcomes of the answers (SPRE, arXiv 2505.14069); no judge is asked."""
    del judge

    async def value(question: Question, fresh: Fresh) -> Valued:
        del question
        return outcomes(fresh.answers, config.reward.alpha), Usage()

    return value


def judge_value(config: GenerateConfig, judge: Judge | None) -> Value:
    """The judge's scores. A reply without a score is not a score of zero: that branch backs nothing up."""

    async def value(question: Question, fresh: Fresh) -> Valued:
        judged = await _judged(question, fresh, config, judge)
        usage = sum((said.usage for _, said in judged), Usage())
        return [(branch, said.score) for branch, said in judged if said.score is not None], usage

    return value


def mixed_value(config: GenerateConfig, judge: Judge | None) -> Value:
    """The judge's scores, and for answers a mean of score and outcome that `reward.weight` weighs."""
    scored, reward = judge_value(config, judge), config.reward

    def mixed(branch: Branch, score: float) -> float:
        if branch.node.prediction_f1 is None:
            return score
        return (1 - reward.weight) * outcome(branch, reward.alpha) + reward.weight * score

    async def value(question: Question, fresh: Fresh) -> Valued:
        valued, usage = await scored(question, fresh)
        return [(branch, mixed(branch, score)) for branch, score in valued], usage

    return value


def belief_value(config: GenerateConfig, judge: Judge | None) -> Value:
    """The outcomes of the answers and, for each new step that keeps evidence, the probability that the policy gives the
    golden answer there: each counts as one visit. Where the search asked no belief, because the question can be
    guessed, outcomes alone.
    """
    del judge

    async def value(question: Question, fresh: Fresh) -> Valued:
        del question
        believed = [(branch, probability(branch.node.belief)) for branch in fresh.kept if branch.node.belief]
        return outcomes(fresh.answers, config.reward.alpha) + believed, Usage()

    return value


VALUES: dict[str, Callable[[GenerateConfig, Judge | None], Value]] = {
    "spre": spre_value,
    "judge": judge_value,
    "mixed": mixed_value,
    "gain": belief_value,
}
"""By `reward.name`."""


async def _judged(
    question: Question, fresh: Fresh, config: GenerateConfig, judge: Judge | None
) -> list[tuple[Branch, Judgement[float]]]:
    """What the judge says, asked all at once and noted in the nodes: of the answers, or, where nothing is played to its
    end, of the leaf's new children (the published rule).
    """
    if judge is None:
        raise ValueError(f"reward.name {config.reward.name} asks a judge, and none was opened")
    asked = fresh.answers if config.search.play else fresh.children
    said = await asyncio.gather(
        *(
            judge.score(question, branch.state, seed=seed_of(config.seed, question.id, branch) + branch.visits)
            for branch in asked
        )
    )
    for branch, judgement in zip(asked, said, strict=True):
        branch.node = replace(branch.node, judge={"score": judgement.score, "text": judgement.text})
    return list(zip(asked, said, strict=True))
