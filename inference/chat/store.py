"""The turns of a service: in memory, and in its run folder, from which a service that was killed goes on.

`accepted.jsonl` has a line for each turn before its client hears of it, `turns.jsonl` one for each that ended. What
stands in the first alone was accepted and not answered: it is played when the service starts again. `preferred.jsonl`
has the steps that people wrote in place of the policy's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from steprag.files import LineJournal, drop_torn_line, read_records, write_records
from steprag.training_rows import HumanPair
from steprag.types import Feedback, Step, Turn, omitted

TURNS = "turns.jsonl"
ACCEPTED = "accepted.jsonl"
PREFERRED = "preferred.jsonl"
Row = TypeVar("Row")


@dataclass(frozen=True)
class TurnRequest:
    """What a person asked. `question`: the words for the agent, where the person chose them; else a rewriter may.

    `given`: steps that stand already. `history`: earlier exchanges, where the client sent them; else those of the
    conversation count. `parent`: the turn that it follows, or forks where steps are given.
    """

    id: str
    conversation: str
    asked: str
    mode: str
    time: float
    rewrite: bool = True
    question: str | None = omitted()
    parent: str | None = omitted()
    given: tuple[Step, ...] = ()
    history: tuple[tuple[str, str], ...] | None = omitted()


class TurnStore:
    """All turns that ended, and the requests that were accepted. `folder` None: nothing is written."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._turns: dict[str, Turn] = {}
        self._accepted: dict[str, TurnRequest] = {}
        self._preferred: list[HumanPair] = []
        self._files: tuple[LineJournal, LineJournal] | None = None
        if folder is None:
            return
        for turn in _rows(folder / TURNS, Turn):
            self._turns[turn.id] = turn
        for request in _rows(folder / ACCEPTED, TurnRequest):
            if request.id not in self._turns:
                self._accepted[request.id] = request
        self._preferred += _rows(folder / PREFERRED, HumanPair)
        write_records(folder / ACCEPTED, self._accepted.values())
        self._open()

    @property
    def pending(self) -> tuple[TurnRequest, ...]:
        """Requests that were accepted and did not end, in their order."""
        return tuple(self._accepted.values())

    def accept(self, request: TurnRequest) -> None:
        """Keeps the request; it is on the disk when this returns."""
        if self._files:
            self._files[1].append(request)
        self._accepted[request.id] = request

    def end(self, request: TurnRequest, turn: Turn) -> None:
        """The request's turn has ended; it is on the disk when this returns."""
        if self._files:
            self._files[0].append(turn)
        self._accepted.pop(request.id, None)
        self._turns[turn.id] = turn

    def drop(self, request: TurnRequest) -> None:
        """The request will not be played."""
        self._accepted.pop(request.id, None)

    def get(self, turn_id: str) -> Turn | None:
        """A turn that ended."""
        return self._turns.get(turn_id)

    def turns(self) -> Iterable[Turn]:
        """Every turn that ended, in that order."""
        return self._turns.values()

    def exchanges(self, parent: str | None, most: int) -> tuple[tuple[str, str], ...]:
        """The last `most` answered questions up to `parent`, oldest first. A fork stands in its original's place."""
        found: list[tuple[str, str]] = []
        place = self._turns.get(parent or "")
        while place is not None and len(found) < most:
            if place.prediction is not None:
                found.append((place.question, place.prediction))
            before = place
            while before is not None and before.given:
                before = self._turns.get(before.parent or "")
            place = self._turns.get(before.parent or "") if before else None
        return tuple(reversed(found))

    def judge(self, turn_id: str, feedback: Feedback) -> None:
        """Keeps what a person said of a turn; what they say is right becomes its golden answer."""
        turn = self._turns[turn_id]
        right = feedback.answer or (turn.prediction if feedback.right else None)
        self._turns[turn_id] = replace(turn, feedback=feedback, golden_answers=(right,) if right else ())
        self._rewrite()

    def prefer(self, pair: HumanPair) -> None:
        """Keeps a step that a person preferred."""
        self._preferred.append(pair)
        if self._folder is not None:
            write_records(self._folder / PREFERRED, self._preferred)

    def forget(self, conversation: str) -> tuple[str, ...]:
        """Takes a conversation out of the files; the ids of its turns."""
        gone = tuple(turn.id for turn in self._turns.values() if turn.conversation == conversation)
        for turn_id in gone:
            del self._turns[turn_id]
        waiting = [request.id for request in self._accepted.values() if request.conversation == conversation]
        for turn_id in waiting:
            del self._accepted[turn_id]
        self._preferred = [pair for pair in self._preferred if pair.turn not in {*gone, *waiting}]
        self._rewrite()
        return (*gone, *waiting)

    def _open(self) -> None:
        if self._folder is not None:
            self._files = LineJournal(self._folder / TURNS), LineJournal(self._folder / ACCEPTED)

    def _rewrite(self) -> None:
        """Both files anew, each whole or not at all."""
        if self._folder is None or self._files is None:
            return
        self.close()
        try:
            write_records(self._folder / TURNS, self._turns.values())
            write_records(self._folder / ACCEPTED, self._accepted.values())
            write_records(self._folder / PREFERRED, self._preferred)
        finally:
            self._open()

    def close(self) -> None:
        """Closes the files."""
        for file in self._files or ():
            file.close()


def _rows(path: Path, cls: type[Row]) -> Iterable[Row]:
    """A file's records; none where there is no file. A line that a kill tore is dropped."""
    if not path.exists():
        return ()
    drop_torn_line(path)
    return read_records(path, cls)
