"""The figures of a run of inference: one table, which `evaluate`, `compare` and the viewer all read.

A new figure is one line of `FIGURES`: it then stands in metrics.json, in every table and on the viewer's pages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from inference.scoring.scores import ERRORS, Score, counts_words, interval_of, mean
from steprag.agent.compliance import compliance, together
from steprag.extras import remedy
from steprag.scores.stats import mean_interval
from steprag.scores.words import bleu_signature


@dataclass(frozen=True)
class FigureKind:
    """A mean over predictions. `unit`: "share" is 0 to 1 and shown in percent. `better`: whether "more" or "less" of it
    is better, "" where neither is. `of`: the value of one prediction, None where it has none.
    """

    name: str
    label: str
    unit: Literal["share", "count"]
    better: Literal["more", "less", ""]
    definition: str
    of: Callable[[Score], float | None]


FIGURES = (
    FigureKind("em", "EM", "share", "more", "exact match after SQuAD's normalisation; no answer scores 0",
               lambda s: s.em),
    FigureKind("f1", "F1", "share", "more", "token F1 against the best golden answer; no answer scores 0",
               lambda s: s.f1),
    FigureKind("precision", "precision", "share", "more", "of that F1", lambda s: s.precision),
    FigureKind("recall", "recall", "share", "more", "of that F1", lambda s: s.recall),
    FigureKind("cover", "cover EM", "share", "more", "a golden answer stands in the answer", lambda s: s.cover),
    FigureKind("rouge_l", "ROUGE-L", "share", "more", "F of the longest common subsequence of words with the best "
               "golden answer (rouge-score); no answer scores 0", lambda s: s.rouge_l),
    FigureKind("bleu", "BLEU", "share", "more", "mean of the answers' own BLEU, all golden answers as references "
               "(sacrebleu); no answer scores 0", lambda s: s.bleu),
    FigureKind("bertscore", "BERTScore", "share", "more", "F of word pieces matched by a model's vectors, best golden "
               "answer, not rescaled; no answer scores 0", lambda s: s.bertscore),
    FigureKind("gold_recall", "gold found", "share", "more", "marked passages that the searches found, over questions "
               "that mark some", lambda s: s.gold),
    FigureKind("format", "answered", "share", "more", "episodes that ended in an answer", lambda s: s.answered),
    FigureKind("words", "answer's words", "count", "", "words of the normalised answer, over answered questions",
               lambda s: s.words),
    FigureKind("steps", "steps", "count", "less", "accepted steps an episode", lambda s: s.steps),
    FigureKind("searches", "searches", "count", "less", "searches an episode", lambda s: s.searches),
    FigureKind("sampled", "tokens written", "count", "less", "tokens that the policy wrote an episode",
               lambda s: s.sampled),
    FigureKind("tokens", "tokens", "count", "less", "tokens of prompts and completions, an episode",
               lambda s: s.tokens),
)  # fmt: skip
"""All of them, in the order in which they are shown."""
KINDS = {kind.name: kind for kind in FIGURES}
MAIN = ("em", "f1", "cover", "gold_recall", "format", "steps", "searches", "tokens")
"""Those of the short tables."""


def figures(scores: Sequence[Score]) -> dict[str, dict[str, Any]]:
    """Every figure by name that a prediction has a value for: `value`, `low`, `high` (its 95 % interval), `n`, `label`,
    `unit`, `better`, `definition`.
    """
    told = {}
    for kind in FIGURES:
        values = list(values_of(kind, scores).values())
        if values:
            low, high = interval_of(values) if kind.unit == "share" else mean_interval(values)
            told[kind.name] = {"value": mean(values), "low": low, "high": high, "n": len(values), "label": kind.label,
                               "unit": kind.unit, "better": kind.better, "definition": kind.definition}  # fmt: skip
    return told


def values_of(kind: FigureKind, scores: Iterable[Score]) -> dict[str, float]:
    """A figure's values by question id; those that have none are left out."""
    return {one.id: float(value) for one in scores if (value := kind.of(one)) is not None}


def gain(mine: Mapping[str, float], base: Mapping[str, float]) -> dict[str, Any] | None:
    """The mean difference over the questions that both have a value for, with the paired bootstrap's 95 % interval."""
    gains = [mine[key] - base[key] for key in base if key in mine]
    if not gains:
        return None
    low, high = mean_interval(gains)
    return {"value": mean(gains), "low": low, "high": high, "n": len(gains)}


def quality_of(scores: Sequence[Score], told: dict[str, Any], bert: Mapping[str, Any] | None) -> dict[str, Any]:
    """The quality of a run's answers: its `figures`, `written` (how completions follow the grammar, by action),
    `errors` (predictions of each kind of `ERRORS`), and `counted_with` (signatures of the packages and models).
    """
    errors = Counter(one.error for one in scores)
    missing = {"missing": f"ROUGE-L and BLEU need the extra quality: {remedy('quality')}"}
    return {
        "figures": told,
        "written": compliance(together(one.written for one in scores)),
        "errors": {kind: errors[kind] for kind in ERRORS if errors[kind]},
        "counted_with": ({"bleu": bleu_signature()} if counts_words() else missing)
        | ({"bertscore": dict(bert)} if bert else {}),
    }


def shown(unit: str, value: float, sign: str = "") -> str:
    """A value of a figure as tables show it: a share in percent, a count with two decimals; `sign` "+" for gains."""
    scale, digits = (100, 1) if unit == "share" else (1, 2)
    return f"{scale * value:{sign}.{digits}f}"
