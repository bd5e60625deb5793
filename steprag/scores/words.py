"""ROUGE-L and BLEU of an answer, as their packages count them (extra `quality`)."""

from __future__ import annotations

from functools import cache
from typing import Any


def rouge_l(prediction: str | None, golden_answers: tuple[str, ...]) -> float:
    """ROUGE-L's F measure against the best golden answer, as Google's package counts it; no prediction scores 0.

    Lin 2004: the longest common subsequence of words, which are of the letters a to z and digits. 0 to 1.
    """
    if prediction is None:
        return 0.0
    return float(_rouge().score_multi(golden_answers, prediction)["rougeL"].fmeasure)


@cache
def _rouge() -> Any:
    from rouge_score.rouge_scorer import RougeScorer  # extra `quality`

    return RougeScorer(["rougeL"])


def bleu(prediction: str | None, golden_answers: tuple[str, ...]) -> float:
    """BLEU of one answer with all golden answers as references (sacrebleu), 0 to 1; no prediction scores 0.

    Case is ignored; n-grams that are longer than the answer are left out (`effective_order`).
    """
    if prediction is None or not golden_answers:
        return 0.0
    return round(float(_bleu().sentence_score(prediction, list(golden_answers)).score) / 100, 12)  # 100.00000000000004


@cache
def _bleu() -> Any:
    from sacrebleu.metrics.bleu import BLEU  # extra `quality`

    return BLEU(lowercase=True, effective_order=True)


def bleu_signature() -> str:
    """sacrebleu's own words for how `bleu` counts: version, case, tokens, smoothing."""
    _bleu().sentence_score("a", ["a"])  # the signature names the number of references, known after a first score
    return str(_bleu().get_signature()).replace("nrefs:1", "nrefs:var")  # as many as a question has golden answers
