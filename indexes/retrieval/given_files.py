"""Files that people give beside an index: each is read in a bounded process, kept in a folder, and searched by BM25.

The folder has one for each file, which appears whole: the file by its name, `passages.json`, `file.json`. A passage's
id is `FILE/NAME#N`. The ranking is made in memory at the first search, and anew once a file came or went.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from indexes.addons.bm25 import Analyser, Bm25Config, terms_of
from indexes.corpora.document_report import notes as notes_of
from indexes.corpora.documents import KINDS, DocumentsConfig, read_document
from indexes.ranking.rankings import Ranking, best_rows, named, search_key
from steprag.agent.retriever import Choosing, Documented, GivenFile, Retriever, SourceChoice, is_given
from steprag.errors import DataError
from steprag.records.jsonl import file_hash, from_dict, read_json, read_records, write_json, write_records
from steprag.types import Passage

FACTS, PASSAGES = "file.json", "passages.json"
_OPTION = re.compile(r"(:| \([^(]*) --documents.*")
"""What a problem says of options, which whoever gives a file has not."""


class GivenFiles:
    """The files of one folder."""

    def __init__(self, folder: Path) -> None:
        """What a kill left half removed goes. There is one object for a folder in all processes."""
        self._folder, self._lock = folder, threading.Lock()
        there = [from_dict(GivenFile, read_json(file), file, 1) for file in folder.glob(f"*/{FACTS}")]
        self._files = {one.id: one for one in sorted(there, key=lambda one: one.time)}
        for left in folder.glob("f*"):
            if left.name not in self._files and is_given(f"{left.name}/"):
                shutil.rmtree(left)
        self._ranked: tuple[list[Passage], Callable[[str, int], Ranking]] | None = None

    @property
    def fingerprint(self) -> str:
        """Names the files."""
        return f"files:{named(*self._files)}"

    @property
    def endings(self) -> tuple[str, ...]:
        """Of the names of files that are taken."""
        return tuple(KINDS)

    def files(self) -> tuple[GivenFile, ...]:
        """Those that were given, the oldest first."""
        return tuple(self._files.values())

    def take(self, file: Path, name: str, most: int) -> GivenFile:
        """As `steprag.agent.retriever.TakesFiles`. The name ends as one of `endings`."""
        id = f"f{hashlib.sha256(f'{file_hash(file)} {name}'.encode()).hexdigest()[:16]}"
        if id in self._files:
            return self._files[id]
        (folder := file.parent / id).mkdir()
        file.rename(folder / name)
        document, passages = read_document(folder / name, DocumentsConfig())
        notes = tuple(_OPTION.sub("", said) for _, _, said in document.problems)
        told = *notes, *notes_of(document)
        if not passages:
            raise DataError(name, "; ".join(notes) or "holds no text")
        if (whole := len(passages) + sum(one.passages for one in self.files())) > most:
            raise DataError(name, f"makes {whole:,} passages with the other files; at most {most:,} are kept")
        given = GivenFile(id, name, time.time(), document.bytes, document.pages, len(passages), told)
        write_records(folder / PASSAGES, (replace(one, id=f"{id}/{one.id}") for one in passages))
        write_json(folder / FACTS, vars(given))
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._lock:
            folder.rename(self._folder / id)
            self._files[id], self._ranked = given, None
        return given

    def remove(self, file_id: str) -> None:
        """Deletes a file and its passages; nothing where there is none."""
        with self._lock:
            if self._files.pop(file_id, None):
                self._ranked = None
                (self._folder / file_id / FACTS).unlink()
                shutil.rmtree(self._folder / file_id)

    def document(self, passage_id: str, *, checked: bool = False) -> Path | None:
        """The file that a passage was read from; nobody changes it here."""
        one = self._files.get(passage_id.partition("/")[0])
        return self._folder / one.id / one.name if one else None

    def before(self, other: Retriever, *, alone: bool = False) -> Retriever:
        """As `steprag.agent.retriever.TakesFiles`."""
        return _Before(self, other, alone)

    async def ready(self) -> None:
        """It is."""

    async def search(self, query: str, top_k: int) -> tuple[Passage, ...]:
        """At most `top_k` passages that share a word with the query, by BM25. Raises RetrieverError for no query."""
        return await asyncio.to_thread(self._search, *search_key(query, top_k))

    def _search(self, query: str, top_k: int) -> tuple[Passage, ...]:
        with self._lock:
            if self._ranked is None:
                passages = [one for id in self._files for one in read_records(self._folder / id / PASSAGES, Passage)]
                self._ranked = passages, _ranker(passages)
            passages, ranked = self._ranked
        return tuple(replace(passages[row], score=score) for row, score in ranked(query, top_k))

    def rest(self) -> None:
        """Lets go of the ranking; the next search makes it anew."""
        self._ranked = None

    async def aclose(self) -> None:
        """As `rest`."""
        self.rest()


def _ranker(passages: Sequence[Passage]) -> Callable[[str, int], Ranking]:
    """Rows and scores for a query, as of an index that was built with `--encoder none`."""
    from bm25s import BM25

    config = Bm25Config()
    analyse, model = Analyser(config.language), BM25(method="lucene", k1=config.k1, b=config.b, backend="numpy")
    terms = [terms_of(passage, analyse, config.title_weight) for passage in passages]
    if not any(terms):
        return lambda query, top_k: []
    model.index(terms, show_progress=False)

    def ranked(query: str, top_k: int) -> Ranking:
        ids = model.get_tokens_ids(analyse(query))
        return best_rows(model.get_scores_from_ids(ids), top_k) if ids else []

    return ranked


class _Before:
    """Given files, and behind them another retriever: the files' passages lead, and leave it a third of the places."""

    def __init__(self, files: GivenFiles, other: Retriever, alone: bool) -> None:
        self._files, self._other, self._alone = files, other, alone
        self.fingerprint = named(files.fingerprint, *([] if alone else [other.fingerprint]))

    async def ready(self) -> None:
        """Waits for the other one."""
        await self._other.ready()

    async def search(self, query: str, top_k: int) -> tuple[Passage, ...]:
        """The best of the files, then the best of the other, which fills the places that they leave."""
        if self._alone:
            return await self._files.search(query, top_k)
        given, other = await asyncio.gather(self._files.search(query, top_k), self._other.search(query, top_k))
        kept = other[: max(top_k // 3, top_k - len(given))]
        return (*given[: top_k - len(kept)], *kept)

    def choice(self, query: str) -> SourceChoice | None:
        """What the other one says of itself."""
        return self._other.choice(query) if isinstance(self._other, Choosing) else None

    def document(self, passage_id: str, *, checked: bool = False) -> Path | None:
        """The file that a passage was read from."""
        origin = self._files if is_given(passage_id) else self._other
        return origin.document(passage_id, checked=checked) if isinstance(origin, Documented) else None

    async def aclose(self) -> None:
        """Both belong to the service."""
