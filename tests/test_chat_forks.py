"""Forks: a person changes a step, or writes the one that was refused or never finished, and the agent goes on.
Questions that lean on earlier ones, where a small model chooses what a pronoun stands for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.chat.config import ChatConfig
from apps.chat.memory import LineFormat, names, rewritings
from apps.chat.serve import SMALL
from apps.commands import main
from inference.config import config_of
from steprag.records.jsonl import read_json, read_records
from steprag.records.training_rows import HumanPair, Pair
from steprag.records.turns import Turn
from steprag.runs.run import open_run
from tests.chat_parts import WORK, Served, WritingPolicy, chat, scripted
from tests.fakes import answer, evidence, wait_for
from tests.test_ask import options
from tests.test_chat import in_order

REFUSED = "I do not know."


def forked(served: Served, turn: str, **body: object) -> list[dict[str, object]]:
    """The events of the turn that a change makes."""
    reply = served.client.post(f"/api/turns/{turn}/fork", json=body)
    assert reply.status_code == 201, reply.text
    return served.events(reply.json()["turn"])


def refused(served: Served, turn: str, **body: object) -> tuple[int, str]:
    """Status and code of a change that is refused."""
    reply = served.client.post(f"/api/turns/{turn}/fork", json=body)
    return reply.status_code, reply.json()["error"]["code"]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A run of `steprag serve`."""
    identity = {"prompt": {"profile": "transcript", "hash": "x"}}
    config = {"prompt": {"profile": "transcript"}}
    with open_run(tmp_path / "chat", "serve", identity=identity, config=config):
        yield tmp_path / "chat"


def test_a_fork_goes_on_from_the_changed_step_and_becomes_a_preference(tmp_path: Path) -> None:
    with chat(WritingPolicy(scripted(*WORK, *WORK[3:])), tmp_path) as served:
        turn = served.whole()[0]["turn"]
        searched = len(served.retriever.searched)
        assert refused(served, turn, step=2, text=evidence("x")) == (422, "wrong_action")
        assert refused(served, turn, step=2, text="x" * 9000)[0] == 422
        events = forked(served, turn, step=2, text="currency of Albania")
        assert served.retriever.searched[searched:] == ["currency of Albania"]
    in_order(events)
    given = [event["content"] for event in events if event["type"] == "step.finished" and event["given"]]
    assert given == ["Tirana", "Tirana is the capital of Albania.", "currency of Albania"]
    (pair,) = read_records(tmp_path / "preferred.jsonl", HumanPair)
    assert (pair.rejected, pair.web) == (WORK[2], False)
    assert "<query> currency of Albania </query>" in pair.chosen
    assert pair.prompt[-1]["role"] == "user"
    (_, changed) = read_records(tmp_path / "turns.jsonl", Turn)
    assert (changed.parent, changed.given, changed.prediction) == (turn, 3, "lek")


def test_a_fork_sees_what_the_question_itself_found_as_the_turn_before_did(tmp_path: Path) -> None:
    thought, answered = "<reason> Tirana is the capital of Albania. </reason>", answer("lek")
    policy = WritingPolicy(scripted(thought, answered, answered))
    with chat(policy, tmp_path, profile="ircot") as served:
        turn = served.whole("Where is Tirana?")[0]["turn"]
        in_order(forked(served, turn, step=0, text="Albania uses the lek."))
        direct = served.whole("Where is Lima?", mode="direct")
    (pair,) = read_records(tmp_path / "preferred.jsonl", HumanPair)
    assert pair.prompt == policy.prompts[0]
    first, _, forked_prompt, alone = (prompt[-1]["content"] for prompt in policy.prompts)
    assert "Tirana: Tirana is the capital" in first
    assert forked_prompt.startswith(first.rpartition("\n")[0])
    searched = ["Where is Tirana?", "Tirana is the capital of Albania.", "Albania uses the lek."]
    assert served.retriever.searched == searched
    assert "Passages" not in alone
    assert "passages" not in {event["type"] for event in direct}


def test_a_refused_completion_is_written_by_a_person_and_becomes_a_pair(folder: Path, tmp_path: Path) -> None:
    with chat(WritingPolicy(scripted(WORK[0], WORK[1], REFUSED, *WORK[3:])), folder) as served:
        told = served.whole()
        assert (told[-1]["finish"], told[-1]["refused"]) == ("no_action", REFUSED)
        turn = told[0]["turn"]
        in_order(told)
        step = served.client.get(f"/api/turns/{turn}/steps/2").json()
        assert step["candidates"] == [{"text": REFUSED, "refused": "no_action"}]
        assert refused(served, turn, step=2, text="x", action="evidence") == (422, "wrong_action")
        assert refused(served, turn, step=3, text="x")[0] == 404
        # without an action the words are the first that may stand there
        events = forked(served, turn, step=2, text="currency of Albania")
    in_order(events)
    assert events[-1]["finish"] == "answer"
    assert [(event["action"], event["content"]) for event in events if event["type"] == "step.finished"][2:] == [
        ("query", "currency of Albania"), ("evidence", "Prices in Albania are quoted in the lek."), ("answer", "lek"),
    ]  # fmt: skip
    (row,) = read_records(folder / "preferred.jsonl", HumanPair)
    assert (row.rejected, row.action, row.rejected_action, row.step) == (REFUSED, "query", "query", 2)
    kept = {}
    for name, keep in (("plain", []), ("malformed", ["--filters.malformed", "false"])):
        assert main(["pairs", "people", str(folder), "--out", str(tmp_path / name), *keep]) == 0
        files = [tmp_path / name / f"pairs.{split}.jsonl" for split in ("train", "val")]
        kept[name] = [pair.rejected[0]["content"] for file in files for pair in read_records(file, Pair)]
    assert kept == {"plain": [], "malformed": [REFUSED]}


def test_a_stopped_turn_goes_on_with_a_persons_step_and_makes_no_pair(tmp_path: Path) -> None:
    policy, preferred = WritingPolicy(scripted(*WORK), hold=True), tmp_path / "preferred.jsonl"
    with chat(policy, tmp_path) as served:
        turn = served.ask()
        wait_for(lambda: policy.begun)
        served.client.delete(f"/api/turns/{turn}")
        assert served.events(turn)[-1]["type"] == "turn.cancelled"
        policy.hold = False
        events = forked(served, turn, step=0, text="Tirana", action="query")
    assert events[-1]["finish"] == "answer"
    assert not preferred.exists() or not preferred.read_text()
    with chat(policy, tmp_path) as served:
        again = served.events(turn)
    assert [event["type"] for event in again] == ["turn.started", "question", "step.started", "turn.cancelled"]


def test_two_spellings_of_a_question_are_one_question(folder: Path, tmp_path: Path) -> None:
    with chat(WritingPolicy(scripted(*WORK, *WORK[3:], *WORK, *WORK[3:])), folder) as served:
        for question, text in (("Which currency?", "money"), ("which currency", "coins")):
            turn = served.whole(question)[0]["turn"]
            assert forked(served, turn, step=2, text=text)[-1]["finish"] == "answer"
    assert main(["pairs", "people", str(folder), "--out", str(tmp_path / "pairs")]) == 0
    assert read_json(tmp_path / "pairs" / "report.json")["counts"]["changed_steps"] == 2


PERU = [("Which country borders Chile?", "Bolivia"), ("What is the capital of Peru?", "Lima")]


@pytest.mark.parametrize(("asked", "chosen"), [
    ("How many people live in it?", ("How many people live in Peru?", "How many people live in Lima?")),
    ("What are its colours?", ("What are Peru's colours?", "What are Lima's colours?")),
    ("It uses which currency, and since when does it?", ("Peru uses which currency, and since when does it?",
                                                         "Lima uses which currency, and since when does it?")),
    ("Which country has Quito as its capital?", ()),  # "its" stands for what the question itself says
    ("Who wrote Don Quixote?", ()),
    ("Which ISO code has it?", ("Which ISO code has Peru?", "Which ISO code has Lima?")),
])  # fmt: skip
def test_the_first_pronoun_stands_for_a_name_of_the_last_exchange(asked: str, chosen: tuple[str, ...]) -> None:
    assert rewritings(PERU, asked) == chosen


@pytest.mark.parametrize(("question", "answer", "asked", "chosen"), [
    ("Which currency is used in the country whose capital is Lima?", "Peruvian sol", "and its population?", []),
    ("How many provinces does the leading producer of platinum have?", "9", "and its population?", []),
    ("What do people pay with in the nation with Algiers as its capital?", "dinar", "Who leads it?", []),
    ("Which currency is used in Algeria?", "Algerian dinar", "and its population?", ["and Algeria's population?"]),
    ("and Algeria's population?", "42,228,429", "Who leads it?", ["Who leads Algeria?"]),
    ("In which year was radium discovered?", "1898", "What is its symbol?", ["What is radium's symbol?"]),
    ("Which country leads the production of the element discovered by Hennig Brand?", "China", "and its capital?",
     ["and China's capital?"]),
    ("Who discovered radium?", "Marie Curie", "Where was she born?", ["Where was Marie Curie born?"]),
    ("Who discovered radium?", "Marie Curie", "What is its symbol?", []),
    ("hello, who are you?", "I am StepRAG, a search agent. Ask me a question.", "and its capital?", []),
    ("Who wrote Hamlet?", "Not found in these documents. A guess: Latin", "Where was she?", ["Where was Hamlet?"]),
    ("Is Lima the capital of Peru?", "yes", "How old is it?", ["How old is Peru?", "How old is Lima?"]),
])  # fmt: skip
def test_a_pronoun_stands_for_nothing_that_has_no_name(
    question: str, answer: str, asked: str, chosen: list[str]
) -> None:
    assert [*rewritings([(question, answer)], asked)] == chosen


def test_names_are_what_is_asked_about_and_words_in_capitals() -> None:
    assert [*names("What is the Chinese yuan?")][0] == "the Chinese yuan"
    assert "Fort Smith, Arkansas" in [*names("The city of Fort Smith, Arkansas has an airport.")]
    assert [*names("the lek")] == ["the lek"]
    assert rewritings([], "And it?") == ()
    assert len(rewritings([("?", ". ".join(f"Name{place}" for place in range(99)) + ".")], "And it?")) == 16


def test_the_engines_grammar_holds_the_lines_and_nothing_else() -> None:
    lines = ('Who is "Ada"?', "Who is (Bob)? Or C|D\\?")
    pattern = LineFormat(choose=True).regex(lines)
    assert all(re.fullmatch(pattern, line) for line in lines)
    assert not re.fullmatch(pattern, "Who is Bob?")
    assert LineFormat(choose=True).gbnf(lines) == f"root ::= {json.dumps(lines[0])} | {json.dumps(lines[1])}\n"


class ChoosingPolicy(WritingPolicy):
    """Chooses the last of the lines that it may write."""

    async def sample(self, messages: Any, allowed: tuple[str, ...], *, n: int, seed: int) -> Any:
        self.script = lambda _: allowed[-1]
        return await super().sample(messages, allowed, n=n, seed=seed)


def test_a_small_model_chooses_what_a_pronoun_stands_for(tmp_path: Path) -> None:
    policy, rewriter = WritingPolicy(lambda messages: answer("Lima")), ChoosingPolicy(lambda messages: "")
    with chat(policy, tmp_path, rewriter=rewriter, choose=True) as served:
        first = served.whole("What is the capital of Peru?")
        more = {"conversation": first[0]["conversation"]}
        told = served.whole("How many people live in it?", **more)
        assert told[1]["question"] == "How many people live in Lima?"
        assert served.whole("Who wrote Don Quixote?", **more)[1]["question"] == "Who wrote Don Quixote?"
    assert rewriter.asked == 1  # without a choice nobody is asked


def test_the_shipped_agent_chooses_unless_told_otherwise() -> None:
    def rewriter(*argv: str) -> tuple[bool, bool]:
        config = config_of(ChatConfig, options(ChatConfig, *argv), beside=SMALL)
        return config.rewriter.enabled, config.rewriter.chooses

    assert rewriter() == (True, True)
    assert rewriter("--rewriter.on", "false")[0] is False
    assert rewriter("--rewriter.on", "true", "--rewriter.model", "big") == (True, False)
    assert rewriter("--model", "runs/dpo") == (True, True)
    assert rewriter("--model", "gpt-4o", "--policy.engine", "openai")[0] is False  # nothing was measured there
