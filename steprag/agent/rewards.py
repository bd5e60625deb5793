"""Rewards of an episode: small functions by name, weighed in GRPO's recipe (`grpo.rewards`).

A reward sees the question and what the policy did (steps, searches, the completion that was refused), never the prompt,
so no word of ours earns anything. None means that the reward says nothing of the episode, as where a question has no
gold passages.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean

from steprag.agent.grammar import Grammar
from steprag.agent.stack import live
from steprag.errors import ConfigError, nearest, quoted
from steprag.extras import function_at
from steprag.scores.gold import Gold, em_of, gold_of, mentions, subject
from steprag.scores.metrics import SAYS_NOTHING, normalise
from steprag.scores.metrics import f1 as token_f1
from steprag.scores.words import rouge_l
from steprag.types import Episode, Passage, Question, Step

ROUGE_FLOOR = 0.2
"""ROUGE-L below which `rouge_floor` punishes an answer."""
APPROXIMATE = 0.5
"""What a completion that just misses the grammar is worth to `format_tiers`, at most; an exact one is worth 1."""
ENOUGH = 3
"""Different connectors from which more earn nothing."""
CONNECTORS = (
    "because", "since", "therefore", "thus", "hence", "so that", "which means", "however", "although", "first",
    "second", "then", "finally", "in contrast", "因为", "所以", "因此", "但是", "首先", "其次", "然后", "最后",
)  # fmt: skip
"""Words with which reasoning continues."""


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


def rouge_floor(played: Played) -> float:
    """A penalty: -1 where ROUGE-L of the answer is below `ROUGE_FLOOR`, or there is none; else 0. Extra `quality`."""
    return 0.0 if rouge(played) >= ROUGE_FLOOR else -1.0


def format_kept(played: Played) -> float:
    """The share of the completions that follow the grammar and say something (`_hollow`): right tags around nothing
    earn nothing.
    """
    return _followed(played, 0.0)


def format_tiers(played: Played) -> float:
    """As `format_kept`, in tiers: a completion that the grammar refused is worth up to `APPROXIMATE`, half of it for an
    opening tag and half for a closing one, each there once. Tags of several actions earn nothing.
    """
    return _followed(played, _near(played))


def _followed(played: Played, near: float) -> float:
    steps = len(played.episode.state.steps)
    exact = sum(not _hollow(played, at) for at in range(steps))
    return (exact + near) / max(1, steps + (played.episode.refused is not None))


def _near(played: Played) -> float:
    """What the tags of the completion that was refused are worth, 0 to `APPROXIMATE`."""
    said = played.episode.refused or ""
    counts = [(said.count(each.opening), said.count(each.closing)) for each in played.grammar.actions]
    touched = [pair for pair in counts if any(pair)]
    if len(touched) != 1 or not _WORD.search(re.sub(r"<[^<>]*>", "", said)) or played.episode.finish == "empty_content":
        return 0.0
    return APPROXIMATE * sum(count == 1 for count in touched[0]) / 2


_WORD = re.compile(r"\w")


def _hollow(played: Played, at: int) -> bool:
    """Whether a step has right tags and no reasoning: nothing but marks between them, "None" (but as evidence: a search
    may find nothing), no thought where the grammar asks for one, or an answer at once, without a thought or a step
    before it, where the grammar has other steps.
    """
    step, grammar = played.episode.state.steps[at], played.grammar
    action = grammar.action(step.action)
    if not _WORD.search(step.content) or (not action.keeps and normalise(step.content) in SAYS_NOTHING - {""}):
        return True
    thought = played.episode.reasoning > 0 or _WORD.search(_thought(step, grammar)) is not None
    at_once = at == 0 and action.terminal and len(grammar.actions) > 1
    wanted = action.thought and bool(grammar.thought_tags or grammar.must_think)
    return not thought and (at_once or wanted)


def _thought(step: Step, grammar: Grammar) -> str:
    """What a step says before its lead and tag, without the tags of a thought."""
    action = grammar.action(step.action)
    before = step.text.partition(action.opening)[0].rstrip().removesuffix(action.lead)
    for tag in ("<think>", "</think>", *(grammar.thought_tags or ())):
        before = before.replace(tag, "")
    return before.strip()


def reasoning(played: Played) -> str:
    """An episode's own words on the stack: thoughts, and contents of the steps that keep; no query and no answer."""
    steps, grammar = played.episode.state.steps, played.grammar
    if grammar.free:  # no tags tell a thought from an answer
        return ""
    on = [steps[at] for at in live(steps, grammar)]
    kept = [one.content if grammar.action(one.action).keeps else "" for one in on]
    return "\n".join(f"{_thought(one, grammar)} {content}" for one, content in zip(on, kept, strict=True))


def keywords(played: Played) -> float | None:
    """The share of the words of the question and a golden answer (numbers, words from four letters) that its reasoning
    has, by the best golden answer; None without such words. Words need blanks between them.
    """
    said, asked = _keywords(reasoning(played)), _keywords(played.question.question)
    wanted = [asked | _keywords(answer) for answer in played.question.golden_answers]
    return max((len(words & said) / len(words) for words in wanted if words), default=None)


def _keywords(text: str) -> set[str]:
    return {word for word in normalise(text).split() if len(word) > 3 or word.isdigit()}


def connectors(played: Played) -> float:
    """How many different connectors (`CONNECTORS`) its reasoning has, of `ENOUGH`, 0 to 1. Easily had for nothing: log
    it (weight 0) or weigh it little.
    """
    said = f" {normalise(reasoning(played))} "
    found = sum((f" {word} " if word.isascii() else word) in said for word in CONNECTORS)
    return min(1.0, found / ENOUGH)


def evidence(played: Played) -> float | None:
    """The share of the gold passages that were found and whose subject the kept text names.

    Kept is what the steps on the stack say whose action keeps (`Action.keeps`). None without gold, and for a grammar
    without such actions. A proxy, the same as for pairs of kept facts: it asks for the title's words, not for the fact.
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
# formulas over verdicts, which the trainer asks a judge for.


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
    continued from where they did (after ReSeek, arXiv 2510.00568). None without gold, without a search, and for a
    grammar that takes nothing back.
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
    **{each.__name__: each for each in (format_tiers, keywords, connectors, rouge_floor)},
    "format": format_kept,
}
WITHOUT_A_STEP = frozenset({"format_tiers", "rouge_floor"})
"""Those that also speak of an episode whose first completion was refused; there all others are 0 in GRPO."""
NEEDS_QUALITY = frozenset({"rouge", "rouge_floor"})
"""Those that need the extra `quality`."""


def reward_at(name: str, key: str) -> Reward:
    """The reward of that name, or the user's own function `module:function` of an episode.

    Raises ConfigError, which names `key`, for one that does not exist, cannot be imported or takes a tree.
    """
    if ":" not in name:
        if name not in REWARDS:
            raise ConfigError(f"{key}: unknown reward {quoted(name)}{nearest(name, list(REWARDS))}; yours is named "
                              "module:function")  # fmt: skip
        return REWARDS[name]
    function = function_at(name, key)
    if not takes(function, 1):
        raise ConfigError(f"{key}: {name} takes a tree and its grammar, as a label of steprag pairs; give a function "
                          "of one argument, the episode")  # fmt: skip
    return function


def takes(function: Callable[..., object], count: int) -> bool:
    """Whether it can be called with so many arguments: a label of trees with a tree and its grammar, a reward with an
    episode.
    """
    try:
        inspect.signature(function).bind(*[None] * count)
    except (TypeError, ValueError):  # it wants more, or is built in and does not tell
        return False
    return True


def value_of(name: str, played: Played, key: str) -> float | None:
    """What the reward says of the episode. Raises ConfigError for anything but a finite number or None."""
    value = reward_at(name, key)(played)
    if not (value is None or (isinstance(value, int | float) and math.isfinite(value))):
        raise ConfigError(f"{key}: {name} says {quoted(value)} of an episode; return a finite number or None")
    return value


def _found(played: Played) -> list[Passage]:
    return [passage for search in played.episode.retrieved for passage in search]


def _marked(search: Sequence[Passage], gold: Gold) -> list[bool]:
    return [gold.matches(passage) is not None for passage in search]
