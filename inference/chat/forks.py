"""A person changes a step: the agent goes on from there, and the change is a preference."""

from __future__ import annotations

import time

from inference.chat.player import ChatAgent, states_of
from inference.chat.store import TurnRequest
from steprag.agent.grammar import Grammar
from steprag.agent.retriever import url_of
from steprag.errors import StepFormatError
from steprag.training_rows import HumanPair
from steprag.types import Completion, State, Turn
from steprag.web.replies import ApiError


async def fork_request(
    chat: ChatAgent, parent: Turn, place: int, text: str, turn_id: str, action: str | None = None
) -> TurnRequest:
    """The turn that has `text` for step `place` of `parent` and goes on from there. Raises ApiError.

    `action`: what words without a tag are to be; None: what the step was, else the only or first action that may stand
    there.
    """
    state = await _state_at(chat, parent, place)
    environment = chat.environment(parent.mode)
    allowed = environment.allowed(state)
    if action is not None and action not in allowed:
        raise ApiError(422, "wrong_action", f"here may stand {' or '.join(allowed)}, not {action}", param="action")
    written = as_step_text(environment.profile.grammar, action or _action_at(parent, place) or allowed[0], text)
    try:
        step = environment.parse(state, Completion(written, "stop"))
    except StepFormatError as error:
        raise ApiError(422, error.reason, f"this is no step that may stand here: {error}", param="text") from None
    return TurnRequest(turn_id, parent.conversation, parent.asked, parent.mode, time.time(), question=parent.question,
                       parent=parent.id, given=(*parent.steps[:place], step))  # fmt: skip


def _action_at(turn: Turn, place: int) -> str | None:
    return turn.steps[place].action if place < len(turn.steps) else None


async def _state_at(chat: ChatAgent, turn: Turn, place: int) -> State:
    """The state in which the turn took step `place`, or was to take it: a turn without an answer has one more place,
    where its completion was refused or it was stopped. Raises ApiError where there is none.
    """
    if not 0 <= place < len(turn.steps) + (turn.prediction is None):
        raise ApiError(404, "no_such_step", f"the turn has no step {place}")
    return (await states_of(chat, turn, turn.question, turn.steps[:place]))[-1]


def as_step_text(grammar: Grammar, action: str, text: str) -> str:
    """`text` as a completion; words without any tag become the content of a step of that action."""
    if any(known.opening in text for known in grammar.actions):
        return text
    kind = grammar.action(action)
    return kind.head + kind.tail(text.replace("<", "‹"))


async def human_pair(chat: ChatAgent, parent: Turn, fork: TurnRequest) -> HumanPair | None:
    """The preference that a fork is, over a step or over a completion that was refused; None where the person wrote
    what the policy had written, or the policy had written nothing.
    """
    place = len(fork.given) - 1
    chosen = fork.given[place]
    rejected = parent.steps[place].text if place < len(parent.steps) else parent.refused
    if not rejected or chosen.text == rejected:
        return None
    state = await _state_at(chat, parent, place)
    prompt = chat.environment(parent.mode).observe(state).messages
    web = any(url_of(passage.id) for row in (*state.earlier, state.passages) for passage in row)
    pair = HumanPair(fork.id, parent.question, place, prompt, chosen.text, rejected,
                     chosen.action, _action_at(parent, place) or chosen.action, web)  # fmt: skip
    chat.store.prefer(pair)
    return pair
