"""Every figure of a run of inference: what it means, over how many predictions, and its 95 % interval."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from inference.predictions import predictions_file, read_predictions
from inference.scores import ERRORS, Score, interval_of, mean
from steprag.agent.compliance import compliance, together
from steprag.errors import DataError
from steprag.extras import remedy
from steprag.files import file_hash, read_json, write_json
from steprag.metrics import bleu, bleu_signature, rouge_l
from steprag.stats import mean_interval
from steprag.types import Prediction

BERTSCORE = "bertscore.json"
"""The file in a run folder that `steprag evaluate --bertscore` writes."""


@dataclass(frozen=True)
class TextScores:
    """How like an answer's words are to a golden answer's, 0 to 1 (BERTScore may lie below 0); None where not asked."""

    rouge_l: float | None = None
    bleu: float | None = None
    bertscore: float | None = None


@dataclass(frozen=True)
class FigureKind:
    """A mean over predictions. `unit`: "share" is 0 to 1 and shown in percent. `of`: None where it does not apply."""

    name: str
    label: str
    unit: Literal["share", "count"]
    definition: str
    of: Callable[[Score, TextScores], float | None]


FIGURES = (
    FigureKind("em", "EM", "share", "exact match after SQuAD's normalisation; no answer scores 0", lambda s, t: s.em),
    FigureKind("f1", "F1", "share", "token F1 against the best golden answer; no answer scores 0", lambda s, t: s.f1),
    FigureKind("precision", "precision", "share", "of that F1", lambda s, t: s.precision),
    FigureKind("recall", "recall", "share", "of that F1", lambda s, t: s.recall),
    FigureKind("cover", "cover EM", "share", "a golden answer stands in the answer", lambda s, t: s.cover),
    FigureKind("rouge_l", "ROUGE-L", "share", "F of the longest common subsequence of words with the best golden "
               "answer (rouge-score); no answer scores 0", lambda s, t: t.rouge_l),
    FigureKind("bleu", "BLEU", "share", "mean of the answers' own BLEU, all golden answers as references (sacrebleu); "
               "no answer scores 0", lambda s, t: t.bleu),
    FigureKind("bertscore", "BERTScore", "share", "F of word pieces matched by a model's vectors, best golden answer, "
               "not rescaled; no answer scores 0", lambda s, t: t.bertscore),
    FigureKind("gold_recall", "gold found", "share", "marked passages that the searches found, over questions that "
               "mark some", lambda s, t: s.gold),
    FigureKind("format", "answered", "share", "episodes that ended in an answer", lambda s, t: s.answered),
    FigureKind("words", "answer's words", "count", "words of the normalised answer, over answered questions",
               lambda s, t: s.words),
    FigureKind("steps", "steps", "count", "accepted steps an episode", lambda s, t: s.steps),
    FigureKind("searches", "searches", "count", "searches an episode", lambda s, t: s.searches),
    FigureKind("sampled", "tokens written", "count", "tokens that the policy wrote an episode", lambda s, t: s.sampled),
    FigureKind("tokens", "tokens", "count", "tokens of prompts and completions, an episode", lambda s, t: s.tokens),
)  # fmt: skip
"""All of them, in the order in which they are shown."""
NOTHING = TextScores()


def text_scores(predictions: Iterable[Prediction], bert: Mapping[str, float] | None = None) -> dict[str, TextScores]:
    """ROUGE-L and BLEU by question, where the extra `quality` is installed, and what is known of BERTScore."""
    counted = _counts_words()
    return {
        one.id: TextScores(
            rouge_l(one.prediction, one.golden_answers) if counted else None,
            bleu(one.prediction, one.golden_answers) if counted else None,
            None if bert is None else bert.get(one.id),
        )
        for one in predictions
    }


@cache
def _counts_words() -> bool:
    """Whether the extra `quality` is installed. The other figures are complete without it."""
    try:
        import rouge_score  # noqa: F401
        import sacrebleu  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True


def figures(scores: Sequence[Score], texts: Mapping[str, TextScores]) -> dict[str, dict[str, Any]]:
    """Every figure by name that a prediction has a value for: `value`, `low`, `high`, `n`, `label`, `unit`,
    `definition`.
    """
    told = {}
    for kind in FIGURES:
        values = list(values_of(kind, scores, texts).values())
        if values:
            low, high = interval_of(values) if kind.unit == "share" else mean_interval(values)
            told[kind.name] = {"value": mean(values), "low": low, "high": high, "n": len(values), "label": kind.label,
                               "unit": kind.unit, "definition": kind.definition}  # fmt: skip
    return told


def values_of(kind: FigureKind, scores: Iterable[Score], texts: Mapping[str, TextScores]) -> dict[str, float]:
    """A figure's values by question id; those that have none are left out."""
    each = ((one.id, kind.of(one, texts.get(one.id, NOTHING))) for one in scores)
    return {key: float(value) for key, value in each if value is not None}


def gain(mine: Mapping[str, float], base: Mapping[str, float]) -> dict[str, Any] | None:
    """The mean difference over the questions that both have a value for, with the paired bootstrap's 95 % interval."""
    gains = [mine[key] - base[key] for key in base if key in mine]
    if not gains:
        return None
    low, high = mean_interval(gains)
    return {"value": mean(gains), "low": low, "high": high, "n": len(gains)}


def written_by(scores: Iterable[Score]) -> dict[str, Any]:
    """The share of completions that follow the grammar, in all and by action."""
    return compliance(together(one.written for one in scores))


def errors_of(scores: Iterable[Score]) -> dict[str, int]:
    """How many predictions are of each kind of `ERRORS`, in that order."""
    counts = Counter(one.error for one in scores)
    return {kind: counts[kind] for kind in ERRORS if counts[kind]}


def how_counted(bert: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the figures of words were counted with: sacrebleu's signature, BERTScore's model; why one is missing."""
    told: dict[str, Any] = {}
    if not _counts_words():
        told["missing"] = f"ROUGE-L and BLEU need the extra quality: {remedy('quality')}"
    else:
        told["bleu"] = bleu_signature()
    return told | ({"bertscore": dict(bert)} if bert else {})


def write_bertscore(run: Path, model: str, layer: int | None) -> None:
    """Scores a run's predictions by BERTScore into `bertscore.json`, unless that is there already.

    Raises ConfigError where there is no such model or layer.
    """
    from inference.bertscore import BertScorer

    scorer = BertScorer(model, layer)
    told, _ = read_bertscore(run)
    if told == scorer.told:
        return
    predictions = [one for one in read_predictions(run) if one.golden_answers]
    matches = scorer.best([one.prediction for one in predictions], [one.golden_answers for one in predictions])
    f1 = {one.id: match.f1 for one, match in zip(predictions, matches, strict=True)}
    write_json(run / BERTSCORE, {**scorer.told, "predictions": file_hash(predictions_file(run)), "f1": f1})


def read_bertscore(run: Path) -> tuple[dict[str, Any] | None, dict[str, float]]:
    """What scored and the scores by question id; None and nothing where no scores of these predictions are there."""
    if not (run / BERTSCORE).is_file():
        return None, {}
    kept = read_json(run / BERTSCORE)
    f1 = kept.get("f1")
    if kept.get("predictions") != file_hash(predictions_file(run)):
        return None, {}  # of earlier predictions
    if not isinstance(f1, dict) or not all(isinstance(value, int | float) for value in f1.values()):
        raise DataError(run / BERTSCORE, "f1 holds no scores; remove the file")
    return {key: kept.get(key) for key in ("model", "weights", "layer")}, f1
