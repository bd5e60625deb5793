"""A policy as writer and reader of questions: its prompts, and replies of one line of JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from steprag.agent.inert import neutralise
from steprag.agent.judge import asked
from steprag.agent.open import PASSAGE_TOKENS
from steprag.agent.profiles import fill
from steprag.config.load import RECIPES
from steprag.experiments.adapt.gates import Draft, Hop
from steprag.experiments.adapt.passages import PassagePath
from steprag.policy.protocols import Policy
from steprag.records.json_text import NotJson, decoded
from steprag.records.yaml_files import read_yaml
from steprag.types import Message, Passage, Usage

PROMPTS = RECIPES / "questions" / "adapt.yaml"
MOST_HOPS = 4
INSTRUCTIONS = 300
"""Tokens of the longest instructions."""
CHARS = 400
"""Characters of a text in a reply that an engine is held to."""
UNKNOWN = frozenset({"", "unknown", "none", "n/a"})
_TEXT = rf'"\"" [^"\\\n]{{1,{CHARS}}} "\""'


def keys_of(form: str) -> tuple[str, ...]:
    """The keys of a reply: of a reading its answer; of a draft over 2 passages ("2") question_1 to answer_2, then those
    of the whole.
    """
    if form == "read":
        return ("answer",)
    each = [f"{key}_{number}" for number in range(1, int(form) + 1) for key in ("question", "answer")]
    return (*each, "question", "answer")


@dataclass(frozen=True)
class DraftFormat:
    """An object of texts, by form: "read", or how many passages a draft is of."""

    stop: tuple[str, ...] = ()
    thinks: bool = False

    def gbnf(self, allowed: tuple[str, ...]) -> str:
        """llama.cpp's grammar."""
        parts = ' ", " '.join(f'"\\"{key}\\": " text' for key in keys_of(allowed[0]))
        return f'root ::= "{{" {parts} "}}"\ntext ::= {_TEXT}\n'

    def regex(self, allowed: tuple[str, ...]) -> str:
        """The same as a regular expression."""
        words = rf'"[^"\\\n]{{1,{CHARS}}}"'
        return r"\{" + ", ".join(f'"{key}": {words}' for key in keys_of(allowed[0])) + r"\}"

    def schema(self, allowed: tuple[str, ...]) -> dict[str, Any] | None:
        """The same as a JSON schema."""
        properties = {key: {"type": "string"} for key in keys_of(allowed[0])}
        return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


@dataclass
class PolicyWriter:
    """Asks a policy. Whatever a prompt is filled with is made inert. Raises PolicyError where a request fails."""

    policy: Policy
    usage: Usage = Usage()

    async def write(self, path: PassagePath, passages: Sequence[Passage]) -> Draft | None:
        """A draft in one request."""
        words, form = _words(), str(len(passages))
        leads = "".join(f"\nPassage {number} leads to the next one by the name: {neutralise(bridge)}"
                        for number, bridge in enumerate(path.bridges, 1))  # fmt: skip
        system = fill(
            words["write"]["system"],
            way=words["bridge" if path.bridges else "one"].strip(),
            keys=", ".join(keys_of(form)),
        )
        values = await self._asked(form, system, fill(words["write"]["user"], passages=_shown(passages), leads=leads))
        if values is None:
            return None
        hops = tuple(Hop(values[f"question_{n}"], values[f"answer_{n}"]) for n in range(1, len(passages) + 1))
        return Draft(values["question"], values["answer"], hops)

    async def read(self, draft: Draft, passages: Sequence[Passage], *, knowing: bool) -> str | None:
        """The answer, in one request; none where the reply says that it is unknown, or cannot be read."""
        words = _words()["read"]
        system = fill(words["system"], how=words["knowing" if knowing else "alone"])
        asking = fill(words["user"], passages=_shown(passages), question=neutralise(draft.question))
        values = await self._asked("read", system, asking)
        said = (values or {}).get("answer", "").strip()
        return None if said.strip(".").lower() in UNKNOWN else said

    async def _asked(self, form: str, system: str, user: str) -> dict[str, str] | None:
        messages = (Message(role="system", content=system.strip()), Message(role="user", content=user.strip()))

        def texts(reply: str) -> dict[str, str] | None:
            try:
                values = decoded(reply.strip())
            except NotJson:
                return None
            whole = isinstance(values, dict) and set(values) == {*keys_of(form)}
            return values if whole and all(isinstance(text, str) for text in values.values()) else None

        judged = await asked(self.policy, messages, (form,), texts, seed=0)
        self.usage += judged.usage
        return judged.score


def calls_of(hops: int) -> int:
    """Requests that a path takes at most if every reply can be read: the draft, and its readings."""
    return 4 if hops == 1 else 5 + hops


def use_of(hops: int, reply: int) -> Usage:
    """What a path uses at most, each call with as long a prompt as the draft's or that of the search for others."""
    prompt = INSTRUCTIONS + 3 * hops * PASSAGE_TOKENS
    return Usage(calls_of(hops), calls_of(hops) * prompt, calls_of(hops) * reply)


def _shown(passages: Sequence[Passage]) -> str:
    """Passages with their numbers; nothing where there are none."""
    return "".join(f"Passage {number} ({neutralise(one.title)}): {neutralise(one.text)}\n\n"
                   for number, one in enumerate(passages, 1))  # fmt: skip


@cache
def _words() -> dict[str, Any]:
    return read_yaml(PROMPTS)
