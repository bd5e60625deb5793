"""RAGAS's metrics by its definitions (arXiv 2309.15217; golden-tested against its package, `tests/ragas_golden.json`).

Plain formulas over verdicts; who gives the verdicts is another matter (`training.judging`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any

Likeness = Callable[[str, Sequence[str]], list[float]]
"""A text and others to the cosine of their vectors, -1 to 1."""


def context_precision(useful: Sequence[bool]) -> float:
    """How far up the useful passages of a search stand: Σ(P@k·v_k) / Σv_k, best first; 0 where none is useful."""
    at = [sum(useful[: place + 1]) / (place + 1) for place, one in enumerate(useful) if one]
    return sum(at) / len(at) if at else 0.0


def faithfulness(supported: Sequence[bool]) -> float | None:
    """The share of the claims that the passages bear out; None without a claim."""
    return mean(map(float, supported)) if supported else None


def answer_relevancy(cosines: Sequence[float], noncommittal: Sequence[bool]) -> float | None:
    """The mean cosine of the question with those that the answer would answer, 0 where the answer is evasive by all of
    them; None where nothing was written back. Below 0 it counts as 0, for rewards lie between 0 and 1.
    """
    if not cosines:
        return None
    return 0.0 if all(noncommittal) else max(0.0, mean(cosines))


def embedded_likeness() -> Likeness:
    """Likeness by the embedded encoder (MiniLM), imported and loaded at the first call: most rewards need none."""
    loaded: list[Any] = []

    def likeness(text: str, others: Sequence[str]) -> list[float]:
        if not loaded:
            from sentence_transformers import SentenceTransformer

            from steprag.engines.models import embedded_encoder
            from steprag.engines.threads import one_load

            with one_load():
                loaded.append(SentenceTransformer(str(embedded_encoder()), device="cpu", local_files_only=True))
        vectors = loaded[0].encode([text, *others], normalize_embeddings=True, show_progress_bar=False)
        return [float(vectors[0] @ other) for other in vectors[1:]]

    return likeness
