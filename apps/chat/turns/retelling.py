"""A turn that ended: its events again, its steps, and forks, which continue from a changed step.

Everything comes from kept records: looking at a turn searches nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from apps.chat.turns import events
from apps.chat.turns.events import Event
from apps.chat.turns.player import ChatAgent, answer_event, found_event
from apps.chat.turns.store import TurnRequest
from inference.predictions import BROKEN_OFF
from steprag.agent.environment import Environment
from steprag.agent.grammar import Grammar
from steprag.agent.retriever import url_of
from steprag.batch.journalled import state_of
from steprag.errors import StepFormatError
from steprag.records.training_rows import HumanPair
from steprag.records.turns import Turn
from steprag.types import Completion, Passage, State
from steprag.web.app import ApiError


class _Kept:
    """A turn's searches as its journal has them; one that was not made there finds nothing."""

    def __init__(self, chat: ChatAgent, turn: Turn) -> None:
        self._found = chat.journal.searches_of(turn.id)
        self.fingerprint = chat.environment(turn).retriever.fingerprint

    def has(self, query: str, top_k: int) -> bool:
        """Whether the search was made."""
        return (query, top_k) in self._found

    async def search(self, query: str, top_k: int) -> tuple[Passage, ...]:
        return self._found.get((query, top_k), ())

    async def ready(self) -> None:
        """It is."""

    async def aclose(self) -> None:
        """The journal belongs to the service."""


@dataclass(frozen=True)
class StepDetail:
    """A step as the policy saw it. `candidates`: the raw completions, each with the reason for which it was refused."""

    messages: tuple[Any, ...]
    allowed: tuple[str, ...]
    candidates: tuple[tuple[str, str | None], ...]


async def _states(chat: ChatAgent, turn: Turn, kept: _Kept, steps: int) -> list[State]:
    """The states of the turn's first `steps` steps, from its start on, as they were played."""
    environment = replace(chat.environment(turn), retriever=kept)
    states = [await environment.opened(environment.start(turn.question))]
    for step in turn.steps[:steps]:
        states.append(await environment.apply(states[-1], step))
    return states


async def detail(chat: ChatAgent, turn: Turn, place: int) -> StepDetail:
    """The prompt of the turn's step at `place`, and what the policy answered."""
    environment = chat.environment(turn)
    state = (await _states(chat, turn, _Kept(chat, turn), place))[-1]
    observation = environment.observe(state)
    name = state_of(observation.messages, observation.allowed)
    samples = [sample for (_, at, _, _), sample in chat.journal.calls_of(turn.id) if at == name]
    listed = tuple((one.text, _refusal(environment, state, one)) for sample in samples for one in sample.completions)
    return StepDetail(observation.messages, observation.allowed, listed)


def _refusal(environment: Environment, state: State, completion: Completion) -> str | None:
    try:
        environment.parse(state, completion)
    except StepFormatError as error:
        return error.reason
    return None


async def retold(chat: ChatAgent, turn: Turn) -> list[Event]:
    """The events of a turn that ended, without deltas."""
    environment, kept = chat.environment(turn), _Kept(chat, turn)

    def found(state: State) -> list[Event]:
        query = state.steps[-1].content if state.steps else state.question
        event = found_event(environment, state, chat.searching(turn).retriever)
        return [event] if event and kept.has(query, environment.top_k) else []

    states = await _states(chat, turn, kept, len(turn.steps))
    told = [events.started(turn.conversation, turn.mode, turn.parent, 0),
            events.question(turn.asked, turn.question, turn.route), *found(states[0])]  # fmt: skip
    for place, (step, state) in enumerate(zip(turn.steps, states[1:], strict=True)):
        given = place < turn.given
        if not given:
            told.append(events.step_started(place, environment.allowed(states[place])))
        told += [events.step_finished(place, step, given=given), *found(state)]
    if turn.prediction is not None:
        told.append(await answer_event(chat, turn, states[-1], environment))
    elif turn.refused is not None or turn.finish in BROKEN_OFF:
        told.append(events.step_started(len(turn.steps), environment.allowed(states[-1])))
    return [{"turn": turn.id, **event} for event in [*told, events.end_of(turn)]]


async def fork_request(
    chat: ChatAgent, parent: Turn, place: int, text: str, turn_id: str, action: str | None = None
) -> TurnRequest:
    """The turn that has `text` for step `place` of `parent` and continues from there. Raises ApiError.

    `action`: what words without a tag are to be; None: what the step was, else the only or first action that may stand
    there.
    """
    state = await _state_at(chat, parent, place)
    environment = chat.environment(parent)
    if environment.profile.grammar.free:
        raise ApiError(422, "no_steps", "talk has no steps to change; ask something else, or once more")
    allowed = environment.allowed(state)
    if action is not None and action not in allowed:
        raise ApiError(422, "wrong_action", f"here may stand {' or '.join(allowed)}, not {action}", param="action")
    written = as_step_text(environment.profile.grammar, action or _action_at(parent, place) or allowed[0], text)
    try:
        step = environment.parse(state, Completion(written, "written"))
    except StepFormatError as error:
        raise ApiError(422, error.reason, f"this is no step that may stand here: {error}", param="text") from None
    return TurnRequest(turn_id, parent.conversation, parent.asked, parent.mode, time.time(), question=parent.question,
                       parent=parent.id, given=(*parent.steps[:place], step), route=parent.route,
                       source=parent.source)  # fmt: skip


def again_request(chat: ChatAgent, turn: Turn, turn_id: str) -> TurnRequest:
    """Another try of a turn's question, in its place of the conversation: with the next seed."""
    tries = [one for one in chat.store.conversations.get(turn.conversation, {}).values()
             if one.parent == turn.parent and one.question == turn.question]  # fmt: skip
    return TurnRequest(turn_id, turn.conversation, turn.asked, turn.mode, time.time(), question=turn.question,
                       parent=turn.parent, again=len(tries), route=turn.route, history=turn.history,
                       source=turn.source)  # fmt: skip


def _action_at(turn: Turn, place: int) -> str | None:
    return turn.steps[place].action if place < len(turn.steps) else None


async def _state_at(chat: ChatAgent, turn: Turn, place: int) -> State:
    """The state in which the turn took step `place`, or was to take it: a turn without an answer has one more place,
    where its completion was refused or it was stopped. Raises ApiError where there is none.
    """
    if not 0 <= place < len(turn.steps) + (turn.prediction is None):
        raise ApiError(404, "no_such_step", f"the turn has no step {place}")
    return (await _states(chat, turn, _Kept(chat, turn), place))[-1]


def as_step_text(grammar: Grammar, action: str, text: str) -> str:
    """`text` as a completion; words without any tag become the content of a step of that action."""
    if any(known.opening in text for known in grammar.actions):
        return text
    kind = grammar.action(action)
    return kind.head + kind.tail(text.replace("<", "‹"))


async def human_pair(chat: ChatAgent, parent: Turn, fork: TurnRequest) -> HumanPair | None:
    """The preference of a fork over the replaced step or refused completion; None if the person wrote the same text as
    the policy, or the policy had written none, and of a mode with prompts of its own, which the policy does not see.
    """
    place = len(fork.given) - 1
    chosen = fork.given[place]
    rejected = parent.steps[place].text if place < len(parent.steps) else parent.refused
    if not rejected or chosen.text == rejected:
        return None
    state = await _state_at(chat, parent, place)
    environment = chat.environment(parent)
    if environment.profile is not next(iter(chat.modes.values())).profile:
        return None
    prompt = environment.observe(state).messages
    web = any(url_of(passage.id) for row in (*state.earlier, state.passages) for passage in row)
    pair = HumanPair(fork.id, parent.question, place, prompt, chosen.text, rejected,
                     chosen.action, _action_at(parent, place) or chosen.action, web)  # fmt: skip
    await chat.store.prefer(pair)
    return pair
