"""The environment: prompts as they are sent, passages as data, episodes from question to answer. The grammar: what is
accepted, what is refused and why, and that constraints and parser speak one language.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from apps.commands import main
from steprag.agent.degenerate import degenerate
from steprag.agent.environment import Environment
from steprag.agent.grammar import FAILURES, START, Grammar
from steprag.agent.grammars import TRANSCRIPT
from steprag.agent.inert import CONTROL_TOKEN, neutralise
from steprag.agent.profiles import PROFILES, load_profile
from steprag.errors import ConfigError, StepFormatError
from steprag.records.jsonl import read_records, write_records
from steprag.types import Completion, Message, Prediction, Question, State, Step, Usage
from tests import fakes
from tests.fakes import QUESTION, WORLD, DictRetriever, ScriptedPolicy, answer, by_turn, evidence, query
from tests.indexing import hybrid_index


def environment(depth: int = 7) -> Environment:
    return Environment(load_profile("transcript"), DictRetriever(), 2, depth)


SCRIPT = [query("Tirana capital"), evidence("Tirana is the capital of Albania."), query("Albania prices"),
          evidence("Prices in Albania are quoted in the lek."), answer("lek")]  # fmt: skip


def test_the_prompt_of_an_evidence_step_is_exactly_this() -> None:
    world = environment()
    observation = world.observe(fakes.states(world, *SCRIPT[:1])[1])
    assert observation.allowed == ("evidence",)
    assert [message["role"] for message in observation.messages] == ["system", "user"]
    assert observation.messages[1]["content"] == (
        f"Question: {QUESTION}\n"
        "I need one fact. So the next query is <query> Tirana capital </query>\n"
        "Passages:\n"
        "Tirana: Tirana is the capital of Albania. It has 418,495 inhabitants.\n"
        "Lima: Lima is the capital of Peru.\n"
        "Read the passages."
    )


def test_root_paths_are_shared_prefixes() -> None:
    """Apart from passages and the tail, each prompt continues the one before: what prefix caches live on."""
    world = environment()
    path = fakes.states(world, *SCRIPT)[:-1]
    prompts = [world.observe(state).messages[1]["content"] for state in path]
    for before, state, after in zip(prompts, path, prompts[1:], strict=False):
        tail = before.rsplit("\n", 1)[0].split("\nPassages:\n")[0]
        assert after.startswith(tail)
        assert (not state.passages) == ("Passages:" not in before)
    assert len({world.observe(state).messages[0]["content"] for state in path}) == 1


def test_an_episode_runs_to_its_answer() -> None:
    episode = fakes.played(environment(), ScriptedPolicy(fakes.in_turn(*SCRIPT)))
    assert (episode.finish, episode.prediction) == ("answer", "lek")
    assert [step.action for step in episode.state.steps] == ["query", "evidence", "query", "evidence", "answer"]
    assert episode.usage.calls == 5
    assert [[passage.id for passage in found] for found in episode.retrieved] == [["0", "2"], ["1", "0"]]


@pytest.mark.parametrize(("profile", "script", "retrieved"), [
    ("transcript", [query("a"), evidence("None"), query("b"), evidence("None"), answer("lek")], ((), ())),
    ("transcript", [answer("lek")], ()),
    ("rag", ["<answer> lek </answer>"], ((),)),
    ("direct", ["<answer> lek </answer>"], ()),
])  # fmt: skip
def test_a_search_that_finds_nothing_is_a_search(
    profile: str, script: list[str], retrieved: tuple[tuple[()], ...]
) -> None:
    world = Environment(load_profile(profile), DictRetriever(()), 2, 7)
    assert fakes.played(world, ScriptedPolicy(fakes.in_turn(*script))).retrieved == retrieved


def test_a_run_counts_searches_that_found_nothing(encoder: Path, tmp_path: Path) -> None:
    questions, index = tmp_path / "questions.jsonl", hybrid_index(tmp_path, WORLD, encoder)
    write_records(questions, [Question("q", QUESTION, ("lek",), {"supporting_facts": {"title": ["Tirana"]}})])
    with fakes.serve(fakes.chat_reply(by_turn(query("zzyzx"), evidence("None"), answer("sol")))) as endpoint:
        more = ("--episode.depth", "3", "--retriever.mode", "sparse")
        assert main(["infer", *fakes.options(endpoint, questions, index, tmp_path / "run", *more)]) == 0
    (row,) = read_records(tmp_path / "run/predictions.jsonl", Prediction)
    assert row.passages == ((),)
    scores = json.loads((tmp_path / "run/metrics.json").read_text())
    assert (scores["searches"], scores["gold_recall"]) == (1.0, 0.0)


def test_one_of_several_steps_is_chosen_at_each_turn() -> None:
    """Broken completions are no choice, equal ones are one, and where one step is left nothing is asked."""
    texts = [query("Peru"), query("Peru"), "Who knows?", query("Tirana capital")]
    policy = ScriptedPolicy(by_turn(lambda prompt, draw: texts[draw % 4], evidence("None"), answer("lek")))
    asked: list[tuple[str, ...]] = []

    async def last(messages: tuple[Message, ...], steps: tuple[Step, ...]) -> int:
        assert messages == policy.prompts[-1]
        asked.append(tuple(step.content for step in steps))
        return len(steps) - 1

    episode = fakes.played(environment(depth=3), policy, candidates=8, choose=last)
    assert [sorted(contents) for contents in asked] == [["Peru", "Tirana capital"]]
    assert [step.content for step in episode.state.steps] == [asked[0][-1], "None", "lek"]
    assert episode.usage == Usage(3, episode.usage.prompt_tokens, 24)


@pytest.mark.parametrize("candidates", [1, 4])
def test_an_episode_ends_where_every_candidate_is_broken(candidates: int) -> None:
    broken = ["Who knows?", "", query("a") + query("b")]
    policy = ScriptedPolicy(lambda prompt, draw: broken[draw % 3])
    asked = (Message(role="user", content=""),)
    first = asyncio.run(policy.sample(asked, (), n=candidates, seed=5)).completions[0].text
    episode = fakes.played(environment(), policy, seed=5, candidates=candidates)
    assert (episode.refused, episode.prediction, len(episode.state.steps)) == (first, None, 0)
    assert episode.finish == {"": "empty", broken[0]: "no_action"}.get(first, "several_actions")


def test_braces_in_a_question_are_not_templates() -> None:
    assert "Question: what is {text}?" in environment().observe(State("what is {text}?")).messages[1]["content"]


def test_examples_and_every_word_count_in_the_hash(tmp_path: Path) -> None:
    plain, shown = load_profile("transcript"), load_profile("transcript", 2)
    assert plain.hash != shown.hash
    assert "worked examples" in shown.render(State("q"), ("query", "answer"))[0]["content"]
    words = yaml.safe_load((PROFILES / "transcript.yaml").read_text())
    words["tails"]["answer"] += "!"
    changed = tmp_path / "other.yaml"
    changed.write_text(yaml.safe_dump(words))
    assert load_profile(str(changed)).hash != plain.hash


@pytest.mark.parametrize(("name", "examples", "message"), [
    ("transcrpt", 0, "known: .*transcript"),
    ("transcript", 9, "has 2"), ("é" * 200, 0, "known: .*transcript"), ("a\0b", 0, "known: .*transcript"),
])  # fmt: skip
def test_a_wrong_profile_is_a_one_line_error(name: str, examples: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_profile(name, examples)


ANY = ("query", "evidence", "answer")


def parse(text: str, allowed: tuple[str, ...] = ANY, finish: str = "stop") -> Step:
    return TRANSCRIPT.parse(Completion(text, finish), allowed)


def test_a_step_keeps_its_text_and_gives_its_content() -> None:
    text = query("capital of Peru")
    assert parse(text) == Step("query", text, "capital of Peru")
    assert parse(evidence("None")).content == "None"
    assert parse("So the answer is <answer>J. K. Rowling</answer>\n").content == "J. K. Rowling"


@pytest.mark.parametrize(("text", "finish", "reason"), [
    (query("capital of"), "length", "truncated"),
    ("  \n", "stop", "empty"),
    ("I do not know.", "stop", "no_action"),
    ("So the answer is <answer>Lima", "stop", "no_action"),
    (query("a") + " " + answer("b"), "stop", "several_actions"),
    ("<query> a <query> b </query>", "stop", "several_actions"),
    ("</answer><answer><query>x</answer>", "stop", "several_actions"),
    ("<answer>" * 100_000, "stop", "no_action"),  # in linear time: to search them for a complete one took minutes
    ("I think <answer>Lima</answer>", "stop", "no_lead"),
    (answer("Lima") + " or Quito", "stop", "trailing_text"),
    ("So the answer is <answer>  </answer>", "stop", "empty_content"),
    (evidence("Lima is in Peru."), "stop", "wrong_action"),
    (answer("Lima <|im_end|>"), "stop", "control_token"),
    (f"[China]firstsum … LEGATOLEGATOsystemLEGATOuser {answer('China')}", "stop", "degenerate"),
    (f"firehosefirehosefirehosefirehose {answer('China')}", "stop", "degenerate"),
    (f"user … system … user … system {answer('China')}", "stop", "degenerate"),
    (query("the symbol of " * 6), "stop", "degenerate"),
    (answer("the " * 10), "stop", "degenerate"),
    (answer("a" * 40), "stop", "degenerate"),
])  # fmt: skip
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


PLAIN = st.characters(blacklist_characters="<>\n", blacklist_categories=("Cs", "Cc"))


@given(st.text(PLAIN, min_size=1, max_size=60))
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


@pytest.mark.parametrize(("allowed", "root", "rules", "first"), [
    (("evidence",), "evidence", "evidence",
     'evidence ::= "Based on the query, the relevant evidence is <evidence>" " "?'),
    (("query", "answer"), '(thought " ")? (query | answer)', "query answer thought",
     'query ::= "So the next query is <query>"'),
])  # fmt: skip
def test_gbnf_has_a_rule_an_action_and_one_thought(allowed: tuple[str, ...], root: str, rules: str, first: str) -> None:
    lines = TRANSCRIPT.gbnf(allowed).splitlines()
    assert lines[0] == f"root ::= {root}"
    assert [line.split()[0] for line in lines[1:]] == rules.split()
    assert lines[1].startswith(first)


@given(st.text(alphabet=st.sampled_from("<>/|｜▁[]! abcINSTanswerquery_im_ends"), max_size=60))
def test_neutralised_text_holds_no_tag_and_no_control_token(text: str) -> None:
    safe = neutralise(text)
    assert not CONTROL_TOKEN.search(safe)
    assert not re.search(r"</?(query|evidence|answer)>", safe)
    assert neutralise(safe) == safe


@pytest.mark.parametrize("text", [
    "| yes | no | yes | no | yes | no | yes | no |", "0, 0, 0, 0, 0, 0, 0, 0, 0, 0", "1,000,000,000,000", "-----" * 20,
    "GATTACAGATTACAGATTACA", "ha ha ha ha", "Bora Bora", "system, user and assistant", "- [ ] done\n" * 9,
    "Buffalo buffalo Buffalo buffalo buffalo buffalo Buffalo buffalo",
])  # fmt: skip
def test_honest_repetition_is_no_degenerate_text(text: str) -> None:
    assert degenerate(text) is None


def test_neutralising_leaves_plain_text_alone() -> None:
    assert neutralise("3 < 4 and 5 > 4; [1] a<b? 2<3") == "3 < 4 and 5 > 4; [1] a‹b? 2<3"
