"""Rewards of an episode, for GRPO: small functions by name, weighed in the recipe (`grpo.rewards`).

A reward sees the question and what the policy did (steps, searches, the completion that was refused), never the prompt,
so no word of ours earns anything. None means that the reward says nothing of the episode, as where a question has no
gold passages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from steprag.agent.grammar import Grammar
from steprag.agent.stack import live
from steprag.errors import ConfigError, nearest, quoted
from steprag.extras import function_at
from steprag.scores.gold import Gold, em_of, gold_of, mentions, subject
from steprag.scores.metrics import f1 as token_f1
from steprag.scores.metrics import normalise, rouge_l
from steprag.types import Episode, Passage, Question

SAME = 1e-6
"""Rewards that differ by less are alike."""


@dataclass(frozen=True)
class Played:
    """A finished episode as rewards see it: `grammar` says what its actions do, `tokens` how many the policy sampled.

    What the judge said, each None where it was not asked or a reply could not be read: `judged` is its score of the
    answer, 0 to 1; `supported` its verdicts on the claims of what was kept; `useful` those on the passages of each
    search; `relevancy` how near the question is to those that the answer would answer, 0 to 1.
    """

    question: Question
    episode: Episode
    grammar: Grammar
    tokens: int
    judged: float | None = None
    supported: tuple[bool, ...] | None = None
    useful: tuple[tuple[bool, ...], ...] | None = None
    relevancy: float | None = None


Reward = Callable[[Played], float | None]


def em(played: Played) -> float:
    """1 where the answer is a golden one, normalised, else 0; of several parts the share that is right."""
    return em_of(played.episode.prediction, played.question)


def f1(played: Played) -> float:
    """Token F1 of the answer against the best golden one; yes and no are right or wrong."""
    return token_f1(played.episode.prediction, played.question.golden_answers)


def rouge(played: Played) -> float:
    """ROUGE-L's F measure of the answer against the best golden one; 0 without an answer. Needs the extra `quality`."""
    return rouge_l(played.episode.prediction, played.question.golden_answers)


def judge(played: Played) -> float | None:
    """The judge's score of an episode that ended with an answer; 0 without one."""
    return 0.0 if played.episode.prediction is None else played.judged


def format_kept(played: Played) -> float:
    """The share of the completions that follow the grammar: 1 for an episode that ended with an answer."""
    kept = len(played.episode.state.steps)
    return kept / (kept + (played.episode.refused is not None))


def evidence(played: Played) -> float | None:
    """The share of the gold passages that were found and whose subject the kept text names.

    Kept is what the steps on the stack say whose action keeps (`Action.keeps`). None without gold, and for a grammar
    without such actions. A proxy, the same as in `preference.kept`: it asks for the title's words, not for the fact.
    """
    gold = gold_of(played.question)
    if gold is None or not any(action.keeps for action in played.grammar.actions):
        return None
    found = {mark: subject(p.title) for p in _found(played) if (mark := gold.matches(p)) is not None}
    return gold.share(sum(mentions(kept_text(played), found.values())))


def kept_text(played: Played) -> str:
    """What the steps on the stack say whose action keeps (`Action.keeps`), a line each."""
    steps, grammar = played.episode.state.steps, played.grammar
    return "\n".join(steps[at].content for at in live(steps, grammar) if grammar.action(steps[at].action).keeps)


def recall(played: Played) -> float | None:
    """The share of the gold passages that the searches found; None without gold."""
    gold = gold_of(played.question)
    return gold.recall(_found(played)) if gold else None


# RAGAS's metrics by its definitions (arXiv 2309.15217), golden-tested against its package (`tests/ragas_golden.json`):
# formulas over verdicts; `training.play.judging` asks for the verdicts.


def precision_of(useful: Sequence[bool]) -> float:
    """How far up the useful passages of a search stand: Σ(P@k·v_k) / Σv_k, best first; 0 where none is useful."""
    at = [sum(useful[: place + 1]) / (place + 1) for place, one in enumerate(useful) if one]
    return sum(at) / len(at) if at else 0.0


def share_of(supported: Sequence[bool]) -> float | None:
    """The share of the claims that the passages bear out; None without a claim."""
    return mean(map(float, supported)) if supported else None


def relevancy_of(cosines: Sequence[float], noncommittal: Sequence[bool]) -> float | None:
    """The mean cosine of the question with those that the answer would answer, 0 where the answer is evasive by all of
    them; None where nothing was written back. Below 0 it counts as 0, for rewards lie between 0 and 1.
    """
    if not cosines:
        return None
    return 0.0 if all(noncommittal) else max(0.0, mean(cosines))


def context_precision(played: Played) -> float | None:
    """How far up each search has the passages that help (`precision_of`), the mean over the searches; 0 without one.

    A marked passage helps; where the question marks none, one that the judge calls useful. The judge is asked of
    answers alone: without an answer 0, None where it did not say.
    """
    gold = gold_of(played.question)
    if gold is not None:
        helped = [_marked(search, gold) for search in played.episode.retrieved]
    elif played.episode.prediction is None or not played.episode.retrieved:
        return 0.0
    elif played.useful is None:
        return None
    else:
        helped = [[*search] for search in played.useful]
    return mean(map(precision_of, helped)) if helped else 0.0


def faithfulness(played: Played) -> float | None:
    """The share of the claims of what it kept that the passages it found bear out, as the judge says.

    0 without an answer; None where it kept nothing or made no claim.
    """
    if played.episode.prediction is None:
        return 0.0
    return None if played.supported is None else share_of(played.supported)


def answer_relevancy(played: Played) -> float | None:
    """How near the question is to those that the answer would answer; 0 without an answer. Says little of answers of
    one word: log it (weight 0) rather than reward it.
    """
    return 0.0 if played.episode.prediction is None else played.relevancy


def grounded(played: Played) -> float | None:
    """1 where the answer stands, word for word, in a passage that a search found; 0 without an answer.

    None for an answer that is yes or no, which stands in no passage.
    """
    said = normalise(played.episode.prediction or "")
    if said in ("yes", "no"):
        return None
    read = (f" {normalise(f'{p.title} {p.text}')} " for search in played.episode.retrieved for p in search)
    return float(bool(said) and any(f" {said} " in text for text in read))


def judgement(played: Played) -> float | None:
    """The share of the searches that were rightly kept or dropped: taken back at once where they found no gold passage,
    gone on from where they did (after ReSeek, arXiv 2510.00568). None without gold, without a search, and for a grammar
    that takes nothing back.
    """
    gold, steps, effects = gold_of(played.question), played.episode.state.steps, played.grammar.effects
    if gold is None or "pop" not in effects.values():
        return None
    calls = [place for place, step in enumerate(steps) if effects[step.action] == "call"]
    retrieved = played.episode.retrieved
    # a profile that searches with the question first has one search more, which is no step's
    own = retrieved[max(0, len(retrieved) - len(calls)) :]
    right = [
        (effects[steps[place + 1].action] == "pop") != any(_marked(search, gold))
        for place, search in zip(calls, own, strict=False)
        if place + 1 < len(steps)
    ]
    return mean(right) if right else None


def cost(played: Played) -> float:
    """Searches made; weigh it below 0."""
    return float(len(played.episode.retrieved))


def length(played: Played) -> float:
    """Hundreds of tokens sampled; weigh it below 0."""
    return played.tokens / 100


REWARDS: dict[str, Reward] = {
    **{each.__name__: each for each in (em, f1, rouge, judge, evidence, recall, context_precision, faithfulness)},
    **{each.__name__: each for each in (answer_relevancy, grounded, judgement, cost, length)},
    "format": format_kept,
}


def _found(played: Played) -> list[Passage]:
    return [passage for search in played.episode.retrieved for passage in search]


def _marked(search: Sequence[Passage], gold: Gold) -> list[bool]:
    return [gold.matches(passage) is not None for passage in search]


def check_names(weights: Mapping[str, float]) -> None:
    """Raises ConfigError for a reward that does not exist, with the nearest that does, or cannot be imported."""
    for name in weights:
        if ":" in name:
            function_at(name, "grpo.rewards")
        elif name not in REWARDS:
            raise ConfigError(f"grpo.rewards: unknown reward {quoted(name)}{nearest(name, list(REWARDS))}")


@dataclass(frozen=True)
class Scores:
    """What the episodes of a group were worth: each term alone, by name, and the weighted sum of those that count."""

    terms: dict[str, list[float | None]]
    totals: list[float]


def score(group: Sequence[Played], weights: Mapping[str, float]) -> Scores:
    """Scores the episodes of one question.

    An episode without a single step (its first completion was empty, or no step) scores 0 in every term that says
    something of it. A term that says nothing of one episode is left out of the whole group's sums, so that all are
    measured alike.
    """
    terms = {name: [_term(name, played) for played in group] for name in weights}
    totals = [0.0] * len(group)
    for name, values in terms.items():
        told = [value for value in values if value is not None]
        if len(told) == len(group):
            totals = [total + weights[name] * value for total, value in zip(totals, told, strict=True)]
    return Scores(terms, totals)


def _term(name: str, played: Played) -> float | None:
    value = function_at(name, "grpo.rewards")(played) if ":" in name else REWARDS[name](played)
    if not (value is None or (isinstance(value, int | float) and math.isfinite(value))):
        raise ConfigError(f"grpo.rewards: {name} says {quoted(value)} of an episode; return a finite number or None")
    return value if value is None or played.episode.state.steps else 0.0


def advantages(totals: Sequence[float], scale: str) -> list[float] | None:
    """Each total against the group's mean; with scale "group" in its standard deviations (arXiv 2402.03300).

    None for a group whose totals are all alike: it tells nothing, and divided by next to nothing it would tell noise.
    """
    if max(totals) - min(totals) < SAME:
        return None
    spread = stdev(totals) if scale == "group" else 1.0
    return [(total - mean(totals)) / spread for total in totals]
