"""An optional cross-encoder on top: it reads query and passage together and orders the first candidates anew.

Written for sentence-transformers' cross-encoders (ms-marco-MiniLM, bge-reranker). Weights are safetensors only and no
code of a model is run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from indexes.encoding.encoders import find_encoder
from indexes.ranking.rankings import Asked, Ranking, RowSearcher, named, ranking
from indexes.rows.passage_store import PassageStore, passage_text
from steprag.engines.pretrained import loading
from steprag.engines.threads import one_load
from steprag.errors import ConfigError
from steprag.records.jsonl import file_hash


class PairScorer(Protocol):
    """What the re-ranker asks of a cross-encoder. `hash` names its weights."""

    hash: str

    def load(self) -> None:
        """Loads the weights, in the thread that will score."""
        ...

    def score(self, query: str, texts: Sequence[str]) -> np.ndarray:
        """(len(texts),) scores, greater is better."""
        ...


class CrossEncoder:
    """A sentence-transformers cross-encoder with one output."""

    def __init__(self, name: str, *, device: str = "cpu") -> None:
        """Finds the model. Raises ConfigError where it is not there or holds no safetensors."""
        self._folder, self._device = find_encoder(name), device
        files = sorted(self._folder.rglob("*.safetensors"))
        if not files:
            raise ConfigError(f"{self._folder} holds no safetensors weights; pickled weights are never loaded")
        self.hash = hashlib.sha256("".join(file_hash(file) for file in files).encode()).hexdigest()

    def load(self) -> None:
        """Loads safetensors weights from this machine alone; no code of the model's is run."""
        with one_load(), loading(self._folder):
            import torch
            from sentence_transformers import CrossEncoder as Model

            self._model = Model(
                str(self._folder),
                num_labels=1,
                device=None if self._device == "auto" else self._device,
                activation_fn=torch.nn.Identity(),  # a sigmoid would make ties of good passages
                trust_remote_code=False,
                local_files_only=True,
                model_kwargs={"use_safetensors": True},
            )

    def score(self, query: str, texts: Sequence[str]) -> np.ndarray:
        """(len(texts),) logits, not squeezed to 0…1; greater is better."""
        pairs = [(query, text) for text in texts]
        return np.asarray(self._model.predict(pairs, show_progress_bar=False, convert_to_numpy=True))


class RerankedSearcher:
    """The first `candidates` of another ranking (top_k, where that is more) in the cross-encoder's order."""

    def __init__(self, base: RowSearcher, store: PassageStore, model: PairScorer, candidates: int) -> None:
        self._base, self._store, self._model, self._candidates = base, store, model, candidates
        self.fingerprint = named("rerank", base.fingerprint, model.hash, candidates)

    def load(self) -> None:
        """Loads the ranking below, then the cross-encoder."""
        self._base.load()
        self._model.load()

    def search(self, asked: Sequence[Asked]) -> list[Ranking]:
        """At most `top_k` rows a query, with the cross-encoder's scores."""
        found = self._base.search([(query, max(top_k, self._candidates)) for query, top_k in asked])
        return [rerank(query, first, self._store, self._model)[:top_k]
                for (query, top_k), first in zip(asked, found, strict=True)]  # fmt: skip


def rerank(query: str, first: Ranking, store: PassageStore, model: PairScorer) -> Ranking:
    """`first` in the order of the model's scores, equal ones by row."""
    if not first:
        return []
    rows = np.array([row for row, _ in first])
    texts = [passage_text(store.read(int(row), 0.0)) for row in rows]
    return ranking(rows, model.score(query, texts))
