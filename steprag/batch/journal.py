"""Every paid call on the disk before anyone acts on it: one SQLite file a run.

A search is a pure function of the replies it gets, so the journal is all that a run needs to go on: started again, a
tree is grown from its first step, finished calls are answered from here, and only what was never answered is sent.
The same file rebuilds trees without a model or an index (`Replay`).

Rows are committed one by one in WAL mode. A killed process loses nothing that was committed; after a power failure the
last moments may be missing, and those calls are made again (`journal.sync_seconds` says how many). Where several
processes work on one run, each has a journal of its own (`steprag.batch.database`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Container
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from steprag.agent.open import OpenAgent
from steprag.agent.retriever import Retriever
from steprag.batch.database import JOURNAL as JOURNAL
from steprag.batch.database import CallKey, Database, JournalReader
from steprag.batch.journalled import JournalledPolicy, JournalledRetriever, JournalledScorer, Request, scorer_of
from steprag.console.progress import say
from steprag.errors import PolicyError, RequestError, StepragError
from steprag.policy.budget import Spending
from steprag.policy.gate import Gate
from steprag.policy.open import Model
from steprag.policy.protocols import Policy, Scorer, Sessions, StateReading
from steprag.policy.traces import traced_search
from steprag.records.jsonl import dump_line
from steprag.types import Completion, Passage, Question, Sample

_THIS = "question = ? AND role = ? AND state = ? AND seed = ? AND n = ?"


class Journal(JournalReader):
    """The open file. Use as a context manager; leaving it waits for the calls in flight and keeps their replies.

    `reading`: nothing is written, so the file may belong to a run that still works. `exclusive`: no other process may
    have it open (`steprag.batch.database`). `base_journal`: holds calls that an earlier start of the run finished; they
    are answered from there. `sync_seconds`: how often commits are written through to the disk; 0: when the system does.
    Raises JournalError where the file cannot be read or written (disk full, damaged, not a journal).
    """

    def __init__(
        self,
        path: Path,
        spending: Spending | None = None,
        *,
        reading: bool = False,
        exclusive: bool = False,
        base_journal: JournalReader | None = None,
        sync_seconds: float = 0.0,
    ) -> None:
        super().__init__(path, Database(path, reading=reading, exclusive=exclusive))
        self.spending, self.base_journal = spending or Spending(), base_journal
        self.in_flight: set[asyncio.Task[Any]] = set()
        self.on_wire: set[asyncio.Task[Any] | None] = set()
        """Of these, calls that have been sent; the others wait for their turn."""
        self._sync_seconds, self._syncing = sync_seconds, None
        self.closing = False
        self.fatal: StepragError | None = None
        """Why no request can succeed any more."""
        if not reading:
            self._db.mark_lost()
        self.spending.lost = self.lost
        # of a question whose policy is not asked through here (GRPO's own samples) the file may hold searches alone
        self._known: set[str] = {question_id for (question_id,) in self._db.rows("SELECT id FROM questions")}
        self._questions: set[str] = set()
        self.roles: set[str] = set()
        """Of the calls that were finished when it was opened."""
        for question_id, role, usage in self.usage():
            self._questions.add(question_id)
            self.roles.add(role)
            self.spending.add(role, usage, question_id)

    @property
    def started_ids(self) -> Container[str]:
        """Ids of the questions that had finished calls when it was opened."""
        return self._questions

    def question(self, question: Question, *, live: bool = False) -> QuestionCalls:
        """The finished calls of one question, and the way to make more. `live`: someone waits for the answer, so
        cancelling ends the call that is in flight (else it runs on, for it is paid), and no call of one question keeps
        others from being asked.
        """
        self._db.write("INSERT OR IGNORE INTO questions VALUES (?, ?)", question.id, dump_line(question))
        fresh = not live and question.id not in self._known and self.base_journal is None
        self._known.add(question.id)  # opened again, its searches are read from the file
        return QuestionCalls(self, question.id, fresh=fresh, live=live)

    def forget(self, question_ids: Collection[str]) -> None:
        """Takes questions out of the file, with their calls, their searches, and the passages that no other found.

        No byte of what is deleted stays in the file or its log: the file is written anew, since SQLite's secure_delete
        leaves copies where pages were split. The rows go all or none; where there is no room to write the file anew
        (its size among the temporary files, and beside it), JournalFull is raised, and the same call finishes it.
        """
        gone = json.dumps([*question_ids])
        ours = "(SELECT value FROM json_each(?1))"
        kept = "FROM searches, json_each(found) WHERE json_array_length(value) = 2"  # others have words of their own
        found = f"SELECT json_extract(value, '$[0]') {kept} AND question"
        orphans = f"DELETE FROM passages WHERE id IN ({found} IN {ours}) AND id NOT IN ({found} NOT IN {ours})"
        with self._db.transaction():
            self._db.write(orphans, gone)
            for column in ("calls.question", "searches.question", "lost.question", "questions.id"):
                table, _, name = column.partition(".")
                self._db.write(f"DELETE FROM {table} WHERE {name} IN {ours}", gone)
        self._db.write("VACUUM")
        self._db.rows("PRAGMA wal_checkpoint(TRUNCATE)")

    def sent(self, question_id: str, key: CallKey) -> None:
        """Notes a call before it is sent; a kill before `replied` or `failed` counts it as lost."""
        self._db.write("INSERT INTO calls(question, role, state, seed, n) VALUES (?, ?, ?, ?, ?)", question_id, *key)

    def failed(self, question_id: str, key: CallKey) -> None:
        """The endpoint answered that it will not: nothing to keep."""
        self._db.write(f"DELETE FROM calls WHERE {_THIS}", question_id, *key)

    def abandoned(self, question_id: str, key: CallKey) -> None:
        """An unexpected exception ended the call: it counts as lost, since it may be paid, and may be sent again."""
        with self._db.transaction():
            self._db.write("INSERT INTO lost(question, role) VALUES (?, ?)", question_id, key[0])
            self.failed(question_id, key)
        self.spending.lost += 1

    def replied(self, question_id: str, key: CallKey, sample: Sample) -> None:
        """Keeps the reply to a call and counts its cost; it is on the disk when this returns."""
        reply = json.dumps(list(map(_row, sample.completions)), ensure_ascii=False)
        usage = json.dumps([*vars(sample.usage).values()][: None if len(sample.usage.shown) > 4 else 4])
        self._db.write(f"UPDATE calls SET reply = ?, usage = ? WHERE {_THIS}", reply, usage, question_id, *key)
        self.spending.add(key[0], sample.usage, question_id)

    def searched(self, question_id: str, query: str, top_k: int, passages: tuple[Passage, ...]) -> None:
        """A search has found these passages, best first; each passage's text is kept once in the file, and that of a
        page that has changed since with the search.
        """
        found, ids = list[list[str | float | None]](), [one.id for one in passages]
        with self._db.transaction():
            rows = self._db.rows(f"SELECT * FROM passages WHERE id IN ({', '.join('?' * len(ids))})", *ids)
            kept = {id: words for id, *words in rows}
            for one in passages:
                words = [one.title, one.text]
                if one.id not in kept:
                    self._db.write("INSERT INTO passages VALUES (?, ?, ?)", one.id, *words)
                found.append([one.id, one.score, *(words if kept.setdefault(one.id, words) != words else ())])
            row = question_id, query, top_k, json.dumps(found)
            self._db.write("INSERT OR REPLACE INTO searches VALUES (?, ?, ?, ?)", *row)

    async def __aenter__(self) -> Journal:
        if self._sync_seconds:
            self._syncing = asyncio.create_task(self._sync())
        return self

    async def _sync(self) -> None:
        """Group commit: one write through to the disk for all calls of a moment. A disk that fails ends the run."""
        while True:
            await asyncio.sleep(self._sync_seconds)
            try:
                await asyncio.to_thread(self._db.sync)
            except StepragError as error:
                self.closing, self.fatal = True, error
                return

    def over(self, task: asyncio.Task[Any]) -> None:
        """A call has ended. Its error is taken note of, though whoever asked may be gone: else asyncio reports it."""
        self.in_flight.discard(task)
        if not task.cancelled():
            task.exception()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing = True
        for task in self.in_flight - self.on_wire:
            task.cancel()  # a limit a minute would have them wait for nothing
        if self.on_wire and kind is asyncio.CancelledError:
            say(f"stopping: waiting for {len(self.on_wire)} paid calls in flight; press Ctrl-C again to end at once")
        with closing(self):
            await asyncio.gather(*self.in_flight, return_exceptions=True)
            if self._syncing:
                self._syncing.cancel()
                self._db.sync()


class QuestionCalls:
    """One question's calls. `policy` and `retriever` wrap the real ones; what was paid for is not paid again."""

    def __init__(self, journal: Journal, question_id: str, *, fresh: bool, live: bool = False) -> None:
        self._journal, self._id, self._live = journal, question_id, live
        self._known: dict[CallKey, Sample] = {}
        self._found: dict[tuple[str, int], tuple[Passage, ...]] = {}
        self._asking: dict[CallKey, asyncio.Lock] = {}
        self._searching: dict[tuple[str, int], asyncio.Lock] = {}
        for kept in () if fresh else filter(None, (journal.base_journal, journal)):
            self._known |= kept.calls_of(question_id)
            self._found |= kept.searches_of(question_id)

    def agent(self, agent: OpenAgent) -> OpenAgent:
        """The agent for this question: all that it asks and searches goes through the journal."""
        judge = agent.judge and replace(agent.judge, policy=self.policy(agent.judge.policy, "judge", agent.judge.gate))
        policy = replace(agent.policy, policy=self.policy(agent.policy.policy, "policy", agent.policy.gate))
        return OpenAgent(
            replace(agent.environment, retriever=self.retriever(agent.environment.retriever)), policy, judge
        )

    def policy(self, policy: Policy, role: str, gate: Gate) -> Policy:
        """`policy` behind the journal and its endpoint's gate, its requests in a session of this question. One that
        asks no model stays as it is.
        """
        if isinstance(policy, StateReading):
            return policy
        return JournalledPolicy(self.sample, self._in_session(policy), role, gate)

    def scorer(self, model: Model) -> Scorer:
        """The model's scores behind the journal and its gate. Raises ConfigError where it cannot score."""
        return JournalledScorer(
            self.sample, scorer_of(replace(model, policy=self._in_session(model.policy))), model.gate
        )

    def _in_session(self, policy: Policy) -> Policy:
        return policy.in_session(self._id) if isinstance(policy, Sessions) else policy

    def retriever(self, retriever: Retriever) -> Retriever:
        """`retriever` behind the journal: a search that was made is not made again."""
        return JournalledRetriever(self.search, retriever)

    async def sample(self, key: CallKey, gate: Gate, chars: int, request: Request) -> Sample:
        """The reply to a call: from the journal, or sent now and journalled; equal calls at one time are sent once. A
        cancelled search leaves the call running.
        """
        if key not in self._known:
            async with self._asking.setdefault(key, asyncio.Lock()):
                if key not in self._known:
                    call = self._send(key, gate, chars, request)
                    self._known[key] = await (call if self._live else self._kept(call))
        return self._known[key]

    async def _send(self, key: CallKey, gate: Gate, chars: int, request: Request) -> Sample:
        role, _, _, completions = key
        most = gate.most(chars, completions)
        async with gate.turn(chars), self._journal.spending.request(role, most):
            if self._journal.closing:
                raise self._journal.fatal or asyncio.CancelledError
            return await self._sent(key, partial(gate.metered, chars, request))

    async def _sent(self, key: CallKey, request: Request) -> Sample:
        self._journal.sent(self._id, key)
        task, foreign = asyncio.current_task(), True
        self._journal.on_wire.add(task)
        try:
            sample = await request()
            if not sample.completions:
                raise PolicyError(f"the {key[0]} gave no completion")
            foreign = False
        except asyncio.CancelledError:
            foreign = False
            if self._live:
                self._journal.failed(self._id, key)
            raise
        except StepragError as error:
            foreign = False
            self._journal.failed(self._id, key)
            if not isinstance(error, RequestError) and not self._live:  # no other request can succeed
                self._journal.closing, self._journal.fatal = True, error
            raise
        finally:
            self._journal.on_wire.discard(task)
            if foreign:
                self._journal.abandoned(self._id, key)
        self._journal.replied(self._id, key, sample)
        return sample

    def copy_searches(self, question_id: str) -> None:
        """Takes over the searches that another question made, so that none is made again."""
        for (query, top_k), passages in self._journal.searches_of(question_id).items():
            self._journal.searched(self._id, query, top_k, passages)
            self._found[query, top_k] = passages

    async def search(self, query: str, top_k: int, retriever: Retriever) -> tuple[Passage, ...]:
        """The passages of a search: from the journal, or searched now and journalled; of several at once, one asks."""
        if (query, top_k) not in self._found:
            async with self._searching.setdefault((query, top_k), asyncio.Lock()):
                if (query, top_k) not in self._found:
                    tools = [tool.name for tool in getattr(retriever, "tools", ())]  # a protocol's isinstance is slow
                    passages = await traced_search(retriever.search(query, top_k), query, tools)
                    self._journal.searched(self._id, query, top_k, passages)
                    self._found[query, top_k] = passages
        return self._found[query, top_k]

    async def _kept(self, call: Any) -> Any:
        task = asyncio.ensure_future(call)
        self._journal.in_flight.add(task)
        task.add_done_callback(self._journal.over)
        return await asyncio.shield(task)


def _row(completion: Completion) -> list[object]:
    """A completion as the file keeps it: text and finish, and log-probabilities and reasoning only where they are."""
    if completion.reasoning:
        return [completion.text, completion.finish, completion.logprobs, completion.reasoning]
    return [completion.text, completion.finish, *([] if completion.logprobs is None else [completion.logprobs])]
