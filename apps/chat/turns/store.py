"""The turns of a service: in memory, and in its run folder, from which a service that was killed resumes.

`accepted.jsonl` has a line for each turn before its client hears of it, `turns.jsonl` one for each that ended. What
stands in the first alone was accepted and not answered: it is played when the service starts again. `begun.jsonl`
counts the starts of the service in which such a turn was under way. `preferred.jsonl` has the steps that people wrote
in place of the policy's, `names.jsonl` what they call conversations.

One thread does all work on the files, in the order in which it was asked for: the event loop never waits for a disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from inference.predictions import TURNS
from steprag.records.jsonl import LineJournal, drop_torn_line, dump_line, from_dict, lines_of, written_whole
from steprag.records.training_rows import HumanPair
from steprag.records.turns import Feedback, Route, Turn
from steprag.runs.run import FAILED
from steprag.tree import Failure
from steprag.types import Step, omitted

ACCEPTED = "accepted.jsonl"
BEGUN = "begun.jsonl"
PREFERRED = "preferred.jsonl"
NAMES = "names.jsonl"
Row = TypeVar("Row")


@dataclass(frozen=True)
class TurnRequest:
    """What a person asked. `question`: the words for the agent, where the person chose them; else a rewriter may.

    `given`: steps that stand already. `history`: earlier exchanges, where the client sent them; else those of the
    conversation count. `parent`: the turn that it follows, or forks where steps are given. `again`: how many tries of
    the question went before; each has a seed of its own. `route`: what an auto turn was taken for, where it is known.
    `source`: what is searched where the conversation has files (`apps.chat.turns.files.SOURCES`).
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
    again: int = 0
    route: Route | None = omitted()
    source: str | None = omitted()


@dataclass(frozen=True)
class NamedConversation:
    """The name that a person gave to a conversation."""

    conversation: str
    title: str


@dataclass(frozen=True)
class BegunTurn:
    """In how many starts of the service a turn was under way, those left out that ended in order."""

    id: str
    starts: int


class _NamedLines(Generic[Row]):
    """A JSON Lines file whose records have ids: lines are added one by one, and can be replaced or taken out."""

    def __init__(self, path: Path, cls: type[Row], id_of: Callable[[Row], str]) -> None:
        self._path, self._id_of = path, id_of
        self._places: dict[str, tuple[int, int]] = {}
        self.records: dict[str, Row] = {}
        """By id, as they stood when the file was opened."""
        drop_torn_line(path)
        for number, row, start, length in lines_of(path) if path.exists() else ():
            record = from_dict(cls, row, path, number)
            self.records[id_of(record)] = record
            self._places[id_of(record)] = start, length
        self._file = LineJournal(path)

    def append(self, record: Row) -> None:
        """Adds a record, in place of an earlier one of its id; it is on the disk when this returns."""
        end = self._path.stat().st_size
        self._places[self._id_of(record)] = end, self._file.append(record)

    def put(self, record: Row) -> None:
        """Adds a record, or replaces the one of its id."""
        known = (id := self._id_of(record)) in self._places
        self.change({id: record}) if known else self.append(record)

    def change(self, changes: Mapping[str, Row | None]) -> None:
        """Replaces the records of these ids, and takes out those that become None; the file changes whole or not at
        all. Lines of others are copied, not parsed: 20,000 turns take a tenth of a second.
        """
        if not changes.keys() & self._places.keys():
            return
        places: dict[str, tuple[int, int]] = {}
        end = 0
        with self._path.open("rb") as old, written_whole(self._path, "wb") as new:
            for id, (start, length) in self._places.items():
                if id in changes:
                    line = b"" if changes[id] is None else f"{dump_line(changes[id])}\n".encode()
                else:
                    old.seek(start)
                    line = old.read(length)
                if line:
                    places[id] = end, len(line)
                    end += new.write(line)
        self.close()
        self._places, self._file = places, LineJournal(self._path)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class _Files:
    """The files of a folder, and the one thread that works on them."""

    def __init__(self, folder: Path) -> None:
        self.accepted = _NamedLines(folder / ACCEPTED, TurnRequest, lambda one: one.id)
        self.begun = _NamedLines(folder / BEGUN, BegunTurn, lambda one: one.id)
        self.preferred = _NamedLines(folder / PREFERRED, HumanPair, lambda one: one.turn)
        self.turns = _NamedLines(folder / TURNS, Turn, lambda one: one.id)
        self.names = _NamedLines(folder / NAMES, NamedConversation, lambda one: one.conversation)
        self.failures = LineJournal(folder / FAILED)
        self.thread = ThreadPoolExecutor(1, "turns")

    def close(self) -> None:
        self.thread.shutdown()
        for file in (self.accepted, self.begun, self.preferred, self.turns, self.names, self.failures):
            file.close()


class TurnStore:
    """All turns that ended, and the requests that were accepted. `folder` None: nothing is written.

    What writes raises OSError where the disk has no room; then nothing has changed.
    """

    def __init__(self, folder: Path | None) -> None:
        self._files = _Files(folder) if folder else None
        self._judging = asyncio.Lock()
        self._turns: dict[str, Turn] = {}
        self._accepted: dict[str, TurnRequest] = {}
        self._conversations: dict[str, dict[str, Turn | TurnRequest]] = {}
        self._starts: dict[str, int] = {}
        self.names: dict[str, str] = {}
        """What people call conversations, by id."""
        if self._files:
            self._turns = self._files.turns.records
            accepted = self._files.accepted.records
            self._accepted = {id: request for id, request in accepted.items() if id not in self._turns}
            self._files.accepted.change(dict.fromkeys(accepted.keys() - self._accepted.keys()))
            begun = self._files.begun.records
            self._starts = {id: one.starts for id, one in begun.items() if id in self._accepted}
            self._files.begun.change(dict.fromkeys(begun.keys() - self._accepted.keys()))
            self._files.preferred.records.clear()
            self.names = {id: named.title for id, named in self._files.names.records.items()}
        for one in (*self._turns.values(), *self._accepted.values()):
            self._list(one)

    @property
    def pending(self) -> tuple[TurnRequest, ...]:
        """Requests that were accepted and did not end, in their order."""
        return tuple(self._accepted.values())

    @property
    def conversations(self) -> dict[str, dict[str, Turn | TurnRequest]]:
        """The turns of each conversation by id: those that ended, in that order, and those that were accepted."""
        return self._conversations

    def waits(self, turn_id: str) -> bool:
        """Whether the turn was accepted, has not ended, and was not deleted."""
        return turn_id in self._accepted

    def get(self, turn_id: str) -> Turn | None:
        """A turn that ended."""
        return self._turns.get(turn_id)

    async def accept(self, request: TurnRequest) -> None:
        """Keeps the request; it is on the disk when this returns."""
        await self._do(lambda files: files.accepted.append(request))
        self._accepted[request.id] = request
        self._list(request)

    def starts(self, turn_id: str) -> int:
        """In how many starts of the service the turn was under way when the service died."""
        return self._starts.get(turn_id, 0)

    async def count_start(self, turn_id: str, change: int = 1) -> None:
        """One more start in which the turn is under way; -1 where this start ends in order. It is on the disk when this
        returns.
        """
        self._starts[turn_id] = self.starts(turn_id) + change
        row = BegunTurn(turn_id, self._starts[turn_id])
        await self._do(lambda files: files.begun.append(row) if self.waits(turn_id) else None)

    async def note_failure(self, turn: Turn, reason: str) -> None:
        """Adds the turn to the run's failures."""
        await self._do(lambda files: files.failures.append(Failure(turn.id, reason, turn.error or "")))

    async def end(self, turn: Turn) -> None:
        """The request of this id has ended; the turn is on the disk when this returns."""
        await self._do(lambda files: files.turns.append(turn))
        self._starts.pop(turn.id, None)
        if self._accepted.pop(turn.id, None):  # else its conversation was deleted meanwhile
            self._turns[turn.id] = turn
            self._list(turn)

    async def judge(self, turn_id: str, feedback: Feedback) -> None:
        """Keeps a person's feedback on a turn. The answer that they call right becomes its golden answer; "wrong"
        without an answer keeps the one given before.
        """
        async with self._judging:  # a verdict builds on the one before it
            if (turn := self._turns.get(turn_id)) is None:  # deleted meanwhile
                return
            if turn.feedback and not feedback.right:
                feedback = replace(feedback, answer=feedback.answer or turn.feedback.answer)
            right = feedback.answer or (turn.prediction if feedback.right else None)
            judged = replace(turn, feedback=feedback, golden_answers=(right,) if right else ())
            await self._do(lambda files: files.turns.change({turn_id: judged}))
            if turn_id in self._turns:
                self._turns[turn_id] = self._conversations[turn.conversation][turn_id] = judged

    async def prefer(self, pair: HumanPair) -> None:
        """Keeps a step that a person preferred."""
        await self._do(lambda files: files.preferred.append(pair))

    async def name(self, conversation: str, title: str) -> None:
        """Keeps the name of a conversation; an empty one is none."""
        await self._do(lambda files: files.names.put(NamedConversation(conversation, title)))
        if conversation in self._conversations:  # else it was deleted meanwhile
            self.names[conversation] = title

    async def forget(self, conversation: str) -> None:
        """Takes a conversation out of the files. Accepted requests go first: killed in between, none is played again,
        and the conversation can be deleted once more.
        """
        gone = dict.fromkeys(self._conversations.get(conversation, ()))

        def forget(files: _Files) -> None:
            for file in (files.accepted, files.begun, files.preferred, files.turns):
                file.change(gone)
            files.names.change({conversation: None})

        await self._do(forget)
        self.names.pop(conversation, None)
        for turn_id in gone:
            self._turns.pop(turn_id, None)
            self._accepted.pop(turn_id, None)
            self._conversations[conversation].pop(turn_id, None)
        if not self._conversations.get(conversation):
            self._conversations.pop(conversation, None)

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

    def close(self) -> None:
        """Closes the files once all work on them is done."""
        if self._files:
            self._files.close()

    def _list(self, one: Turn | TurnRequest) -> None:
        turns = self._conversations.setdefault(one.conversation, {})
        turns.pop(one.id, None)  # a turn that ended stands behind those that ended before
        turns[one.id] = one

    async def _do(self, work: Callable[[_Files], Any]) -> None:
        if self._files:
            await asyncio.get_running_loop().run_in_executor(self._files.thread, work, self._files)
