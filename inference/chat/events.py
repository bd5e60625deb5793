"""What a turn tells while it is played: JSON objects, in an order that `next_state` knows.

    started question (step.started delta* step.finished passages?)* answer? (finished | failed | cancelled)

A turn whose profile searches with the question itself begins with `passages` of step -1. The last step has no
`step.finished` where its completion was refused. A failed or cancelled turn may stop behind any event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inference.chat.citations import Citation
from steprag.agent.retriever import url_of
from steprag.types import Passage, Step, Usage

Event = dict[str, Any]

ENDS = ("turn.finished", "turn.failed", "turn.cancelled")
_AFTER: dict[str, tuple[str, ...]] = {
    "": ("turn.started",),
    "turn.started": ("question",),
    "question": ("passages", "step.started", "step.finished", "turn.finished"),
    "step.started": ("step.delta", "step.finished", "turn.finished"),
    "step.delta": ("step.delta", "step.finished", "turn.finished"),
    "step.finished": ("passages", "step.started", "step.finished", "answer"),
    "passages": ("step.started", "step.finished"),
    "answer": ("turn.finished",),
}
"""Which events may follow which. `step.finished` may follow another: steps that a person gave are not begun."""


def next_state(state: str, event: Event) -> str:
    """The state of the grammar after `event`; "" before the first. Raises ValueError where it may not stand there."""
    kind = event.get("type", "")
    if state in ENDS:
        raise ValueError(f"{kind} after the turn's end")
    if kind not in _AFTER.get(state, ()) and not (state and kind in ENDS[1:]):
        raise ValueError(f"{kind} after {state or 'nothing'}")
    return kind


def started(conversation: str, mode: str, parent: str | None, queued: int) -> Event:
    """The turn is accepted; `queued` others wait before it."""
    return {"type": "turn.started", "conversation": conversation, "mode": mode, "parent": parent, "queued": queued}


def question(asked: str, seen: str) -> Event:
    """The words as typed, and those that the agent sees."""
    return {"type": "question", "asked": asked, "question": seen}


def step_started(step: int, allowed: Sequence[str]) -> Event:
    """A step is asked for."""
    return {"type": "step.started", "step": step, "allowed": list(allowed)}


def step_delta(step: int, text: str) -> Event:
    """A piece of the step's text; the pieces of a step, joined, are its text."""
    return {"type": "step.delta", "step": step, "text": text}


def step_finished(
    place: int, step: Step, usage: Usage | None = None, seconds: float | None = None, *, given: bool = False
) -> Event:
    """A step is taken. `given`: a person wrote it, or it was taken over from the turn that this one forks. Usage and
    seconds are there where they were measured in this telling.
    """
    measured = {} if usage is None or seconds is None else {"usage": vars(usage), "seconds": round(seconds, 3)}
    return {"type": "step.finished", "step": place, "action": step.action, "content": step.content, "text": step.text,
            "given": given, **measured}  # fmt: skip


def passages(step: int, source: str, found: Sequence[Passage], numbers: dict[str, int], why: str | None) -> Event:
    """What a step's search found. `source`: local, web or both; `why`: how the source was chosen, where it was."""
    items = [
        {"n": numbers[passage.id], "id": passage.id, "title": passage.title, "url": url_of(passage.id),
         "score": passage.score, "text": passage.text}
        for passage in found
    ]  # fmt: skip
    return {"type": "passages", "step": step, "source": source, "items": items, **({"why": why} if why else {})}


def answer(content: str, sources: Sequence[Citation]) -> Event:
    """The answer and what it rests on."""
    listed = [
        {"n": one.n, "cited": one.cited, "evidence": one.evidence, "spans": [list(span) for span in one.spans]}
        for one in sources
    ]
    return {"type": "answer", "content": content, "sources": listed}


def finished(finish: str, usage: Usage, seconds: float, refused: str | None = None) -> Event:
    """The episode is over: `finish` is "answer", or why its last completion was refused."""
    said = {"type": "turn.finished", "finish": finish, "usage": vars(usage), "seconds": round(seconds, 3)}
    return said if refused is None else {**said, "refused": refused}


def failed(message: str, code: str) -> Event:
    """The turn could not be played to its end."""
    return {"type": "turn.failed", "message": message, "code": code}


def cancelled() -> Event:
    """Someone ended the turn."""
    return {"type": "turn.cancelled"}
