"""BM25 beside the vectors: the folder `bm25/` of an index folder, memory-mapped, with a manifest of its own.

Passages and queries go through one function, `Analyser`, whose settings are in that manifest. Scoring is by `bm25s`,
which keeps every term's contribution to every passage ready (Lucene's formula).
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from pydantic import Field

from indexes.corpus import PASSAGES, PassageStore
from indexes.manifest import FileFacts, IndexManifest, check_files, file_facts
from indexes.searchers import Asked, Ranking, named, ranking
from steprag.config import Positive, Section
from steprag.errors import ConfigError, DataError
from steprag.files import from_dict, to_dict, write_json
from steprag.progress import Progress
from steprag.types import Passage

FOLDER = "bm25"
FORMAT = 1
_WORD = re.compile(r"[぀-ヿ㐀-䶿一-鿿豈-﫿가-힯]|[^\W぀-ヿ㐀-䶿一-鿿豈-﫿가-힯]+")
"""A run of letters, digits and underscores; in scripts without spaces, each character."""


class Bm25Config(Section):
    """What decides a BM25 score. Defaults were chosen on training splits, see docs/indexes.md."""

    language: str = Field(default="english", description="stemmer (Snowball's name), or none")
    title_weight: Positive = Field(default=4, description="how many times a title counts beside its text")
    k1: float = Field(default=1.5, ge=0, description="saturation of repeated words")
    b: float = Field(default=0.75, ge=0, le=1, description="how much long passages are discounted")


@dataclass(frozen=True)
class Bm25Manifest:
    """`bm25/manifest.json`. `passages`: SHA-256 of the passages file that was indexed."""

    format: int
    settings: dict[str, Any]
    passages: str
    rows: int
    words: int
    files: dict[str, FileFacts]
    fingerprint: str
    extra: dict[str, Any] = field(default_factory=dict)


class Analyser:
    """Text to terms: folded to lower case without accents, split into words, stop words out, stemmed."""

    def __init__(self, language: str) -> None:
        """Raises ConfigError where there is no such stemmer. Only English has stop words."""
        import Stemmer
        from bm25s.stopwords import STOPWORDS_EN

        known = Stemmer.algorithms()
        if language not in (*known, "none"):
            raise ConfigError(f"no stemmer for {language!r}; known: {', '.join(known)}, none")
        self._stem = Stemmer.Stemmer(language).stemWords if language != "none" else list[str]
        self._stop = frozenset(STOPWORDS_EN if language == "english" else ())

    def __call__(self, text: str) -> list[str]:
        return self._stem([word for word in _WORD.findall(_folded(text)) if word not in self._stop])


def _folded(text: str) -> str:
    """Lower case without accents."""
    if text.isascii():
        return text.lower()
    bare = "".join(c for c in unicodedata.normalize("NFKD", text.casefold()) if not unicodedata.combining(c))
    return unicodedata.normalize("NFC", bare)


def add_bm25(folder: Path, index: IndexManifest, config: Bm25Config) -> bool:
    """Adds BM25 to a finished index folder, whole or not at all; False where it is there already.

    Raises ConfigError where the folder holds one of other settings, or another process is adding it.
    """
    if (folder / FOLDER).exists():
        if read_bm25_manifest(folder, index).settings != config.model_dump():
            raise ConfigError(f"{folder / FOLDER} has other settings; delete that folder to build it again")
        return False
    lock = FileLock(folder / ".bm25.lock", timeout=0)
    try:
        with lock:
            _build_beside(folder, index, config)
            (folder / ".bm25.lock").unlink()
    except Timeout:
        raise ConfigError(f"BM25 is being added to {folder} by another process; wait for it") from None
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"cannot write {folder / FOLDER}: {reason}; the index is as it was") from None
    return True


def _build_beside(folder: Path, index: IndexManifest, config: Bm25Config) -> None:
    unfinished = folder / ".bm25.building"
    shutil.rmtree(unfinished, ignore_errors=True)  # what a kill left
    try:
        with PassageStore(folder) as store:
            _build(unfinished, store, index, config)
        unfinished.replace(folder / FOLDER)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _build(folder: Path, store: PassageStore, index: IndexManifest, config: Bm25Config) -> None:
    import bm25s

    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it sets itself to DEBUG
    analyse = Analyser(config.language)
    vocabulary: dict[str, int] = {}
    with Progress("BM25", len(store), "passages") as progress:
        rows = [_ids(terms, vocabulary, progress) for terms in _documents(store, analyse, config.title_weight)]
    if not vocabulary:
        raise DataError(folder.parent / PASSAGES, "holds no word that BM25 could index")
    model = bm25s.BM25(method="lucene", k1=config.k1, b=config.b, backend="numpy")
    model.index((rows, vocabulary), show_progress=False)
    model.save(folder, show_progress=False)
    settings = config.model_dump()
    passages = index.files[PASSAGES].sha256
    manifest = Bm25Manifest(
        format=FORMAT,
        settings=settings,
        passages=passages,
        rows=len(rows),
        words=len(vocabulary),
        files={path.name: file_facts(path) for path in sorted(folder.iterdir())},
        fingerprint=named(FOLDER, FORMAT, settings, passages),
    )
    write_json(folder / "manifest.json", to_dict(manifest))


def _documents(store: PassageStore, analyse: Analyser, title_weight: int) -> Iterable[list[str]]:
    for row in range(len(store)):
        passage = store.read(row, 0.0)
        yield terms_of(passage, analyse, title_weight)


def terms_of(passage: Passage, analyse: Analyser, title_weight: int) -> list[str]:
    """A passage's terms, those of the title repeated: a field weight in the manner of BM25F."""
    return analyse(passage.title) * title_weight + analyse(passage.text)


def _ids(terms: list[str], vocabulary: dict[str, int], progress: Progress) -> list[int]:
    progress.advance(1)
    return [vocabulary.setdefault(term, len(vocabulary)) for term in terms]


def read_bm25_manifest(folder: Path, index: IndexManifest) -> Bm25Manifest:
    """The BM25 manifest of an index folder. Raises ConfigError where there is none, DataError where it is not this
    index's.
    """
    path = folder / FOLDER / "manifest.json"
    if not path.is_file():
        raise ConfigError(f"{folder} has no BM25 files; the command that built it, with --hybrid, adds them")
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(path, f"not JSON: {error}", remedy=_remedy(folder)) from None
    manifest = from_dict(Bm25Manifest, row, path, 1)
    if manifest.format != FORMAT:
        raise DataError(path, f"format {manifest.format}, this version reads {FORMAT}", remedy=_remedy(folder))
    passages = index.files[PASSAGES].sha256
    if manifest.passages != passages or manifest.rows != index.corpus.rows:
        raise DataError(path, "belongs to other passages than this index", remedy=_remedy(folder))
    if manifest.fingerprint != named(FOLDER, FORMAT, manifest.settings, passages):
        raise DataError(path, "was changed: its fingerprint does not fit", remedy=_remedy(folder))
    return manifest


def _remedy(folder: Path) -> str:
    return f"delete {folder / FOLDER} and run steprag index build --hybrid again"


class Bm25Searcher:
    """Ranks by BM25. Rows that share no term with the query are not found."""

    def __init__(self, folder: Path, index: IndexManifest) -> None:
        """Maps the files after checking them. Raises ConfigError or DataError."""
        import bm25s

        manifest = read_bm25_manifest(folder, index)
        check_files(folder / FOLDER, manifest)
        config = Bm25Config.model_validate(manifest.settings)
        self.fingerprint = manifest.fingerprint
        self._analyse = Analyser(config.language)
        self._model = bm25s.BM25.load(folder / FOLDER, mmap=True, backend="numpy", allow_pickle=False)

    def load(self) -> None:
        """Nothing takes long: the scores are mapped, the vocabulary is read at opening."""

    def search(self, asked: Sequence[Asked]) -> list[Ranking]:
        return [self._rank(query, top_k) for query, top_k in asked]

    def _rank(self, query: str, top_k: int) -> Ranking:
        ids = self._model.get_tokens_ids(self._analyse(query))
        if not ids:
            return []
        scores = self._model.get_scores_from_ids(ids)
        rows = np.flatnonzero(scores > 0)
        if len(rows) > top_k:
            cut = np.partition(scores[rows], -top_k)[-top_k] - 1e-3  # ties, and what rounding makes one, stay in
            rows = rows[scores[rows] >= cut]
        return ranking(rows, scores[rows])[:top_k]
