"""One question answered: an episode of the agent, or the best of several, as a prediction."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from inference.best_of import Scorer, by_critic, by_vote, play
from steprag.agent.environment import Environment
from steprag.agent.rollout import Choose
from steprag.errors import RequestError
from steprag.policy.protocols import Policy
from steprag.tree import Failure
from steprag.types import Episode, Found, Prediction, Question, Usage


async def answer_one(
    question: Question,
    seed: int,
    environment: Environment,
    policy: Policy,
    *,
    best_of: int = 1,
    critic: Scorer | None = None,
    candidates: int = 1,
    choose: Choose | None = None,
) -> Prediction | Failure:
    """The question's prediction, or why it failed. `choose` takes each step of an episode from among `candidates`; of
    several episodes the critic takes one, or else their vote.
    """
    asked = question.question
    try:
        episodes = await play(
            environment, policy, asked, seed=seed, times=best_of, candidates=candidates, choose=choose
        )
    except RequestError as error:
        return Failure(question.id, type(error).__name__, str(error))
    if critic is None or best_of == 1:
        return _prediction(question, episodes, by_vote(episodes))
    return _prediction(question, episodes, await asyncio.to_thread(by_critic, episodes, environment, critic))


def _prediction(question: Question, episodes: Sequence[Episode], chosen: int) -> Prediction:
    """The chosen one of several episodes, with the answers and the usage of all."""
    episode = episodes[chosen]
    several = len(episodes) > 1
    return Prediction(
        id=question.id,
        question=question.question,
        golden_answers=question.golden_answers,
        prediction=episode.prediction,
        steps=episode.state.steps,
        passages=tuple(tuple(Found(p.id, p.title, p.score) for p in found) for found in episode.retrieved),
        usage=sum((each.usage for each in episodes), Usage()),
        finish=episode.finish,
        metadata=question.metadata,
        refused=episode.refused or None,
        answers=tuple(each.prediction for each in episodes) if several else None,
        chosen=chosen if several else None,
        searches=sum(len(each.retrieved) for each in episodes) if several else None,
        reasoning=sum(each.reasoning for each in episodes) or None,
        dataset=question.dataset,
    )
