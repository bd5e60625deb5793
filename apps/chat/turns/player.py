"""Plays a turn with the one agent and publishes it as events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from apps.chat.memory import ROLE, Exchange, Rewriter, fitting
from apps.chat.routing import AUTO, DIRECT, route_of, talks
from apps.chat.turns import events
from apps.chat.turns.events import Event, LiveTurn
from apps.chat.turns.files import BOTH, FILES, ConversationFiles
from apps.chat.turns.store import TurnRequest, TurnStore
from inference.config import READS
from steprag.agent.citations import Support, grounds_of, numbered
from steprag.agent.environment import Environment
from steprag.agent.open import OpenAgent
from steprag.agent.reader import Reader
from steprag.agent.retriever import Choosing, Documented, Retriever, is_given, place_of, url_of
from steprag.agent.rollout import Asked, Heard, Taken, rollout
from steprag.agent.talk import reply_to
from steprag.batch.journal import Journal, QuestionCalls
from steprag.policy.open import Model
from steprag.policy.protocols import StateReading
from steprag.policy.streams import HeardPolicy
from steprag.records.turns import Turn
from steprag.types import Completion, Episode, Found, Message, Passage, Question, Sample, State, Usage


@dataclass(frozen=True)
class FixedPolicy:
    """Says the same whatever it is asked."""

    words: str

    async def sample(self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, n: int, seed: int) -> Sample:
        """As `Policy.sample`."""
        return Sample((Completion(self.words, "stop"),) * n, Usage())


@dataclass(frozen=True)
class ChatAgent:
    """What all turns share. `modes`: the agent's environment in each; those that search differ in retriever alone.
    `rewriter`: None where questions stay as they are typed. `again`: the policy of further tries; None where the first
    one samples anyway. `voices`: the models of modes that have one of their own. `talk`: whether mode auto tells talk
    from questions. `room`: characters of earlier turns that a prompt may have; None: any number. `reader`: what answers
    from people's files, of which the shipped model knows nothing; None: the policy does.
    """

    modes: Mapping[str, Environment]
    policy: Model
    rewriter: Rewriter | None
    journal: Journal
    store: TurnStore
    history: int
    seed: int
    support: Support = field(default_factory=Support)
    again: Model | None = None
    voices: Mapping[str, Model] = field(default_factory=dict)
    talk: bool = True
    room: int | None = None
    files: ConversationFiles | None = None
    reader: Model | None = None

    def environment(self, one: TurnRequest | Turn) -> Environment:
        """The environment of a turn; in a mode that the service no longer has, that of the first."""
        environment = self.modes.get(self.mode(one)) or next(iter(self.modes.values()))
        if self._from_files(one):
            return replace(environment, top_k=max(READS, environment.top_k))
        if not (environment.profile.grammar.free and one.history):
            return environment
        return replace(environment, profile=environment.profile.after(one.history))

    def mode(self, one: TurnRequest | Turn) -> str:
        """The mode that a turn is played in: of an auto turn that talks, `direct`."""
        return DIRECT if talks(one) else one.mode

    def model(self, one: TurnRequest | Turn) -> Model:
        """The model that writes a turn's steps; of a greeting and the like, fixed words."""
        if talks(one) and (words := reply_to(one.asked)):
            return replace(self.policy, policy=FixedPolicy(words))
        if self._from_files(one) and self.reader:
            return self.reader
        again = self.again if isinstance(one, TurnRequest) and one.again else None
        return self.voices.get(self.mode(one)) or again or self.policy

    def _from_files(self, one: TurnRequest | Turn) -> bool:
        """Whether the reader answers the turn."""
        return self.reader is not None and one.source in (FILES, BOTH) and self.mode(one) not in self.voices

    def history_of(self, request: TurnRequest) -> tuple[Exchange, ...]:
        """The exchanges before a turn that a prompt has room for, the oldest first."""
        told = request.history
        if told is None:
            told = self.store.exchanges(request.parent, self.history)
        return fitting(told[-self.history :] if self.history else (), self.room)

    def searching(self, one: TurnRequest | Turn) -> Environment:
        """The environment of a turn's mode, which also searches the files of its conversation."""
        environment = self.environment(one)
        files = self.files
        return replace(environment, retriever=files.searched(one, environment.retriever)) if files else environment


async def play(chat: ChatAgent, live: LiveTurn) -> Turn:
    """Plays the turn and publishes all its events except the last. Raises RequestError, and what an engine's end
    raises.
    """
    request, journal = live.request, chat.journal
    calls = journal.question(Question(request.id, request.asked, ()), live=True)
    if request.given and request.parent:
        calls.copy_searches(request.parent)
    request = live.request = _routed(chat, request)
    seen = await _seen(chat, calls, request)
    live.publish(events.question(request.asked, seen, request.route))
    searching = chat.searching(request)
    teller = _Teller(live, searching.retriever)
    model = chat.model(request)
    policy = model.policy if isinstance(model.policy, StateReading) else HeardPolicy(model.policy, teller.heard)
    agent = calls.agent(OpenAgent(searching, replace(model, policy=policy)))
    state = agent.environment.start(seen)
    if request.given:
        state = await agent.environment.opened(state)  # as in the turn that it forks
        teller.found(agent.environment, state)
    for place, step in enumerate(request.given):
        state = await agent.environment.apply(state, step)
        live.publish(events.step_finished(place, step, given=True))
        if place < len(request.given) - 1:  # the rollout reports first what the last one found
            teller.found(agent.environment, state)
    turns = rollout(agent.environment, agent.policy.policy, state, seed=chat.seed + request.again)
    async with aclosing(turns) as played:  # pyright: ignore[reportArgumentType] (a generator, which can be closed)
        async for turn in played:
            match turn:
                case Asked():
                    teller.asked(turn)
                case Taken():
                    teller.taken(agent.environment, turn)
                case Episode():
                    return await _ended(chat, request, turn, agent.environment, live)
                case Heard():
                    pass
    raise RuntimeError("a rollout ended without its episode")


def _routed(chat: ChatAgent, request: TurnRequest) -> TurnRequest:
    """The request with its route, where it is one in mode auto, with its history, where it talks, and with what it
    searches, where its conversation has files.
    """
    source = (request.source or BOTH) if chat.files and chat.files.of(request.conversation) else None
    request = replace(request, source=source)
    if chat.talk and request.mode == AUTO and not (request.route or request.given):
        request = replace(request, route=route_of(request.asked))
    return replace(request, history=chat.history_of(request)) if talks(request) and not request.given else request


async def _seen(chat: ChatAgent, calls: QuestionCalls, request: TurnRequest) -> str:
    """The question for the agent: as the person typed it, or rewritten to stand alone."""
    if request.question is not None:
        return request.question
    if chat.rewriter is None or not request.rewrite or talks(request):  # who talks reads the turns before themselves
        return request.asked
    rewriter = chat.rewriter
    policy = calls.policy(rewriter.model.policy, ROLE, rewriter.model.gate)
    return await rewriter.standalone(policy, chat.history_of(request), request.asked, seed=chat.seed)


async def _ended(
    chat: ChatAgent, request: TurnRequest, episode: Episode, environment: Environment, live: LiveTurn
) -> Turn:
    """The turn of a finished episode; its answer is published."""
    if episode.prediction is not None:
        live.publish(await answer_event(chat, request, episode.state, environment))
    state = episode.state
    states = (State(state.question, state.steps[:place]) for place in range(len(state.steps) + 1))
    rows = zip([*state.earlier, state.passages], states, strict=False)
    found = tuple(row for row, there in rows if environment.searched(there))  # else no search led there
    return turn_of(request, question=state.question, steps=state.steps, passages=found, usage=episode.usage,
                   finish=episode.finish, prediction=episode.prediction, refused=episode.refused or None,
                   seconds=live.seconds)  # fmt: skip


def turn_of(request: TurnRequest, *, passages: tuple[Any, ...] = (), **fields: Any) -> Turn:
    """The record of a request's turn; `passages` by search, best first."""
    listed = tuple(tuple(Found(p.id, p.title, p.score) for p in row) for row in passages)
    blank = {"prediction": None, "steps": request.given, "usage": Usage(), "question": request.asked}
    talked = request.history if talks(request) else None
    return Turn(id=request.id, golden_answers=(), passages=listed, conversation=request.conversation,
                asked=request.asked, mode=request.mode, time=request.time, parent=request.parent, route=request.route,
                given=len(request.given), history=talked, source=request.source, **{**blank, **fields})  # fmt: skip


async def answer_event(chat: ChatAgent, one: TurnRequest | Turn, state: State, environment: Environment) -> Event:
    """The answer that `state` ends with, and what it rests on; a thread compares the texts."""
    grounds = await asyncio.to_thread(grounds_of, state, environment, chat.support)
    extractive = isinstance(chat.model(one).policy, Reader)
    return events.answer(state.steps[-1].content, grounds, extractive=extractive)


class _Teller:
    """Turns what a rollout yields, and what its policy writes, into a live turn's events."""

    def __init__(self, live: LiveTurn, origin: Retriever) -> None:
        self._live, self._origin = live, origin
        self._place, self._text = 0, ""
        self._since, self._usage = time.monotonic(), Usage()

    def asked(self, turn: Asked) -> None:
        self._place, self._text, self._since = len(turn.state.steps), "", time.monotonic()
        self._usage = turn.usage
        self._live.publish(events.step_started(self._place, turn.observation.allowed))

    def heard(self, piece: str) -> None:
        self._text += piece
        self._live.publish(events.step_delta(self._place, piece))

    def taken(self, environment: Environment, turn: Taken) -> None:
        if turn.step is not None:
            rest = turn.step.text.removeprefix(self._text)
            if rest and turn.step.text.startswith(self._text):  # the closing tag, at which the engine stopped
                self._live.publish(events.step_delta(self._place, rest))
            used = Usage(**{key: count - self._usage.shown.get(key, 0) for key, count in turn.usage.shown.items()})
            seconds = time.monotonic() - self._since
            self._live.publish(events.step_finished(self._place, turn.step, used, seconds))
        if turn.searched:
            self.found(environment, turn.state)

    def found(self, environment: Environment, state: State) -> None:
        """Publishes what the search behind a state found; nothing where none led there."""
        if told := found_event(environment, state, self._origin):
            self._live.publish(told)


def found_event(environment: Environment, state: State, origin: Retriever) -> Event | None:
    """What the search that led to `state` found; None where none did. `origin`: the retriever behind the journal, which
    may say why it searched where it did.
    """
    if not environment.searched(state):
        return None
    found = [*state.earlier, state.passages]
    query = state.steps[-1].content if state.steps else state.question
    choice = origin.choice(query) if isinstance(origin, Choosing) else None
    others = tuple(passage for passage in state.passages if not is_given(passage.id))
    source = choice.source if choice else _source(others)
    if len(others) < len(state.passages):
        source = f"files+{source}" if others else "files"
    files = {
        one.id: place_of(one) for one in state.passages if isinstance(origin, Documented) and origin.document(one.id)
    }
    return events.passages(len(state.steps) - 1, source, state.passages, numbered(found), choice and choice.why, files)


def _source(passages: tuple[Passage, ...]) -> str:
    """Where passages came from, as their ids say."""
    kinds = {"web" if url_of(passage.id) else "local" for passage in passages}
    return "both" if len(kinds) > 1 else next(iter(kinds), "local")
