"""A question that leans on earlier ones, made to stand alone: the agent only sees questions as it was trained on them.

A model of the user's choice rewrites; without one the question stays as it was typed. A capable model writes the
question. A small one chooses: it is given the question with each name that the last exchange says in the pronoun's
place, and the engine's grammar lets it write none but these.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from inference.chat.referents import rewritings
from steprag.agent.inert import neutralise
from steprag.agent.profiles import fill
from steprag.policy.client import Model
from steprag.policy.protocols import Policy
from steprag.types import Message
from steprag.yaml_files import read_yaml

PROMPT = Path(__file__).parents[2] / "configs" / "chat" / "rewrite.yaml"
ROLE = "rewriter"
"""The role of its calls in the journal."""
LONGEST = 400
"""Characters of a rewritten question."""

_LINE = re.compile(rf"[^<>\n\r]{{1,{LONGEST}}}")
Exchange = tuple[str, str]
"""An earlier question, as the agent saw it, and its answer."""


@dataclass(frozen=True)
class QuestionFormat:
    """One line of text, in each engine's dialect of constrained output."""

    stop: tuple[str, ...] = ("\n",)

    def gbnf(self, allowed: tuple[str, ...]) -> str:
        """llama.cpp's grammar of the line; `allowed` changes nothing."""
        return f"root ::= [^<>\\n ] [^<>\\n]{{0,{LONGEST}}}\n"

    def regex(self, allowed: tuple[str, ...]) -> str:
        """The regular expression of the line; `allowed` changes nothing."""
        return f"[^<>\\n ][^<>\\n]{{0,{LONGEST}}}"

    def schema(self, allowed: tuple[str, ...]) -> dict[str, Any] | None:
        """None: a line of text needs no JSON."""


@dataclass(frozen=True)
class ChoiceFormat:
    """One of the lines that are given as `allowed`."""

    stop: tuple[str, ...] = ("\n",)

    def gbnf(self, allowed: tuple[str, ...]) -> str:
        """llama.cpp's grammar of the lines."""
        return f"root ::= {' | '.join(json.dumps(line, ensure_ascii=False) for line in allowed)}\n"

    def regex(self, allowed: tuple[str, ...]) -> str:
        """The regular expression of the lines."""
        return "|".join(map(re.escape, allowed))

    def schema(self, allowed: tuple[str, ...]) -> dict[str, Any] | None:
        """None: a line of text needs no JSON."""


@dataclass(frozen=True)
class Rewriter:
    """The model that rewrites. `choose`: it chooses (its format is ChoiceFormat), else it writes (QuestionFormat)."""

    model: Model
    choose: bool

    async def standalone(self, policy: Policy, history: Sequence[Exchange], asked: str, *, seed: int) -> str:
        """`asked` in words that need no earlier turn, by the model behind `policy`; as it was typed where the reply is
        none. Raises PolicyError.
        """
        if not history:
            return asked
        if not self.choose:
            sample = await policy.sample(render(history, asked), (ROLE,), n=1, seed=seed)
            return _line(sample.completions[0].text) or asked
        lines = tuple(line for line in rewritings(history, asked) if _LINE.fullmatch(line))
        if len(lines) < 2:
            return lines[0] if lines else asked
        sample = await policy.sample(render(history, asked, "choose"), lines, n=1, seed=seed)
        chosen = sample.completions[0].text.strip()
        return chosen if chosen in lines else asked


def render(history: Sequence[Exchange], asked: str, task: str = "system") -> tuple[Message, ...]:
    """The rewriter's prompt: the earlier turns in order, and the question. Their texts are data, and made inert.
    `task`: "system" to write, "choose" to choose.
    """
    words = _words()
    turns = "\n".join(
        fill(words["turn"], question=neutralise(question), answer=neutralise(answer)) for question, answer in history
    )
    user = fill(words["user"], turns=turns, question=neutralise(asked)).strip()
    return (Message(role="system", content=words[task]), Message(role="user", content=user))


def _line(reply: str) -> str:
    """The reply's first line without a label in front and quotes around it."""
    lines = [line.strip() for line in reply.splitlines() if line.strip()]
    bare = re.sub(r"^(?:standalone |rewritten )?question\s*:\s*", "", lines[0], flags=re.IGNORECASE) if lines else ""
    return bare.strip().strip('"').strip()[:LONGEST]


@cache
def _words() -> dict[str, str]:
    return read_yaml(PROMPT)
