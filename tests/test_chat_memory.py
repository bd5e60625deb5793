"""Questions that lean on earlier ones, where a small model chooses what a pronoun stands for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from inference.chat.config import ChatConfig
from inference.chat.memory import ChoiceFormat, names, rewritings
from inference.chat.serve import SMALL
from inference.config import config_of
from tests.chat_parts import WritingPolicy, chat
from tests.fakes import answer
from tests.test_ask import options

PERU = [("Which country borders Chile?", "Bolivia"), ("What is the capital of Peru?", "Lima")]


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        ("How many people live in it?", ("How many people live in Peru?", "How many people live in Lima?")),
        ("What are its colours?", ("What are Peru's colours?", "What are Lima's colours?")),
        ("It uses which currency, and since when does it?", ("Peru uses which currency, and since when does it?",
                                                             "Lima uses which currency, and since when does it?")),
        ("Which country has Quito as its capital?", ()),  # "its" stands for what the question itself says
        ("Who wrote Don Quixote?", ()),
        ("Which ISO code has it?", ("Which ISO code has Peru?", "Which ISO code has Lima?")),
    ],
)  # fmt: skip
def test_the_first_pronoun_stands_for_a_name_of_the_last_exchange(asked: str, chosen: tuple[str, ...]) -> None:
    assert rewritings(PERU, asked) == chosen


def test_names_are_what_is_asked_about_and_words_in_capitals() -> None:
    assert [*names("What is the Chinese yuan?")][0] == "the Chinese yuan"
    assert "Fort Smith, Arkansas" in [*names("The city of Fort Smith, Arkansas has an airport.")]
    assert [*names("the lek")] == ["the lek"]
    assert rewritings([], "And it?") == ()
    assert len(rewritings([("?", ". ".join(f"Name{place}" for place in range(99)) + ".")], "And it?")) == 16


def test_the_engines_grammar_holds_the_lines_and_nothing_else() -> None:
    lines = ('Who is "Ada"?', "Who is (Bob)? Or C|D\\?")
    pattern = ChoiceFormat().regex(lines)
    assert all(re.fullmatch(pattern, line) for line in lines)
    assert not re.fullmatch(pattern, "Who is Bob?")
    assert ChoiceFormat().gbnf(lines) == f"root ::= {json.dumps(lines[0])} | {json.dumps(lines[1])}\n"


class ChoosingPolicy(WritingPolicy):
    """Chooses the last of the lines that it may write."""

    async def sample(self, messages: Any, allowed: tuple[str, ...], *, n: int, seed: int) -> Any:
        self.script = lambda _: allowed[-1]
        return await super().sample(messages, allowed, n=n, seed=seed)


def test_a_small_model_chooses_what_a_pronoun_stands_for(tmp_path: Path) -> None:
    policy, rewriter = WritingPolicy(lambda messages: answer("Lima")), ChoosingPolicy(lambda messages: "")
    with chat(policy, tmp_path, rewriter=rewriter, choose=True) as served:
        first = served.whole("What is the capital of Peru?", mode="direct")
        more = {"conversation": first[0]["conversation"], "mode": "direct"}
        told = served.whole("How many people live in it?", **more)
        assert told[1]["question"] == "How many people live in Lima?"
        assert served.whole("Who wrote Don Quixote?", **more)[1]["question"] == "Who wrote Don Quixote?"
    assert rewriter.asked == 1  # without a choice nobody is asked


def test_the_shipped_agent_chooses_unless_told_otherwise() -> None:
    def rewriter(*argv: str) -> tuple[bool, str]:
        config = config_of(ChatConfig, options(ChatConfig, *argv), shipped=True, beside=SMALL)
        return config.rewriter.on, config.rewriter.way

    assert rewriter() == (True, "choose")
    assert rewriter("--rewriter.on", "false") == (False, "write")
    assert rewriter("--rewriter.on", "true", "--rewriter.model", "big") == (True, "write")
    assert rewriter("--model", "runs/dpo") == (False, "write")
