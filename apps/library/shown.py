"""What the library returns, and how a notebook shows it: text of models and passages is escaped, never markup."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

from steprag.agent.citations import GUESS, LACKING, NOT_FOUND, Citation, headed, numbered
from steprag.records.jsonl import write_records
from steprag.tree import Tree
from steprag.types import Episode, Passage, Step

HEIGHT = 640
"""Pixels of a tree in a notebook."""
REPR = 80
"""Characters of an answer in a Python prompt."""


@dataclass(frozen=True, repr=False)
class Answer:
    """What the agent answered, and how. `found`: every passage that a search found, with the part that the evidence
    repeats (`steprag.agent.citations`); `cites`: whether the agent keeps evidence at all; `lacks`: why nothing that was
    found supports the answer, a reason of LACKING; None where it is supported, or nothing was searched.
    """

    episode: Episode
    found: tuple[Citation, ...]
    cites: bool = True
    lacks: str | None = None

    @property
    def answer(self) -> str | None:
        """The answer; None where the episode ended without one (`episode.finish` says why)."""
        return self.episode.prediction

    @property
    def steps(self) -> tuple[Step, ...]:
        """What the agent did, in order."""
        return self.episode.state.steps

    @property
    def sources(self) -> tuple[Passage, ...]:
        """The passages that the evidence stands in; all that were found, where the agent keeps no evidence."""
        return tuple(source.passage for source in self._sources)

    @property
    def _sources(self) -> list[Citation]:
        return [each for each in self.found if each.cited or not self.cites]

    def __str__(self) -> str:
        return headed(self.answer, self.lacks) if self.answer else f"no answer: {self.episode.finish}"

    def __repr__(self) -> str:
        return f"<Answer {str(self)[:REPR]!r}, {len(self.steps)} steps, {len(self.sources)} sources>"

    def _repr_html_(self) -> str:
        rows = [*self.episode.state.earlier, self.episode.state.passages]
        numbers = numbered(rows)
        steps = "".join(f"<li><i>{escape(step.action)}</i> {escape(step.content)}{_named(row, numbers)}</li>"
                        for step, row in zip(self.steps, rows[1:], strict=False))  # fmt: skip
        sources = "".join(
            f'<li value="{each.n}"><b>{escape(each.passage.title)}</b> {"".join(_marked(each))}</li>'
            for each in self._sources
        )
        said = f"<b>{escape(self.answer or str(self))}</b>"
        if self.lacks and self.answer:
            guess = f"{GUESS} {escape(self.answer)} ({LACKING[self.lacks]})"
            said = f"<b>{NOT_FOUND}</b><br><small>{guess}</small>"
        head = f"<p>{escape(self.episode.state.question)} {said}</p>"
        below = f"<p>Sources</p><ol>{sources}</ol>" if sources else ""
        return f'<div class="tex2jax_ignore">{head}<ol>{steps}</ol>{below}</div>'  # no mathematics between two $


def _named(row: tuple[Passage, ...], numbers: dict[str, int]) -> str:
    """The passages that a step found."""
    return " → " + ", ".join(f"[{numbers[each.id]}] {escape(each.title)}" for each in row) if row else ""


def _marked(source: Citation) -> Iterator[str]:
    """A passage's text, with the words marked that the evidence says."""
    text, last = source.passage.text, 0
    for start, end in source.spans:
        yield f"{escape(text[last:start])}<mark>{escape(text[start:end])}</mark>"
        last = end
    yield escape(text[last:])


class ShownTree(Tree):
    """A tree that a notebook shows in the viewer, as its one-file export has it."""

    def _repr_html_(self) -> str:
        """A frame that reaches neither the notebook nor the network: the page's scripts run in no origin."""
        from apps.viewer.answers import Answers
        from apps.viewer.export import exported
        from apps.viewer.folders import open_folders

        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "trees.jsonl"
            write_records(file, [self])
            page = exported(Answers(open_folders([str(file)])), 1, framed=True)
        style = f"width: 100%; height: {HEIGHT}px; border: 0"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{escape(page)}"></iframe>'
