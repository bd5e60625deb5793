"""The grammar: what is accepted, what is refused and why, and that constraints and parser speak one language."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steprag.agent.grammar import FAILURES, START, Grammar
from steprag.agent.grammars import TRANSCRIPT
from steprag.agent.inert import CONTROL_TOKEN, neutralise
from steprag.errors import StepFormatError
from steprag.types import Completion, Step
from tests.fakes import answer, evidence, query

ANY = ("query", "evidence", "answer")


def parse(text: str, allowed: tuple[str, ...] = ANY, finish: str = "stop") -> Step:
    return TRANSCRIPT.parse(Completion(text, finish), allowed)


def test_a_step_keeps_its_text_and_gives_its_content() -> None:
    text = query("capital of Peru")
    assert parse(text) == Step("query", text, "capital of Peru")
    assert parse(evidence("None")).content == "None"
    assert parse("So the answer is <answer>J. K. Rowling</answer>\n").content == "J. K. Rowling"


@pytest.mark.parametrize(
    ("text", "finish", "reason"),
    [
        (query("capital of"), "length", "truncated"),
        ("  \n", "stop", "empty"),
        ("I do not know.", "stop", "no_action"),
        ("So the answer is <answer>Lima", "stop", "no_action"),
        (query("a") + " " + answer("b"), "stop", "several_actions"),
        ("<query> a <query> b </query>", "stop", "several_actions"),
        ("I think <answer>Lima</answer>", "stop", "no_lead"),
        (answer("Lima") + " or Quito", "stop", "trailing_text"),
        ("So the answer is <answer>  </answer>", "stop", "empty_content"),
        (evidence("Lima is in Peru."), "stop", "wrong_action"),
        (answer("Lima <|im_end|>"), "stop", "control_token"),
    ],
)
def test_refused_completions_carry_their_reason(text: str, finish: str, reason: str) -> None:
    with pytest.raises(StepFormatError) as caught:
        parse(text, ("query", "answer"), finish)
    assert caught.value.reason == reason
    assert reason in FAILURES


@given(st.text(alphabet=st.sampled_from("abc <>/\n") | st.sampled_from(list("querylansw|im_")), max_size=80))
def test_any_text_parses_or_is_refused_with_a_known_reason(text: str) -> None:
    try:
        step = parse("So the answer is <answer>" + text)
    except StepFormatError as error:
        assert error.reason in FAILURES
    else:
        assert step.content == step.content.strip() != ""


@pytest.mark.parametrize(("depth", "steps", "allowed"), [
    (7, (), ("query", "answer")),
    (3, (), ("query", "answer")),
    (2, (), ("answer",)),
    (7, ("query",), ("evidence",)),
    (7, ("query", "evidence"), ("query", "answer")),
    (4, ("query", "evidence"), ("answer",)),
    (1, ("query", "evidence"), ("answer",)),
])  # fmt: skip
def test_only_what_can_still_end_within_the_depth_is_allowed(
    depth: int, steps: tuple[str, ...], allowed: tuple[str, ...]
) -> None:
    taken = tuple(Step(action, "", "x") for action in steps)
    assert TRANSCRIPT.allowed(taken, depth) == allowed


def test_a_grammar_without_an_end_is_refused() -> None:
    endless = Grammar(
        "endless", TRANSCRIPT.actions[:2], {START: ("query",), "query": ("evidence",), "evidence": ("query",)}
    )
    with pytest.raises(ValueError, match="no way to an end"):
        endless.allowed((), 5)


@given(
    st.text(
        alphabet=st.characters(blacklist_characters="<>\n", blacklist_categories=("Cs", "Cc")), min_size=1, max_size=60
    )
)
def test_what_the_regular_expression_admits_the_parser_accepts(content: str) -> None:
    text = query(content.strip() or "x")
    if re.fullmatch(TRANSCRIPT.regex(("query", "answer")), text):
        assert parse(text, ("query", "answer")).action == "query"


def test_the_regular_expression_forces_allowed_actions_only() -> None:
    pattern = TRANSCRIPT.regex(("query", "answer"))
    assert re.fullmatch(pattern, query("capital of Peru"))
    assert re.fullmatch(pattern, answer("Lima"))
    assert re.fullmatch(pattern, "So the answer is <answer> Lima </answer>"), "the parser takes it too"
    assert not re.fullmatch(pattern, evidence("Lima"))
    assert not re.fullmatch(pattern, query("a <b> c"))


def test_gbnf_has_one_rule_an_allowed_action() -> None:
    lines = TRANSCRIPT.gbnf(("evidence",)).splitlines()
    assert lines[0] == "root ::= evidence"
    assert lines[1].startswith('evidence ::= "Based on the query, the relevant evidence is <evidence>" " "?')


def test_gbnf_has_one_thought_whatever_may_follow_it() -> None:
    lines = TRANSCRIPT.gbnf(("query", "answer")).splitlines()
    assert lines[0] == 'root ::= (thought " ")? (query | answer)'
    assert [line.split()[0] for line in lines[1:]] == ["query", "answer", "thought"]
    assert lines[1].startswith('query ::= "So the next query is <query>"')


@given(st.text(alphabet=st.sampled_from("<>/|｜▁[]! abcINSTanswerquery_im_ends"), max_size=60))
def test_neutralised_text_holds_no_tag_and_no_control_token(text: str) -> None:
    safe = neutralise(text)
    assert not CONTROL_TOKEN.search(safe)
    assert not re.search(r"</?(query|evidence|answer)>", safe)
    assert neutralise(safe) == safe


def test_neutralising_leaves_plain_text_alone() -> None:
    assert neutralise("3 < 4 and 5 > 4; [1] a<b? 2<3") == "3 < 4 and 5 > 4; [1] a‹b? 2<3"


def test_many_tags_that_stay_open_are_refused_in_linear_time() -> None:
    """Searching them for a complete one took a minute for 160 KB."""
    with pytest.raises(StepFormatError) as caught:
        TRANSCRIPT.parse(Completion("<answer>" * 100_000, "stop"), ("answer",))
    assert caught.value.reason == "no_action"
    with pytest.raises(StepFormatError) as caught:
        TRANSCRIPT.parse(Completion("</answer><answer><query>x</answer>", "stop"), ("answer",))
    assert caught.value.reason == "several_actions"
