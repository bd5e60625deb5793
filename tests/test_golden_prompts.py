"""The prompts and constraints of every profile, byte for byte. Those of older profiles are as before there was a stack.

When a prompt is meant to change, write the file anew with `STEPRAG_ACCEPT=1 python -m tests.test_golden_prompts`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from pathlib import Path

import pytest

from steprag.agent.environment import Environment
from steprag.agent.profiles import PROFILES, load_profile
from steprag.types import Step
from tests.fakes import QUESTION, DictRetriever

FILE = Path(__file__).with_name("golden_prompts.json")
NAMES = sorted(path.stem for path in PROFILES.glob("*.yaml"))


def played(name: str) -> dict[str, object]:
    """Hashes of the profile, its grammar and the prompts of an episode that takes the allowed actions in turns."""
    profile = load_profile(name)
    environment = Environment(profile, DictRetriever(), 2, 9)

    async def prompts() -> list[object]:
        state, told = await environment.opened(environment.start(QUESTION)), []
        for turn in range(8):
            seen = environment.observe(state)
            told.append([[dict(message) for message in seen.messages], list(seen.allowed)])
            action = profile.grammar.action(seen.allowed[turn % len(seen.allowed)])
            if action.terminal:
                action = profile.grammar.action(seen.allowed[0])
            if action.terminal:
                break
            said = "currency of Albania"
            state = await environment.apply(
                state, Step(action.name, f"So. {action.head} {said} {action.closing}", said)
            )
        return told

    told = asyncio.run(prompts())
    forms = [[form(after) for form in (profile.grammar.gbnf, profile.grammar.regex)]
             for after in profile.grammar.transitions.values()]  # fmt: skip
    return {
        "prompts": len(told), "hash": digest(told), "profile": profile.hash, "grammar": profile.grammar.hash,
        "forms": digest(forms),
    }  # fmt: skip


def digest(told: object) -> str:
    """16 hex digits of a hash of plain data."""
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", NAMES)
def test_prompts_are_byte_for_byte_what_they_were(name: str) -> None:
    assert played(name) == json.loads(FILE.read_text())[name]


if __name__ == "__main__" and os.environ.get("STEPRAG_ACCEPT"):
    FILE.write_text(json.dumps({name: played(name) for name in NAMES}, indent=1) + "\n")
