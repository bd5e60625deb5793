"""Worked episodes of Atlas' two tasks in the words of each arm of `steprag reproduce stack`.

The builder writes down what an episode reads (`benchmarks.atlas.tasks`); an arm is how it remembers that.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from steprag.atlas.readings import TaskEpisode
from steprag.files import read_records, write_records

Step = dict[str, object]


def write_worked(tasks: Path, out: Path, words: Callable[[TaskEpisode], list[Step]]) -> None:
    """Writes the worked episodes that `steprag worked` reads: those of the file `tasks`, in an arm's words."""
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
    return [*steps, _step("answer", "So the answer is", _answer(episode))]


def flat(episode: TaskEpisode) -> list[Step]:
    """A search and a note for each reading; nothing is ever taken off."""
    steps = [
        step
        for reading in episode.readings
        for step in (_step("search", "", reading.query), _step("reasoning", "", reading.text, gold=reading.gold))
    ]
    return [*steps, _step("answer", "", _answer(episode))]


def stack(episode: TaskEpisode) -> list[Step]:
    """What helps is summed up in a few words, what does not is taken back."""
    steps: list[Step] = []
    for reading in episode.readings:
        steps.append(_step("search", "", reading.query))
        if reading.keep:
            steps.append(_step("summary", "", reading.brief, gold=reading.gold))
        else:
            steps.append(_step("backtrack", "", reading.text, gold=reading.gold))
    return [*steps, _step("answer", "", _answer(episode))]


def _answer(episode: TaskEpisode) -> str:
    return episode.golden_answers[0]


def _step(action: str, lead: str, content: str, gold: tuple[str, ...] = ()) -> Step:
    text = f"{lead} <{action}> {content} </{action}>".strip()
    return {"action": action, "text": text, "gold": list(gold)}
