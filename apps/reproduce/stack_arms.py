"""The arms of `steprag reproduce stack`: how each remembers, and its words for the worked episodes of Atlas' two tasks.

Atlas' tasks hold what an episode reads (`steprag.atlas.TaskEpisode`); an arm says how that is remembered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from apps.reproduce.options import ProofOptions, ProofSizes, size
from steprag.atlas import TaskEpisode
from steprag.records.jsonl import read_records, write_records

Step = dict[str, object]


def write_worked(tasks: Path, out: Path, words: Callable[[TaskEpisode], list[Step]]) -> None:
    """Writes the worked episodes that `steprag trees worked` reads: those of the file `tasks`, in an arm's words."""
    write_records(out, [
        {"id": one.id, "question": one.question, "golden_answers": list(one.golden_answers), "steps": words(one)}
        for one in read_records(tasks, TaskEpisode)
    ])  # fmt: skip


def transcript(episode: TaskEpisode) -> list[Step]:
    """Query and evidence for each reading: what failed stays in sight."""
    steps: list[Step] = []
    lead = "I need"
    for reading in episode.readings:
        steps.append(_step("query", f"{lead} {reading.need}. So the next query is", reading.query))
        said = reading.text if reading.keep or reading.gold else "None"
        steps.append(_step("evidence", "Based on the query, the relevant evidence is", said, gold=reading.gold))
        lead = "I need" if reading.keep else "That is not it, so I need"
    return [*steps, _step("answer", "So the answer is", episode.golden_answers[0])]


def flat(episode: TaskEpisode) -> list[Step]:
    """A search and a note for each reading; nothing is ever taken off."""
    steps: list[Step] = []
    for reading in episode.readings:
        steps += [_step("search", "", reading.query), _step("reasoning", "", reading.text, gold=reading.gold)]
    return [*steps, _step("answer", "", episode.golden_answers[0])]


def stack(episode: TaskEpisode) -> list[Step]:
    """Sums up readings that help in a few words, and takes the others back."""
    steps: list[Step] = []
    for reading in episode.readings:
        action, text = ("summary", reading.brief) if reading.keep else ("backtrack", reading.text)
        steps += [_step("search", "", reading.query), _step(action, "", text, gold=reading.gold)]
    return [*steps, _step("answer", "", episode.golden_answers[0])]


def _step(action: str, lead: str, content: str, gold: tuple[str, ...] = ()) -> Step:
    text = f"{lead} <{action}> {content} </{action}>".strip()
    return {"action": action, "text": text, "gold": list(gold)}


@dataclass(frozen=True)
class Arm:
    """A way to remember: its prompt profile, its words for a worked episode, and its label in tables."""

    name: str
    profile: str
    words: Callable[[TaskEpisode], list[Step]]
    label: str


ARMS = (
    Arm("transcript", "transcript", transcript, "transcript"),
    Arm("stack", "stack", stack, "stack"),
    Arm("flat", "flat", flat, "stack without going back and summing up"),
    Arm("all", "transcript-all", transcript, "transcript with all passages"),
)
"""The first is what the others are compared with."""
BASE, STACKED = ARMS[:2]
"""The arms that are in question."""


@dataclass(frozen=True)
class StackSizes(ProofSizes):
    """How much of everything."""

    episodes: int = size(300, 6, "worked episodes that every arm learns from")
    passes: int = size(2, 1, "passes over those of the arm whose steps are longest")
    test: int = size(0, 4, "questions of each task, evenly taken; 0: all", 0)
    grpo: int = size(20, 1, "steps of reinforcement learning of the stack agent; 0: none", 0)


@dataclass(frozen=True, kw_only=True)
class StackProof(ProofOptions):
    """What `steprag reproduce stack` was asked for."""

    sizes: StackSizes
    arms: tuple[Arm, ...] = ARMS
