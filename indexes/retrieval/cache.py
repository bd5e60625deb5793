"""Searches remembered on disk: rows and scores under index, query and top-k, shared by processes and runs.

The index is named by the retriever's fingerprint, which stands for passages, encoder, index type, mode and re-ranker:
what another encoder found is never given for this one.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, FiniteFloat, TypeAdapter

from indexes.retrieval.rankings import Asked, Ranking
from steprag.batch.database import FAULTS
from steprag.errors import ConfigError
from steprag.json_text import decoded

SCHEMA = """
CREATE TABLE IF NOT EXISTS searches(
    fingerprint TEXT, query TEXT, top_k INTEGER, found TEXT, PRIMARY KEY(fingerprint, query, top_k)) WITHOUT ROWID
"""
_RANKING = TypeAdapter(list[tuple[Annotated[int, Field(ge=0, strict=True)], FiniteFloat]])


class QueryCache:
    """An SQLite file. Used by one thread of each process; writers wait for one another."""

    def __init__(self, path: Path, fingerprint: str) -> None:
        """Opens or makes the file. Raises ConfigError where that cannot be done; so do `get` and `put`."""
        self._path, self._fingerprint = path, fingerprint
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(path, timeout=30, check_same_thread=False, isolation_level=None)
            self._file.execute("PRAGMA journal_mode=WAL")
            self._file.execute("PRAGMA synchronous=NORMAL")
            self._file.execute(SCHEMA)
        except (*FAULTS, OSError) as error:
            raise ConfigError(f"query cache {path} cannot be opened: {error}") from None

    def get(self, asked: Iterable[Asked]) -> dict[Asked, Ranking]:
        """Those of the searches that are there."""
        found: dict[Asked, Ranking] = {}
        for query, top_k in asked:
            row = self._row(query, top_k)
            if row:
                try:
                    found[query, top_k] = _RANKING.validate_python(decoded(row[0]))
                except ValueError:  # damaged, or another program's: searched again
                    continue
        return found

    def _row(self, query: str, top_k: int) -> tuple[Any, ...] | None:
        sought = "SELECT found FROM searches WHERE fingerprint = ? AND query = ? AND top_k = ?"
        try:
            return self._file.execute(sought, (self._fingerprint, query, top_k)).fetchone()
        except FAULTS as error:
            raise self._damaged(error) from None

    def put(self, found: Mapping[Asked, Ranking]) -> None:
        """Keeps rankings; one that is there already stays."""
        rows = [(self._fingerprint, query, top_k, json.dumps(ranked)) for (query, top_k), ranked in found.items()]
        try:
            self._file.execute("BEGIN IMMEDIATE")
            self._file.executemany("INSERT OR IGNORE INTO searches VALUES (?, ?, ?, ?)", rows)
            self._file.execute("COMMIT")
        except FAULTS as error:
            raise self._damaged(error) from None

    def _damaged(self, error: Exception) -> ConfigError:
        remedy = "make room, or move the file away: searches are made again"
        return ConfigError(f"query cache {self._path} cannot be read or written: {error}; {remedy}")

    def close(self) -> None:
        """Closes the SQLite file; what `put` kept is on the disk already."""
        self._file.close()
