"""BERTScore (arXiv 1904.09675): how near the words of two texts are, by a model. Golden-tested against `bert-score`.

Every word piece is matched with the likest of the other text, by the cosine of the model's vectors in their sentences.
No idf weights, no rescaling. The package does not run on today's transformers, so its rule is written here again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from inference.predictions import predictions_file, read_predictions
from inference.scoring.scores import Score
from steprag.engines.models import embedded_encoder, sha256_of
from steprag.engines.pretrained import HUB_ID, MODEL_FILES, fetched, from_pretrained
from steprag.engines.tensors import unwrapped
from steprag.engines.threads import one_load
from steprag.errors import ConfigError, DataError
from steprag.records.jsonl import file_hash, read_json, write_json

BERTSCORE = "bertscore.json"
"""The file in a run folder that `steprag score evaluate --bertscore` writes."""
EMBEDDED = "minilm"
"""The embedded encoder's name, as for indexes."""
SPACED = ("roberta", "gpt2")
"""Types of models whose first word is read as one behind a space, as the package does."""
BATCH = 64
"""Pairs of texts at a time."""
DIGITS = 6
"""Of a score. The digits behind them differ with the number of threads, and 1 has to be 1 for Wilson's interval."""


@dataclass(frozen=True)
class TextMatch:
    """Precision, recall and their harmonic mean, -1 to 1 each, mostly above 0; all 0 where a text is empty."""

    precision: float
    recall: float
    f1: float


class BertScorer:
    """A loaded model. `told` names the scorer: model, hash of its weights, layer."""

    def __init__(self, model: str = EMBEDDED, layer: int | None = None) -> None:
        """`model`: minilm, a folder with safetensors, or a hub id; `layer`: whose vectors count, the last where None.

        Raises ConfigError where there is no such model or layer.
        """
        import torch
        from transformers import AutoModel, AutoTokenizer

        folder = _folder(model)
        self._torch = torch
        with one_load():
            self._model = from_pretrained(AutoModel, str(unwrapped(folder)), fresh="pooler", dtype=torch.float32).eval()
            spaced: dict[str, Any] = {"add_prefix_space": True} if self._model.config.model_type in SPACED else {}
            self._tokens = from_pretrained(AutoTokenizer, str(folder), **spaced)
        layers = self._model.config.num_hidden_layers
        self._layer = layers if layer is None else layer
        if not 1 <= self._layer <= layers:
            raise ConfigError(f"BERTScore: {model} has layers 1 to {layers}, not {layer}")
        self.told = {"model": model, "weights": _weights(folder), "layer": self._layer}

    def best(self, predictions: Sequence[str | None], golden: Sequence[Sequence[str]]) -> list[TextMatch]:
        """For each prediction its score against the golden answer of best F1; zeros without a prediction or answer."""
        asked = [(said or "", answer) for said, answers in zip(predictions, golden, strict=True) for answer in answers]
        known = dict(zip(dict.fromkeys(asked), self.score(list(dict.fromkeys(asked))), strict=True))
        return [
            max((known[said or "", answer] for answer in answers), key=lambda one: one.f1, default=TextMatch(0, 0, 0))
            for said, answers in zip(predictions, golden, strict=True)
        ]

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[TextMatch]:
        """Each first text against its second one, in the order of the pairs."""
        matches: dict[int, TextMatch] = {}
        order = sorted(range(len(pairs)), key=lambda at: -len(pairs[at][0]) - len(pairs[at][1]))
        for start in range(0, len(order), BATCH):
            at = order[start : start + BATCH]
            first, second = (self._vectors([pairs[one][side].strip() for one in at]) for side in (0, 1))
            matches |= zip(at, self._matched(first, second), strict=True)
        return [matches[at] for at in range(len(pairs))]

    def _vectors(self, texts: list[str]) -> tuple[Any, Any, Any]:
        """Unit vectors (texts, word pieces, width), which of them are there, and which count: no start, no end."""
        torch = self._torch
        longest = min(self._tokens.model_max_length, self._model.config.max_position_embeddings)
        made = self._tokens(texts, padding=True, truncation=True, return_tensors="pt", max_length=longest)
        with torch.inference_mode():
            hidden = self._model(**made, output_hidden_states=True).hidden_states[self._layer]
        there = made["attention_mask"].bool()
        edges = torch.tensor([one for one in (self._tokens.cls_token_id, self._tokens.sep_token_id) if one is not None])
        return torch.nn.functional.normalize(hidden, dim=-1), there, there & ~torch.isin(made["input_ids"], edges)

    def _matched(self, first: tuple[Any, Any, Any], second: tuple[Any, Any, Any]) -> list[TextMatch]:
        (one, there, counted), (other, other_there, other_counted) = first, second
        likeness = one @ other.transpose(1, 2)
        likeness = likeness * (there[:, :, None] & other_there[:, None, :])  # as the package: what is not there is 0
        precision, recall = _means(likeness.amax(2), counted), _means(likeness.amax(1), other_counted)
        filled = counted.any(1) & other_counted.any(1)
        return [
            TextMatch(p, r, 2 * p * r / (p + r)) if there and p + r else TextMatch(0.0, 0.0, 0.0)
            for p, r, there in zip(precision, recall, filled.tolist(), strict=True)
        ]


def _means(values: Any, counted: Any) -> list[float]:
    means = (values * counted).sum(1) / counted.sum(1).clamp(min=1)
    return [round(value, DIGITS) for value in means.tolist()]


def _folder(model: str) -> Path:
    if model == EMBEDDED:
        return embedded_encoder()
    folder = Path(model).expanduser()
    if not folder.is_dir():
        if not HUB_ID.fullmatch(model):
            raise ConfigError(f"BERTScore: no model at {model}; give minilm, a folder or a hub id (owner/name)")
        folder = fetched(model, MODEL_FILES, "BERTScore's model")
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(f"BERTScore: {folder} has no *.safetensors; pickled weights are not loaded")
    return folder


def _weights(folder: Path) -> str:
    """The first 16 digits of a SHA-256 over the weights' hashes."""
    hashes = "".join(sha256_of(file) for file in sorted(folder.glob("*.safetensors")))
    return hashlib.sha256(hashes.encode()).hexdigest()[:16]


def write_bertscore(run: Path, model: str, layer: int | None) -> None:
    """Scores a run's predictions by BERTScore into `bertscore.json`, unless that is there already.

    Raises ConfigError where there is no such model or layer.
    """
    scorer = BertScorer(model, layer)
    if _read(run)[0] == scorer.told:
        return
    predictions = [one for one in read_predictions(run) if one.golden_answers]
    matches = scorer.best([one.prediction for one in predictions], [one.golden_answers for one in predictions])
    f1 = {one.id: match.f1 for one, match in zip(predictions, matches, strict=True)}
    write_json(run / BERTSCORE, {**scorer.told, "predictions": file_hash(predictions_file(run)), "f1": f1})


def with_bertscore(run: Path, scores: Sequence[Score]) -> tuple[list[Score], dict[str, Any] | None]:
    """The scores with those that `bertscore.json` holds of these predictions, and what made them; None without any."""
    told, f1 = _read(run)
    return [replace(one, bertscore=f1.get(one.id)) for one in scores] if told else list(scores), told


def _read(run: Path) -> tuple[dict[str, Any] | None, dict[str, float]]:
    if not (run / BERTSCORE).is_file():
        return None, {}
    kept = read_json(run / BERTSCORE)
    f1 = kept.get("f1")
    if kept.get("predictions") != file_hash(predictions_file(run)):
        return None, {}  # of earlier predictions
    if not isinstance(f1, dict) or not all(isinstance(value, int | float) for value in f1.values()):
        raise DataError(run / BERTSCORE, "f1 holds no scores; remove the file")
    return {key: kept.get(key) for key in ("model", "weights", "layer")}, f1
