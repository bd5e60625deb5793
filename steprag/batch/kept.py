"""What the file of a journal holds: finished calls, searches, questions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StrictStr, TypeAdapter, ValidationError

from steprag.batch.database import Database
from steprag.errors import JournalError
from steprag.files import from_dict
from steprag.types import COUNTABLE, Completion, Passage, Question, Sample, Usage

_REMEDY = "the journal is damaged or not this program's: restore it, or move it away to start afresh"
_Count = Annotated[int, Field(strict=True, ge=0, le=COUNTABLE)]
_OBJECT = TypeAdapter(dict[str, Any])
_Logprob = Annotated[float, Field(le=0, allow_inf_nan=False)]
_Row = tuple[StrictStr, StrictStr] | tuple[StrictStr, StrictStr, tuple[_Logprob, ...]]
_REPLY = TypeAdapter(Annotated[list[_Row], Field(min_length=1)])
_USAGE = TypeAdapter(tuple[_Count, _Count, _Count, _Count])
_FOUND = TypeAdapter(list[tuple[StrictStr, float | None]])

CallKey = tuple[str, str, int, int]
"""Role, state, seed, n."""


class KeptCalls:
    """The open file as it is read. Raises JournalError where a row is not what this program wrote."""

    def __init__(self, path: Path, db: Database) -> None:
        self.path, self._db = path, db

    @classmethod
    def reading(cls, path: Path) -> KeptCalls:
        """The file of a run, which nobody need have open; nothing is written."""
        return cls(path, Database(path, reading=True))

    def questions(self) -> list[Question]:
        """Every question that was begun, in that order."""
        rows = self._db.rows("SELECT row FROM questions ORDER BY rowid")
        return [
            from_dict(Question, self._read(_OBJECT, row, f"question {place}"), self.path, place)
            for place, (row,) in enumerate(rows, 1)
        ]

    def usage(self) -> Iterator[tuple[str, str, Usage]]:
        """Question id, role and usage of every finished call."""
        for question_id, role, usage in self._db.rows(
            "SELECT question, role, usage FROM calls WHERE usage IS NOT NULL"
        ):
            yield question_id, role, Usage(*self._read(_USAGE, usage, f"the usage of a call of {question_id}"))

    @property
    def lost(self) -> int:
        """Calls that were in flight whenever a run of this folder was killed: perhaps paid, never answered."""
        return self._db.rows("SELECT COUNT(*) FROM lost")[0][0]

    def calls_of(self, question_id: str) -> list[tuple[CallKey, Sample]]:
        """A question's finished calls in the order in which they were sent."""
        query = "SELECT role, state, seed, n, reply, usage FROM calls WHERE question = ? AND reply NOT NULL ORDER BY id"
        what = f"a reply to {question_id}"
        return [
            (
                (role, state, seed, n),
                Sample(
                    tuple(Completion(*each) for each in self._read(_REPLY, reply, what)),
                    Usage(*self._read(_USAGE, usage, what)),
                ),
            )
            for role, state, seed, n, reply, usage in self._db.rows(query, question_id)
        ]

    def searches_of(self, question_id: str) -> dict[tuple[str, int], tuple[Passage, ...]]:
        """A question's finished searches: query and top_k to passages."""
        query = "SELECT query, top_k, found FROM searches WHERE question = ?"
        return {
            (text, top_k): tuple(
                self._passage(*found) for found in self._read(_FOUND, row, f"a search of {question_id}")
            )
            for text, top_k, row in self._db.rows(query, question_id)
        }

    def _passage(self, passage_id: str, score: float | None) -> Passage:
        rows = self._db.rows("SELECT title, text FROM passages WHERE id = ?", passage_id)
        if not rows or not all(isinstance(value, str) for value in rows[0]):
            raise JournalError(f"{self.path}: passage {passage_id} is missing or no text; {_REMEDY}")
        title, text = rows[0]
        return Passage(passage_id, title, text, score)

    def _read(self, kind: TypeAdapter[Any], text: object, what: str) -> Any:
        """A JSON column. Raises JournalError, with what it is of, where it is not what this program wrote."""
        try:
            return kind.validate_json(text if isinstance(text, str) else repr(text))
        except ValidationError as error:
            raise JournalError(f"{self.path}: {what}: {error.errors()[0]['msg'].lower()}; {_REMEDY}") from None

    def close(self) -> None:
        """Closes the file."""
        self._db.close()
