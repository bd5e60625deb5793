"""BGE-M3's learned weights of tokens in BM25's place: the folder `lexical/` of an index folder.

A token's weight is relu(head · its vector of the last layer); of a token that occurs more than once the largest counts,
and the tokenizer's marks have none, as in FlagEmbedding. A passage scores the dot product of its weights with the
query's. Computed here, since FlagEmbedding would load pickled weights too; `tests/test_bge_m3.py` compares the two.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from indexes.addons.addon import add_sidecar, open_sidecar
from indexes.addons.postings import POSTING, open_arrays, write_weights
from indexes.corpora.passage_store import PassageStore
from indexes.encoding.embed import Encoder
from indexes.encoding.encoders import EncoderSpec, Overrides, encoder_here, find_encoder, read_spec
from indexes.manifest import IndexManifest
from indexes.retrieval.searchers import Asked, Ranking, best_rows
from steprag.config import Section
from steprag.errors import ConfigError
from steprag.files import file_hash
from steprag.progress import Progress

FOLDER = "lexical"
HEAD = "sparse_linear.pt"
CHUNK = 4096
"""Passages whose weights are held at once."""


class LexicalConfig(Section):
    """What decides the weights: the encoder's spec and the SHA-256 of its sparse head."""

    encoder: dict[str, Any]
    head: str


def lexical_config(name: str, max_length: int | None = None) -> LexicalConfig:
    """Of a BGE-M3 by its short name, folder or hub id. Raises ConfigError where it is none."""
    folder = find_encoder(name)
    plain = Overrides(max_length=max_length, query_prefix="", passage_prefix="", pooling="cls", normalise=True)
    head = _head_hash(folder)
    return LexicalConfig(encoder=dataclasses.asdict(read_spec(name, folder, plain)), head=head)


def _head_hash(folder: Path) -> str:
    if not (folder / HEAD).is_file():
        raise ConfigError(f"{folder} has no {HEAD}, so it gives tokens no weights; --sparse takes bm25 or a BGE-M3")
    return file_hash(folder / HEAD)


class LexicalEncoder:
    """A loaded BGE-M3 with its sparse head."""

    def __init__(self, folder: Path, spec: EncoderSpec, *, device: str = "cpu", threads: int | None = None) -> None:
        """As `Encoder`, in float32. Raises ConfigError where the head is not BGE-M3's."""
        self._encoder = Encoder(folder, spec, device=device, threads=threads)
        self._head = _load_head(folder / HEAD, spec).to(self._encoder.device)
        self._unweighted = np.array(sorted(self._encoder.unweighted_ids()))

    def postings(self, texts: Sequence[str]) -> np.ndarray:
        """`POSTING` of the texts, by row (from 0), then by token id: those with a weight above 0."""
        import torch

        tokens = self._encoder.tokenise(texts)
        if tokens is None:
            raise ConfigError(f"encoder {self._encoder.spec.name} wants text in place of tokens: no BGE-M3")
        found = []
        for rows, ids, vectors in self._encoder.token_vectors(tokens):
            with torch.inference_mode():
                weights = torch.relu(self._head(vectors)).squeeze(-1).cpu().numpy()
            batch = np.empty(ids.shape, dtype=POSTING)
            batch["row"], batch["term"], batch["score"] = np.array(rows)[:, None], ids, weights
            found.append(batch[(weights > 0) & ~np.isin(ids, self._unweighted)])
        return _largest(np.concatenate(found)) if found else np.empty(0, dtype=POSTING)


def _largest(postings: np.ndarray) -> np.ndarray:
    """Of each row's postings of a term the one of the largest score."""
    postings = postings[np.lexsort((postings["score"], postings["term"], postings["row"]))]
    keys = postings["row"].astype(np.int64) << 32 | postings["term"]
    return postings[np.diff(keys, append=-1) != 0]


def _load_head(path: Path, spec: EncoderSpec) -> Any:
    """The file is a torch pickle: only tensors are read of it, and one that asks for anything else is refused."""
    import torch

    head = torch.nn.Linear(spec.dimension, 1)
    try:
        head.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    except (UnpicklingError, RuntimeError, EOFError, TypeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"{path} is no sparse head of BGE-M3: {reason[:200]}; get that file again") from None
    return head.float()


def add_lexical(folder: Path, index: IndexManifest, config: LexicalConfig, device: str = "cpu") -> bool:
    """Adds the weights to a finished index folder, as `sidecar.add_sidecar` says; False where they are there."""
    return add_sidecar(folder, index, FOLDER, config, partial(_write, config, device))


def _write(config: LexicalConfig, device: str, folder: Path, store: PassageStore) -> None:
    encoder = LexicalEncoder(*_encoder_of(config), device=device)
    with (
        Progress("token weights", len(store), "passages") as progress,
        TemporaryDirectory(dir=folder, prefix=".postings-") as scratch,
    ):
        written = write_weights(folder, Path(scratch), _weighed(encoder, store, progress))
    if not written:
        raise ConfigError(
            f"{config.encoder['name']} gives no token of {folder.parent} a weight; its {HEAD} is not trained"
        )


def _weighed(encoder: LexicalEncoder, store: PassageStore, progress: Progress) -> Iterator[np.ndarray]:
    for start in range(0, len(store), CHUNK):
        rows = range(start, min(start + CHUNK, len(store)))
        postings = encoder.postings(store.texts(list(rows)))
        postings["row"] += start
        yield postings
        progress.advance(len(rows))


def _encoder_of(config: LexicalConfig) -> tuple[Path, EncoderSpec]:
    """The encoder's folder on this machine and its spec. Raises ConfigError where it is not the one of the build."""
    spec = EncoderSpec(**config.encoder)
    folder = encoder_here(spec, config.encoder)
    if _head_hash(folder) != config.head:
        raise ConfigError(f"encoder {spec.name} is not the one that made the index ({HEAD} differs);"
                          " restore it or build the index again")  # fmt: skip
    return folder, spec


class LexicalSearcher:
    """Ranks by the dot product of query's and passages' weights. Rows that share no token with it are not found."""

    def __init__(self, folder: Path, index: IndexManifest, *, device: str = "cpu", threads: int = 1) -> None:
        """Maps the files after checking them and the encoder's. Raises ConfigError or DataError."""
        sidecar = open_sidecar(folder, index, FOLDER)
        self.fingerprint = sidecar.fingerprint
        self._rows = index.corpus.rows
        here, spec = _encoder_of(LexicalConfig.model_validate(sidecar.settings))
        self._load_encoder = partial(LexicalEncoder, here, spec, device=device, threads=threads)
        self._encoder: LexicalEncoder | None = None
        self._scores, self._indices, self._bounds = open_arrays(folder / FOLDER)

    def load(self) -> None:
        self._encoder = self._encoder or self._load_encoder()

    def search(self, asked: Sequence[Asked]) -> list[Ranking]:
        self.load()
        assert self._encoder is not None
        postings = self._encoder.postings([query for query, _ in asked])
        return [self._rank(postings[postings["row"] == i], top_k) for i, (_, top_k) in enumerate(asked)]

    def _rank(self, query: np.ndarray, top_k: int) -> Ranking:
        scores = np.zeros(self._rows, dtype=np.float32)
        for token, weight in zip(query["term"].tolist(), query["score"], strict=True):
            if token + 1 < len(self._bounds):  # later ids stand in no passage
                span = slice(self._bounds[token], self._bounds[token + 1])
                scores[self._indices[span]] += weight * self._scores[span]
        return best_rows(scores, top_k)
