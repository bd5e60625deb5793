"""What new nodes of a search are worth: functions by `reward.name`, which the search takes as an argument."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from data_generation.config import GenerateConfig
from data_generation.growth import SearchNode, seed_of
from steprag.agent.belief import probability
from steprag.agent.judge import Judge, Judgement
from steprag.tree import discounted
from steprag.types import Question, Usage


@dataclass(frozen=True)
class Fresh:
    """What an iteration made: the leaf's children but refused ones, answers with their F1, steps that keep evidence."""

    children: Sequence[SearchNode]
    answers: Sequence[SearchNode]
    kept: Sequence[SearchNode] = ()


Valued = tuple[list[tuple[SearchNode, float]], Usage]
"""Branches with the rewards to back up from them, in that order, and what the judge cost."""
Value = Callable[[Question, Fresh], Awaitable[Valued]]
"""What an iteration's new nodes are worth. Raises RequestError."""


def outcome(answer: SearchNode, alpha: float) -> float:
    """An answer's F1, discounted by `alpha` a step: 0 to 1."""
    return discounted(answer.record.prediction_f1 or 0.0, answer.record.depth, alpha)


def outcomes(answers: Sequence[SearchNode], alpha: float) -> list[tuple[SearchNode, float]]:
    """Every answer with its outcome."""
    return [(node, outcome(node, alpha)) for node in answers]


async def spre_value(
    question: Question, fresh: Fresh, config: GenerateConfig, judge: Judge | None, *, believed: bool = False
) -> Valued:
    """The outcomes of the answers (SPRE, arXiv 2505.14069); no judge is asked.

    `believed`: also, for each new step that keeps evidence, the probability that the policy gives the golden answer
    there: each counts as one visit. Where the search asked no belief, because the question can be guessed, outcomes
    alone.
    """
    asked = fresh.kept if believed else ()
    beliefs = [(node, probability(node.record.belief)) for node in asked if node.record.belief]
    return outcomes(fresh.answers, config.reward.alpha) + beliefs, Usage()


async def judge_value(question: Question, fresh: Fresh, config: GenerateConfig, judge: Judge | None) -> Valued:
    """The judge's scores. A reply without a score is not a score of zero: nothing is backed up from that node."""
    judged = await _judged(question, fresh, config, judge)
    usage = sum((said.usage for _, said in judged), Usage())
    return [(node, said.score) for node, said in judged if said.score is not None], usage


async def mixed_value(question: Question, fresh: Fresh, config: GenerateConfig, judge: Judge | None) -> Valued:
    """The judge's scores, and for answers a mean of score and outcome that `reward.weight` weighs."""
    valued, usage = await judge_value(question, fresh, config, judge)
    share, alpha = config.reward.weight, config.reward.alpha
    mixed = [
        (node, score if node.record.prediction_f1 is None else (1 - share) * outcome(node, alpha) + share * score)
        for node, score in valued
    ]
    return mixed, usage


VALUES: dict[str, Callable[..., Awaitable[Valued]]] = {
    "spre": spre_value,
    "judge": judge_value,
    "mixed": mixed_value,
    "gain": partial(spre_value, believed=True),
}
"""By `reward.name`; `make_searcher` sets the recipe and the judge."""


async def _judged(
    question: Question, fresh: Fresh, config: GenerateConfig, judge: Judge | None
) -> list[tuple[SearchNode, Judgement]]:
    """What the judge says, asked all at once and noted in the nodes: of the answers, or, where nothing is played to its
    end, of the leaf's new children (the published rule).
    """
    if judge is None:
        raise ValueError(f"reward.name {config.reward.name} asks a judge, and none was opened")
    asked = fresh.answers if config.search.play else fresh.children
    seeds = [seed_of(config.seed, question.id, node) + node.visits for node in asked]
    scores = (judge.score(question, node.state, seed=seed) for node, seed in zip(asked, seeds, strict=True))
    said = await asyncio.gather(*scores)
    for node, judgement in zip(asked, said, strict=True):
        node.record = node.with_facts(judge={"score": judgement.score, "text": judgement.text})
    return list(zip(asked, said, strict=True))
