"""Answer metrics: the normalisation and token F1 of SQuAD's official script, with HotpotQA's yes/no rule.

Search rewards, pair rewards and test scores all call these, so what is trained for is what is measured. ROUGE-L and
BLEU: `steprag.scores.words`.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CLOSED = frozenset({"yes", "no", "noanswer"})
SAYS_NOTHING = frozenset({"", "none", "unknown", "na", "not available", "not mentioned", "no answer"})
"""Contents, normalised, of steps that say nothing."""


def normalise(text: str) -> str:
    """Lower case, no ASCII punctuation, no articles, single spaces (SQuAD 1.1's `normalize_answer`)."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _with_articles(text: str) -> str:
    return " ".join(text.lower().translate(_PUNCTUATION).split())


def exact_match(prediction: str | None, golden_answers: tuple[str, ...]) -> float:
    """1.0 if the normalised prediction equals a normalised golden answer, else 0.0; no prediction scores 0."""
    if prediction is None:
        return 0.0
    return float(normalise(prediction) in {normalise(answer) for answer in golden_answers})


def parts_match(prediction: str | None, parts: Sequence[Sequence[str]]) -> float:
    """The share of `parts`, each with its golden answers, that are right by exact match, 0 to 1.

    The prediction answers them in order, with semicolons between; what it lacks is wrong, what is too much is not read.
    """
    said = [] if prediction is None else prediction.split(";")
    right = sum(exact_match(one, tuple(golden)) for one, golden in zip(said, parts, strict=False))
    return right / len(parts)


def cover_match(prediction: str | None, golden_answers: tuple[str, ...]) -> float:
    """1.0 if a normalised golden answer stands in the normalised prediction (cover EM), else 0.0.

    Letters in a row, within words too, as FlashRAG counts. A golden answer without words stands in no prediction but
    itself, where FlashRAG finds it in all.
    """
    if prediction is None:
        return 0.0
    said = normalise(prediction)
    return float(any(wanted in said if (wanted := normalise(answer)) else _same_wordless(prediction, answer)
                     for answer in golden_answers))  # fmt: skip


def f1(prediction: str | None, golden_answers: tuple[str, ...]) -> float:
    """Token F1 against the best golden answer, 0 to 1; no prediction scores 0."""
    return overlap(prediction, golden_answers).f1


def f1_with_articles(prediction: str | None, golden_answers: tuple[str, ...]) -> float:
    """Token F1 where "a", "an" and "the" count as words: what ReasonRAG's pair builder computes."""
    return overlap(prediction, golden_answers, _with_articles).f1


@dataclass(frozen=True)
class Overlap:
    """Shared tokens: precision of the prediction, recall of the golden answer, their harmonic mean; 0 to 1."""

    f1: float = 0.0
    precision: float = 0.0
    recall: float = 0.0


def overlap(
    prediction: str | None, golden_answers: tuple[str, ...], normal: Callable[[str], str] = normalise
) -> Overlap:
    """The overlap with the golden answer of best F1, after normalising by `normal`; no prediction scores 0."""
    if prediction is None:
        return Overlap()
    said = normal(prediction)
    each = (
        Overlap(1.0, 1.0, 1.0) if _same_wordless(prediction, answer) else _token_overlap(said, normal(answer))
        for answer in golden_answers
    )
    return max(each, key=lambda score: score.f1, default=Overlap())


def _same_wordless(prediction: str, answer: str) -> bool:
    """Whether both are one and the same answer that normalises to nothing, such as "A" or "!!!"."""
    return not normalise(answer) and prediction.strip().lower() == answer.strip().lower() != ""


def _token_overlap(prediction: str, answer: str) -> Overlap:
    if prediction != answer and (prediction in _CLOSED or answer in _CLOSED):
        return Overlap()  # HotpotQA: yes and no are right or wrong, never partly
    predicted, wanted = prediction.split(), answer.split()
    common = sum((Counter(predicted) & Counter(wanted)).values())
    if not common:
        return Overlap()
    precision, recall = common / len(predicted), common / len(wanted)
    return Overlap(2 * precision * recall / (precision + recall), precision, recall)  # the official scripts' order


def guessable(question: str, golden_answers: tuple[str, ...]) -> bool:
    """Whether a golden answer is yes, no or words of the question itself ("Which is larger, A or B?").

    Whole words, normalised. Many wrong episodes end right there.
    """
    asked, golden = f" {normalise(question)} ", {normalise(answer) for answer in golden_answers}
    return bool(golden & _CLOSED) or any(f" {answer} " in asked for answer in golden)
