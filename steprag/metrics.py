"""Answer metrics: the normalisation and token F1 of SQuAD's official script, with HotpotQA's yes/no rule.

Search rewards, pair rewards and test scores all call these, so what is trained for is what is measured.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CLOSED = frozenset({"yes", "no", "noanswer"})


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


def f1(prediction: str | None, golden_answers: tuple[str, ...]) -> float:
    """Token F1 against the best golden answer, 0 to 1; no prediction scores 0."""
    return _best_f1(prediction, golden_answers, normalise)


def f1_with_articles(prediction: str | None, golden_answers: tuple[str, ...]) -> float:
    """Token F1 where "a", "an" and "the" count as words: what ReasonRAG's pair builder computes."""
    return _best_f1(prediction, golden_answers, _with_articles)


def _best_f1(prediction: str | None, golden_answers: tuple[str, ...], normal: Callable[[str], str]) -> float:
    if prediction is None:
        return 0.0
    return max((_token_f1(normal(prediction), normal(answer)) for answer in golden_answers), default=0.0)


def _token_f1(prediction: str, answer: str) -> float:
    if prediction != answer and (prediction in _CLOSED or answer in _CLOSED):
        return 0.0  # HotpotQA: yes and no are right or wrong, never partly
    predicted, wanted = prediction.split(), answer.split()
    common = sum((Counter(predicted) & Counter(wanted)).values())
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(wanted)
    return 2 * precision * recall / (precision + recall)  # the official scripts' order, to the last bit
