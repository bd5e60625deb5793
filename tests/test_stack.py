"""The memory stack: a pure function of the trace, what the prompt shows of it, and that it is played like any other."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.commands import main
from data_generation.config import GenerateConfig
from data_generation.expand import make_searcher
from steprag.agent.environment import Environment
from steprag.agent.grammars import GRAMMARS, STACK
from steprag.agent.profiles import load_profile
from steprag.agent.stack import idle, live
from steprag.config.load import load_config
from steprag.errors import ConfigError, StepFormatError
from steprag.records.jsonl import read_records, write_records
from steprag.types import Completion, Passage, Prediction, Question, State, Step
from tests.fakes import BY_ROLLOUTS, DictRetriever, ScriptedPolicy, chat_reply, options, serve, states
from tests.test_search import grown

LEKS = (
    Passage("river", "Lek (river)", "The Lek is a river of the Netherlands."),
    Passage("money", "Albanian lek", "The lek is the money of Albania."),
    Passage("tirana", "Tirana", "Tirana is the capital of Albania."),
)
WORLD = DictRetriever(LEKS)
ENVIRONMENT = Environment(load_profile("stack"), WORLD, 1, 20)
ASKED = "Capital of the country that pays in leks?"


def step(action: str, content: str = "x") -> Step:
    return Step(action, f"<{action}> {content} </{action}>", content)


def shown(*actions: str) -> list[str]:
    """The actions on the stack after a trace of these."""
    trace = tuple(step(action) for action in actions)
    return [trace[place].action for place in live(trace, STACK)]


@pytest.mark.parametrize(("trace", "stack"), [
    ("plan search reasoning", "plan search reasoning"),
    ("plan search reasoning backtrack", "plan backtrack"),
    ("search reasoning search backtrack", "search reasoning backtrack"),
    ("search reasoning search backtrack backtrack", "backtrack"),
    ("plan search reasoning summary", "plan summary"),
    ("search summary search reasoning summary", "summary summary"),
    ("search summary search backtrack", "summary backtrack"),
    ("search summary search backtrack backtrack", "backtrack"),
    ("search summary backtrack", "backtrack"),
])  # fmt: skip
def test_a_step_back_takes_the_last_search_and_a_summary_all_since_the_one_before(trace: str, stack: str) -> None:
    assert shown(*trace.split()) == stack.split()


@given(st.data())
def test_laws_of_the_stack(data: st.DataObject) -> None:
    trace: tuple[Step, ...] = ()
    depth = data.draw(st.integers(1, 24))
    while not (trace and trace[-1].action == "answer"):
        allowed = STACK.allowed(trace, depth)
        assert allowed, "there is always a way on"
        stack = live(trace, STACK)
        assert list(stack) == sorted(set(stack))
        assert not trace or stack[-1] == len(trace) - 1, "the last step is on top"
        assert {place for place, one in enumerate(trace) if one.action == "plan"} <= set(stack), "a plan stays"
        for name in allowed:
            after = live((*trace, step(name)), STACK)
            shrinks = STACK.action(name).effect in ("pop", "fold")
            assert (len(after) <= len(stack)) if shrinks else (after == (*stack, len(trace))), "each effect acts"
        trace = (*trace, step(data.draw(st.sampled_from(allowed))))
    assert len(trace) <= max(depth, 1)


def test_nothing_goes_back_or_sums_up_what_is_not_there() -> None:
    assert "thought" not in STACK.gbnf(("plan", "search", "answer"))
    assert idle((), STACK) == {"pop", "fold"}
    assert STACK.allowed((step("plan"),), 9) == ("search", "answer")
    assert idle((step("search"), step("summary")), STACK) == {"fold"}
    assert STACK.allowed((step("search"), step("backtrack")), 9) == ("search", "answer")


@pytest.mark.parametrize("name", sorted(GRAMMARS.keys() - {"stack"}))
def test_without_pop_and_fold_stack_and_trace_are_one(name: str) -> None:
    grammar = GRAMMARS[name]
    trace = tuple(Step(action.name, "t", "c") for action in grammar.actions)
    assert live(trace, grammar) == tuple(range(len(trace)))


def path_of(*completions: str) -> list[State]:
    return states(ENVIRONMENT, *completions, question=ASKED)


def prompt(state: State) -> str:
    return ENVIRONMENT.observe(state).messages[-1]["content"]


def test_the_prompt_shows_the_stack_and_passages_only_of_searches_on_it() -> None:
    plan, lek = "<plan> the country of the lek; its capital </plan>", "<search> lek river </search>"
    back, money = "<backtrack> a river; name the money </backtrack>", "<search> lek money of Albania </search>"
    summary = "<summary> The country is Albania. </summary>"
    path = path_of(plan, lek, back, money, summary, "<search> capital Tirana </search>")
    assert "Lek (river): The Lek is a river" in prompt(path[2])
    assert prompt(path[2]).endswith("Keep a fact, go back, sum up or answer.")
    assert prompt(path[3]) == f"Question: {ASKED}\n{plan}\n{back}\nSearch or answer."
    assert "Albanian lek: The lek is the money of Albania." in prompt(path[4])
    assert prompt(path[5]) == f"Question: {ASKED}\n{plan}\n{summary}\nSearch, go back or answer."
    assert prompt(path[6]).count("Passages:") == 1
    assert len(path[6].steps) == 6, "the trace keeps all"
    assert path[6].before.steps == path[5].steps
    again = path_of(lek, back, lek)
    assert "Lek (river)" in prompt(again[3]), "a passage that is found again after a step back is shown again"


def test_a_prompt_that_is_too_long_may_only_be_summed_up_or_answered() -> None:
    environment = replace(ENVIRONMENT, chars=700)
    *_, reading = path_of("<search> lek river </search>")
    assert environment.observe(reading).allowed == ("reasoning", "backtrack", "summary", "answer")
    *_, long = path_of(
        "<search> lek river </search>", f"<reasoning> {' '.join(f'river {place}' for place in range(30))}</reasoning>"
    )
    assert environment.observe(long).allowed == ("summary", "answer")
    assert environment.observe(long).messages[-1]["content"].endswith("Sum up or answer.")
    with pytest.raises(StepFormatError, match="wrong_action|may stand"):
        environment.parse(long, Completion("<search> more </search>", "stop"))
    folded = asyncio.run(environment.apply(long, step("summary", "a river")))
    assert environment.observe(folded).allowed == ("search", "backtrack", "answer")
    base = Environment(load_profile("transcript"), WORLD, 1, 20, chars=1)
    assert base.observe(base.start(ASKED)).allowed == ("answer",)
    asked = asyncio.run(base.apply(base.start(ASKED), Step("query", "q", "lek")))
    assert base.observe(asked).allowed == ("evidence",), "nothing else may follow a query"


def test_steps_back_from_one_state_are_twins_whatever_their_notes() -> None:
    def script(text: str, draw: int) -> str:
        last = text.rsplit("\n", 1)[-1]
        if last.startswith("Keep a fact"):
            return f"<backtrack> note {draw} </backtrack>"
        answers = draw % 4 == 0 or "search" not in last
        return "<answer> Tirana </answer>" if answers else f"<search> lek {draw} </search>"

    config = load_config(GenerateConfig, None, {"search.rollouts": 6, "search.children": 4, "episode.depth": 9})
    environment = replace(ENVIRONMENT, depth=9)
    tree = grown(make_searcher(environment, ScriptedPolicy(script), None, config), Question("q", ASKED, ("Tirana",)))
    backs = [node.parent for node in tree.nodes if node.action == "backtrack"]
    assert backs
    assert len(backs) == len(set(backs))


def test_it_is_played_over_http_by_search_and_inference(world_index: Path, tmp_path: Path) -> None:
    def script(text: str, draw: int) -> str:
        last = text.rsplit("\n", 1)[-1]
        if last == "Plan, search or answer.":
            return "<plan> the money; its country </plan>"
        if last.startswith("Keep a fact"):
            return ("<backtrack> not it </backtrack>", "<summary> The lek is Albania's. </summary>",
                    "<reasoning> Prices are in the lek. </reasoning>")[draw % 3]  # fmt: skip
        if last.startswith("Search") and "summary" not in text and draw % 5:
            return "<search> currency of Albania </search>"
        return "<answer> lek </answer>"

    file = tmp_path / "questions.jsonl"
    write_records(file, [Question(f"q{i}", f"Which money has Albania? ({i})", ("lek",)) for i in range(6)])
    more = ("--prompt.profile", "stack", "--episode.depth", "12")
    with serve(chat_reply(script)) as endpoint:
        assert main(["generate", *options(endpoint, file, world_index, tmp_path / "t", *more)]) == 0
        assert main(["infer", *options(endpoint, file, world_index, tmp_path / "p", *more)]) == 0
        sent = {json.dumps(request["messages"]) for request in endpoint.requests}
    played = list(read_records(tmp_path / "p/predictions.jsonl", Prediction))
    assert {one.prediction for one in played} == {"lek"}
    assert main(["pairs", "--trees", str(tmp_path / "t"), "--pairs.margin", "0.01", *BY_ROLLOUTS]) == 0
    rows: list[Any] = [json.loads(line) for line in (tmp_path / "t/pairs/sft.train.jsonl").read_text().splitlines()]
    assert rows
    assert all(json.dumps(row["prompt"]) in sent for row in rows)


def test_prompts_of_their_own_for_every_turn_cannot_forget(tmp_path: Path) -> None:
    words = {"grammar": "stack", "passage": "{text}", "turns": {"start": {"system": "s", "user": "u"}}}
    (tmp_path / "mine.yaml").write_text(json.dumps(words))
    with pytest.raises(ConfigError, match="takes steps off the stack"):
        load_profile(str(tmp_path / "mine.yaml"))
