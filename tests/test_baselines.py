"""Baselines: each is a prompt profile and a grammar, played by the one agent. What their prompts show, and runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apps.commands import main
from steprag.agent.environment import Environment
from steprag.agent.profiles import load_profile
from steprag.records.jsonl import read_records, write_records
from steprag.runs.run import read_manifest
from steprag.types import Completion, Episode, Message, Passage, Prediction, Question, State, Step
from tests import fakes
from tests.fakes import QUESTION, DictRetriever, Endpoint, Script, ScriptedPolicy, chat_reply, options, serve

BASELINES = ("direct", "cot", "rag", "ircot", "search-r1")
THOUGHT = "<think>\nI need the country first.\n</think>\n\n"
SAID = "So the answer is <answer> lek </answer>"


def played(name: str, *script: str, depth: int = 7) -> tuple[Episode, ScriptedPolicy, DictRetriever]:
    """An episode of scripted completions, what the policy saw, and what was searched."""
    policy, shelf = ScriptedPolicy(fakes.in_turn(*script)), DictRetriever()
    return fakes.played(Environment(load_profile(name), shelf, 2, depth), policy), policy, shelf


def shown(messages: tuple[Message, ...]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in messages]


def test_the_one_shot_rag_prompt_holds_what_the_question_found() -> None:
    episode, policy, shelf = played("rag", "<answer> lek </answer>")
    assert shelf.searched == [QUESTION], "the question is searched, and the model is not asked for a query"
    assert (episode.usage.calls, len(episode.state.steps)) == (1, 1)
    assert [[passage.id for passage in found] for found in episode.retrieved] == [["1", "0"]]


def test_a_passage_without_a_title_is_its_text_alone() -> None:
    found = (Passage("1", "", "Basalt is hard."), Passage("2", "Iron", "So is iron."))
    prompt = load_profile("rag").render(State("Which?", (), found), ("answer",))[-1]["content"]
    assert "Passages:\nBasalt is hard.\nIron: So is iron.\n" in prompt


def test_the_ircot_prompt_keeps_every_passage_where_it_was_first_found() -> None:
    sentences = ("<reason> Tirana is the capital of Albania. </reason>", "<reason> Albania prices in Albania </reason>")
    episode, policy, shelf = played("ircot", *sentences, SAID, depth=3)
    assert shelf.searched == [QUESTION, "Tirana is the capital of Albania.", "Albania prices in Albania"]
    assert episode.prediction == "lek"
    assert policy.prompts[2][1]["content"].endswith(
        f"\n{sentences[0]}\nPassages:\nLima: Lima is the capital of Peru.\n{sentences[1]}\nAnswer now."
    ), "what was found before stands above"
    assert policy.prompts[1][1]["content"].endswith("\nWrite the next sentence, or answer.")


def test_search_r1_is_shown_what_it_was_trained_on() -> None:
    """The question's wording and the blocks between the steps, as its published scripts write them."""
    first, second = f"{THOUGHT}<search> Tirana capital </search>", f"{THOUGHT}<search> Albania prices </search>"
    episode, policy, shelf = played("search-r1", first, second, f"{THOUGHT}<answer> lek </answer>")
    assert shelf.searched == ["Tirana capital", "Albania prices"]
    assert episode.prediction == "lek"
    asked = (
        "Answer the given question. You must conduct reasoning inside <think> and </think> first every time you get "
        "new information. After reasoning, if you find you lack some knowledge, you can call a search engine by "
        "<search> query </search> and it will return the top searched results between <information> and "
        "</information>. You can search as many times as your want. If you find no further external knowledge needed, "
        "you can directly provide the answer inside <answer> and </answer>, without detailed illustrations. For "
        f"example, <answer> Beijing </answer>. Question: {QUESTION}\n"
    )
    read = (
        f"{first}\n\n<information>"
        'Doc 1(Title: "Tirana") Tirana is the capital of Albania. It has 418,495 inhabitants.\n'
        'Doc 2(Title: "Lima") Lima is the capital of Peru.</information>\n\n'
    )
    assert shown(policy.prompts[0]) == [("user", asked)]
    assert shown(policy.prompts[1]) == [("user", asked), ("assistant", read)]
    assert policy.prompts[2][1]["content"].startswith(f"{read}{second}\n\n<information>Doc 1(Title: ")


def test_search_r1_asks_with_one_question_mark() -> None:
    profile = load_profile("search-r1")
    for question in ("who wrote it", "who wrote it?", "who wrote it? "):
        (message,) = profile.render(State(question), ("search", "answer"))
        assert message["content"].endswith(" Question: who wrote it?\n")


@pytest.mark.parametrize("name", ["transcript", "direct", "cot", "rag", "ircot"])
def test_the_examples_follow_the_grammar(name: str) -> None:
    grammar, examples = load_profile(name).grammar, load_profile(name).words.examples
    system, _ = load_profile(name, len(examples)).render(State("q"), ("answer",))
    for example in examples:
        assert example.strip() in system["content"]
        steps: tuple[Step, ...] = ()
        for line in filter(re.compile("<(answer|reason|query|evidence)>").search, example.strip().split("\n")):
            steps += (grammar.parse(Completion(line, "stop"), grammar.allowed(steps, 7)),)
        assert steps[-1].action == "answer"


@pytest.mark.parametrize(("name", "step"), [("ircot", "reason"), ("search-r1", "search")])
def test_the_last_step_can_only_be_an_answer(name: str, step: str) -> None:
    grammar = load_profile(name).grammar
    taken = Step(step, "", "x")
    assert grammar.allowed((taken,), 3) == (step, "answer")
    assert grammar.allowed((taken, taken), 3) == ("answer",)
    assert grammar.allowed((), 1) == ("answer",)


@pytest.mark.parametrize(("name", "texts"), [
    ("direct", ["<answer> lek </answer>", "<answer>lek</answer>", "<answer> lek\n</answer>"]),
    ("cot", [f"Tirana is in Albania. {SAID}"]),
    ("ircot", ["<reason> Tirana is in Albania. </reason>", SAID]),
    ("search-r1", [f"{THOUGHT}<search> Tirana </search>", "<think>Known.</think>\n<answer>lek</answer>"]),
    ("stack", ["<plan> a; b </plan>", "<backtrack> a river </backtrack>", "<summary> a river </summary>"]),
])  # fmt: skip
def test_constraints_admit_what_the_parser_takes(name: str, texts: list[str]) -> None:
    grammar = load_profile(name).grammar
    for text in texts:
        allowed = tuple(one.name for one in grammar.actions if one.opening in text)
        assert re.fullmatch(grammar.regex(allowed), text)
        assert grammar.parse(Completion(text, "stop"), allowed).text == text
        assert not re.fullmatch(grammar.regex(allowed), text + " and more")
        others = tuple(one.name for one in grammar.actions if one.name not in allowed)
        assert not others or not re.fullmatch(grammar.regex(others), text)


@pytest.mark.parametrize("name", ["direct", "cot", "rag", "ircot"])
def test_a_constrained_answer_of_a_baseline_is_short(name: str) -> None:
    """Models that do not close the tag would fill it with whole paragraphs; the parser takes any length."""
    grammar = load_profile(name).grammar
    thought = "Well. " if grammar.action("answer").thought else ""
    for words, fits in (("6 " * 50 + "x", True), ("6 " * 51 + "x", False)):
        text = f"{thought}{grammar.action('answer').head} {words}</answer>"
        assert bool(re.fullmatch(grammar.regex(("answer",)), text)) == fits
        assert grammar.parse(Completion(text, "stop"), ("answer",)).content == words


def stopping(script: Script) -> Callable[[dict[str, Any]], tuple[int, object]]:
    """An endpoint that ends its text before the first stop string of the request, as the OpenAI API says."""

    def reply(request: dict[str, Any]) -> tuple[int, object]:
        def cut(prompt: str, draw: int) -> str:
            text = script(prompt, draw)
            return text[: min(place for stop in request.get("stop", []) if (place := text.find(stop)) >= 0)]

        return chat_reply(cut)(request)

    return reply


def writer(prompt: str, draw: int) -> str:
    """A model that follows each baseline's prompt, and never knows when to stop."""
    on = "\n\nQuestion: and which one is used in Peru? <search>"
    if "Doc 1(Title: " in prompt:
        return f"{THOUGHT}<answer> lek </answer>{on}"
    if "conduct reasoning" in prompt:
        return f"{THOUGHT}<search> Albania prices </search><information> made up </information>{on}"
    if "or answer" in prompt and "</reason>" not in prompt:
        return f"<reason> Prices in Albania. </reason>{on}"
    return f"It is the lek. {SAID}{on}"


def asked(folder: Path, count: int = 1) -> Path:
    write_records(folder / "q.jsonl", [Question(f"q{i}", f"{QUESTION} ({i})", ("lek",)) for i in range(count)])
    return folder / "q.jsonl"


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_runs_end_to_end(name: str, world_index: Path, tmp_path: Path) -> None:
    questions = asked(tmp_path, 3)
    searches = {"direct": 0, "cot": 0, "rag": 1, "ircot": 2, "search-r1": 1}[name]
    calls = {"ircot": 2, "search-r1": 2}.get(name, 1)
    with serve(stopping(writer)) as endpoint:
        out = tmp_path / "run"
        more = ("--prompt.profile", name, "--episode.depth", "5")
        assert main(["infer", *options(endpoint, questions, world_index, out, *more)]) == 0
        assert len(endpoint.requests) == 3 * calls
        assert all(request["stop"][-1] == "</answer>" for request in endpoint.requests)
    scores = json.loads((out / "metrics.json").read_text())
    assert (scores["em"], scores["finish"], scores["searches"]) == (1.0, {"answer": 3}, searches)
    rows = list(read_records(out / "predictions.jsonl", Prediction))
    assert all(row.steps[-1].text.endswith("lek </answer>") for row in rows), "the tag that was cut off is put back"
    assert [len(found) for found in rows[0].passages] == [3] * searches
    identity = read_manifest(out)["identity"]
    assert identity["prompt"] == {"profile": name, "hash": load_profile(name).hash}
    assert scores["identity"] == identity, "a figure says what it was made with"


@pytest.mark.parametrize(("engine", "told"), [("vllm", True), ("sglang", True), ("llamacpp", False), ("openai", False)])
def test_the_models_turn_goes_on_where_an_engine_has_to_be_told(
    engine: str, told: bool, world_index: Path, tmp_path: Path
) -> None:
    with serve(stopping(writer)) as endpoint:
        more = ("--prompt.profile", "search-r1", "--policy.engine", engine)
        assert main(["infer", *options(endpoint, asked(tmp_path), world_index, tmp_path / "run", *more)]) == 0
        keys = ("continue_final_message", "add_generation_prompt")
        first, second = ({key: request[key] for key in keys if key in request} for request in endpoint.requests)
    assert first == {}, "the first turn begins a message"
    assert second == ({"continue_final_message": True, "add_generation_prompt": False} if told else {})


def test_an_engine_may_repeat_the_message_that_it_writes_on(world_index: Path, tmp_path: Path) -> None:
    """llama.cpp does; what it repeats is no part of the step."""
    new = stopping(writer)

    def reply(request: dict[str, Any]) -> tuple[int, Any]:
        status, body = new(request)
        assert isinstance(body, dict)
        last = request["messages"][-1]
        begun = last["content"] if last["role"] == "assistant" else ""
        body["choices"][0]["message"]["content"] = begun + body["choices"][0]["message"]["content"]
        return status, body

    with serve(reply) as endpoint:
        command = options(endpoint, asked(tmp_path), world_index, tmp_path / "run", "--prompt.profile", "search-r1")
        assert main(["infer", *command]) == 0
    (row,) = read_records(tmp_path / "run/predictions.jsonl", Prediction)
    assert [step.text for step in row.steps] == [
        f"{THOUGHT}<search> Albania prices </search>", f"{THOUGHT}<answer> lek </answer>"]  # fmt: skip


def test_trees_are_not_grown_from_a_profile_that_searches_first(
    world_index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = Endpoint("http://127.0.0.1:9/v1", [])
    command = options(nowhere, asked(tmp_path), world_index, tmp_path / "t", "--prompt.profile", "rag")
    assert main(["generate", *command]) == 2
    assert "profile rag searches before the first step" in capsys.readouterr().err
