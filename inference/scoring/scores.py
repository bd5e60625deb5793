"""The score of one prediction, and the interval of the mean of many."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache

from steprag.agent.compliance import Written, said_in, written
from steprag.scores.gold import em_of, gold_of, holds_golden
from steprag.scores.metrics import cover_match, guessable, normalise, overlap
from steprag.scores.stats import mean_interval, share_interval
from steprag.scores.words import bleu, rouge_l
from steprag.types import Prediction

HARNESS = 5
"""Raised whenever the same model would score otherwise: runs of different harnesses are not compared.

1: the first. 2: baselines' answers may have 100 characters; engines get every sampling option; a search that finds
nothing counts; choices are shown below their question. 3: a missing closing tag is not added where vLLM or SGLang says
that the model ended by itself; golden answers given as choice letters are replaced by the choices' text. 4: a
constrained step may begin with its lead, as worked episodes do that think nothing before it. 5: an answer without words
has F1 1 where it is the golden answer itself; golden numbers are places of choices; text behind a stop string is cut, a
stop string that broke off is completed, reasoning before a reply is split off.
"""

ERRORS = {
    "right": "exact match",
    "more words": "a golden answer stands in the answer as whole words, among others",
    "near": "half right: F1 of 0.5 or more, or some of several parts",
    "misread": "wrong, though the searches found every marked passage",
    "not found": "wrong, and a marked passage was not found",
    "wrong": "wrong; the question marks no passages",
    "no answer": "the episode ended without an answer; its ending says why",
}
"""The kinds of predictions; the first that fits counts. Questions that failed have no prediction."""


@dataclass(frozen=True)
class Score:
    """What one episode was worth. An episode without an answer scores 0, for that is what the model did.

    `gold`: the share of the marked passages that its searches found, None where none are marked. Of best-of-N, `tokens`
    and `searches` are what all N took; the rest is the chosen episode's.

    `steps`, `tokens`, `sampled`: None where another program played and does not tell.

    `sampled`: tokens that the policy wrote. `words`: those of the answer, normalised; None without one. `error`: a key
    of ERRORS. `written`: its completions by action (`steprag.agent.compliance`).

    `groups`: the question's `metadata.type`, if it has one, and "open", or "guessable" where the answer can be guessed
    from the question's own words.

    `rouge_l`, `bleu`, `bertscore`: how like the answer's words are to a golden answer's, 0 to 1 (BERTScore may lie
    below 0); None where they were not computed (`word_score`).
    """

    id: str
    em: float
    f1: float
    precision: float
    recall: float
    cover: float
    gold: float | None
    answered: bool
    finish: str
    steps: int | None
    searches: int
    tokens: int | None
    sampled: int | None
    words: int | None
    error: str
    written: Written
    groups: tuple[str, ...] = ()
    rouge_l: float | None = None
    bleu: float | None = None
    bertscore: float | None = None


def score(prediction: Prediction) -> Score:
    """The score of a prediction against its golden answers and, where the question marks some, its gold passages."""
    said, golden = prediction.prediction, prediction.golden_answers
    shared = overlap(said, golden)
    marked = gold_of(prediction)
    found = [passage for search in prediction.passages for passage in search]
    em, gold = em_of(said, prediction), marked.recall(found) if marked else None
    cover = cover_match(said, golden)
    return Score(
        id=prediction.id,
        em=em,
        f1=shared.f1,
        precision=shared.precision,
        recall=shared.recall,
        cover=cover,
        gold=gold,
        answered=prediction.finish == "answer",
        finish=prediction.finish,
        steps=len(prediction.steps),
        searches=len(prediction.passages) if prediction.searches is None else prediction.searches,
        tokens=prediction.usage.prompt_tokens + prediction.usage.completion_tokens,
        sampled=prediction.usage.completion_tokens,
        words=None if said is None else len(normalise(said).split()),
        error=_error(prediction, em, shared.f1, gold),
        written=written(said_in(prediction)),
        groups=_groups(prediction),
    )


def word_score(prediction: Prediction) -> Score:
    """`score`, with ROUGE-L and BLEU where the extra `quality` is installed."""
    plain, said, golden = score(prediction), prediction.prediction, prediction.golden_answers
    return replace(plain, rouge_l=rouge_l(said, golden), bleu=bleu(said, golden)) if counts_words() else plain


@cache
def counts_words() -> bool:
    """Whether the extra `quality` is installed. The other figures are complete without it."""
    try:
        import rouge_score  # noqa: F401
        import sacrebleu  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True


def _error(asked: Prediction, em: float, f1: float, gold: float | None) -> str:
    if asked.prediction is None:
        return "no answer"
    if em == 1:
        return "right"
    if holds_golden(asked.prediction, asked.golden_answers):
        return "more words"
    if em > 0 or f1 >= 0.5:
        return "near"
    return "wrong" if gold is None else "misread" if gold == 1 else "not found"


def _groups(prediction: Prediction) -> tuple[str, ...]:
    kind = prediction.metadata.get("type")
    luck = "guessable" if guessable(prediction.question, prediction.golden_answers) else "open"
    return (kind, luck) if isinstance(kind, str) and kind else (luck,)


def mean(values: Iterable[float]) -> float:
    """The mean; 0 of nothing."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0


def interval_of(values: list[float]) -> tuple[float, float]:
    """The 95 % interval of a mean: Wilson's where every value is 0 or 1, else the bootstrap's."""
    if set(values) <= {0.0, 1.0}:
        return share_interval(int(sum(values)), len(values))
    return mean_interval(values)
