"""Turn rewards for GRPO: what each step of an episode added to the policy's belief in the golden answer.

As IGPO (arXiv 2510.14967) rewards turns, with floored sums of logarithms (`steprag.agent.belief`) in place of mean
probabilities. Beliefs are those of the weights under training, read after the episodes were played. A controlled study
(arXiv 2605.27881) found outcome rewards alone as good or better in most settings: measure before you rely on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import mean, pstdev
from typing import TYPE_CHECKING

from steprag.agent.belief import FLOOR, MOST_ANSWERS
from steprag.agent.environment import Environment
from steprag.engines.tokens import prompt_tokens
from steprag.scores.metrics import guessable
from steprag.types import Episode, Question, State
from training.play.rewards import SAME

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Scored = tuple[list[int], list[int]]
"""The ids of a prompt and of a text behind it."""
Score = Callable[[list[Scored]], list[float]]
"""To each pair of prompt and text the text's log-probability, by the weights as they stand."""


def turn_gains(
    question: Question,
    episodes: Sequence[Episode],
    environment: Environment,
    tokenizer: PreTrainedTokenizerBase,
    score: Score,
) -> list[list[float]]:
    """For every episode, for every step that does not end it, the gain in floored nats, over the floor: -1 to 1.

    No step gains anything where the question can be guessed: belief means nothing there, and nothing is scored.
    """
    paths = [open_states(episode, environment) for episode in episodes]
    if guessable(question.question, question.golden_answers):
        return [[0.0] * (len(path) - 1) for path in paths]
    answer = environment.profile.grammar.answer
    golden = tuple(dict.fromkeys(question.golden_answers))[:MOST_ANSWERS]
    texts = [tokenizer.encode(answer.tail(each), add_special_tokens=False) for each in golden]
    prompts = [prompt_tokens(environment.announced(state), tokenizer) for path in paths for state in path]
    logprobs = score([(prompt, text) for prompt in prompts for text in texts])
    beliefs = iter([max(FLOOR, *logprobs[i : i + len(texts)]) for i in range(0, len(logprobs), len(texts))])
    along = [[next(beliefs) for _ in path] for path in paths]
    return [[(after - before) / -FLOOR for before, after in pairwise(path)] for path in along]


def open_states(episode: Episode, environment: Environment) -> list[State]:
    """The states of an episode that are not at its end, from its first."""
    states = [episode.state]
    while states[-1].steps:
        states.append(states[-1].before)
    return [state for state in reversed(states) if not environment.ended(state)]


def normalised(gains: Sequence[Sequence[float]], scale: str) -> list[list[float]] | None:
    """Each gain against the mean of all turns of the group; with scale "group" in their standard deviations.

    None where all are alike. Apart from the outcome, so that a group whose episodes all fail still compares its
    turns.
    """
    every = [gain for episode in gains for gain in episode]
    if not every or max(every) - min(every) < SAME:
        return None
    center, spread = mean(every), pstdev(every) if scale == "group" else 1.0
    return [[(gain - center) / spread for gain in episode] for episode in gains]
