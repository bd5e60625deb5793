"""The score of one prediction, and what many of them come to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from steprag.gold import em_of, gold_of
from steprag.metrics import cover_match, guessable, overlap
from steprag.stats import mean_interval, share_interval
from steprag.types import Prediction

HARNESS = 3
"""Raised whenever the same model would score otherwise: runs of different harnesses are not compared.

1: the first. 2: baselines' answers may have 100 characters; engines get every sampling option; a search that finds
nothing counts; choices are shown below their question. 3: a missing closing tag is not added where vLLM or SGLang says
that the model ended by itself; golden answers given as choice letters are replaced by the choices' text.
"""


@dataclass(frozen=True)
class Score:
    """What one episode was worth. An episode without an answer scores 0, for that is what the model did.

    `gold`: the share of the marked passages that its searches found, None where none are marked. Of best-of-N, `tokens`
    and `searches` are what all N took; the rest is the chosen episode's.

    `groups`: the question's `metadata.type`, if it has one, and "open", or "guessable" where the answer can be guessed
    from the question's own words.
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
    steps: int
    searches: int
    tokens: int
    groups: tuple[str, ...] = ()


def score(prediction: Prediction) -> Score:
    """The score of a prediction against its golden answers and, where the question marks some, its gold passages."""
    said, golden = prediction.prediction, prediction.golden_answers
    shared = overlap(said, golden)
    marked = gold_of(prediction)
    found = [passage for search in prediction.passages for passage in search]
    return Score(
        id=prediction.id,
        em=em_of(said, prediction),
        f1=shared.f1,
        precision=shared.precision,
        recall=shared.recall,
        cover=cover_match(said, golden),
        gold=marked.recall(found) if marked else None,
        answered=prediction.finish == "answer",
        finish=prediction.finish,
        steps=len(prediction.steps),
        searches=len(prediction.passages) if prediction.searches is None else prediction.searches,
        tokens=prediction.usage.prompt_tokens + prediction.usage.completion_tokens,
        groups=_groups(prediction),
    )


def _groups(prediction: Prediction) -> tuple[str, ...]:
    kind = prediction.metadata.get("type")
    luck = "guessable" if guessable(prediction.question, prediction.golden_answers) else "open"
    return (kind, luck) if isinstance(kind, str) and kind else (luck,)


def mean(values: Iterable[float]) -> float:
    """The mean; 0 of nothing."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0


def interval(scores: Sequence[Score], name: str) -> tuple[float, float]:
    """The 95 % interval of a metric's mean: Wilson's for those that are 0 or 1, else the bootstrap's."""
    values = [float(getattr(score, name)) for score in scores]
    if set(values) <= {0.0, 1.0}:
        return share_interval(int(sum(values)), len(values))
    return mean_interval(values)


def gold_recall(scores: Sequence[Score]) -> float | None:
    """Mean over the questions with marked passages; None where there are none."""
    marked = [score.gold for score in scores if score.gold is not None]
    return mean(marked) if marked else None
