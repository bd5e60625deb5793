"""Which answer is taken. Best-of-N: the episode that is believed, of several a question. TC-RAG's state value: answers
that the policy is not certain of are held back while it can go on.
"""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.commands import main
from inference.answer import answer_one
from inference.best_of import by_critic, by_vote, play
from inference.state_value import CertainPolicy
from steprag.agent.environment import Environment
from steprag.agent.profiles import load_profile
from steprag.agent.rollout import episode_of, rollout
from steprag.batch.journal import JOURNAL
from steprag.records.jsonl import read_records, write_records
from steprag.types import Episode, Message, Prediction, Question, Sample, State, Step, Usage
from tests.fakes import (
    QUESTION,
    BelievingPolicy,
    DictRetriever,
    Endpoint,
    ScriptedPolicy,
    answer,
    believing_reply,
    by_turn,
    chat_reply,
    evidence,
    in_turn,
    options,
    query,
    serve,
)


def said(*answers: str | None) -> list[Episode]:
    return [
        Episode(State(QUESTION, (Step("answer", answer(text), text),)), "answer", Usage(1))
        if text is not None
        else Episode(State(QUESTION), "no_action", Usage(1))
        for text in answers
    ]


@pytest.mark.parametrize(("answers", "chosen"), [
    (("sol", "lek", "The Lek."), 1),
    (("sol", "lek", "leks"), 0),
    (("lek", "sol", "sol", "lek"), 0),
    ((None, None, "lek"), 2),
    ((None, "sol", None, "lek", None), 1),
    ((None, None), 0),
])  # fmt: skip
def test_the_most_frequent_normalised_answer_wins_and_of_equals_the_first(
    answers: tuple[str | None, ...], chosen: int
) -> None:
    assert by_vote(said(*answers)) == chosen


def world() -> Environment:
    return Environment(load_profile("transcript"), DictRetriever(), 2, 5)


def test_a_critic_scores_the_answer_step_with_the_prompt_it_was_written_to() -> None:
    policy = ScriptedPolicy()
    episodes = asyncio.run(play(world(), policy, QUESTION, seed=0, times=12))
    sent = {json.dumps(prompt) for prompt in policy.prompts}
    answered = {place for place, one in enumerate(episodes) if one.prediction is not None}
    assert 2 < len(answered) < 12
    seen: list[str] = []

    def longest(messages: tuple[Message, ...], completion: str) -> float:
        assert json.dumps(messages) in sent
        seen.append(completion)
        return float(len(messages[1]["content"]))

    chosen = by_critic(episodes, world(), longest)
    assert seen == [episodes[place].state.steps[-1].text for place in sorted(answered)]
    assert chosen in answered
    assert len(episodes[chosen].state.steps) == max(len(episodes[place].state.steps) for place in answered)
    assert by_critic(said(None, None), world(), longest) == 0


def test_the_critics_word_stands_against_the_vote() -> None:
    def sol(messages: tuple[Message, ...], completion: str) -> float:
        return float("sol" in completion)

    question = Question("q", QUESTION, ("lek",))
    policy = ScriptedPolicy(lambda prompt, draw: answer("sol" if draw % 4 == 0 else "lek"))
    voted = asyncio.run(answer_one(question, 0, world(), policy, best_of=12))
    judged = asyncio.run(answer_one(question, 0, world(), policy, best_of=12, critic=sol))
    assert isinstance(voted, Prediction)
    assert isinstance(judged, Prediction)
    assert (voted.prediction, judged.prediction) == ("lek", "sol")
    assert voted.answers == judged.answers


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serve(chat_reply()) as running:
        yield running


def command(endpoint: Endpoint, index: Path, out: Path, *more: str) -> list[str]:
    questions = out.parent / "questions.jsonl"
    write_records(questions, [Question(f"q{i}", f"{QUESTION} ({i})", ("lek",)) for i in range(4)])
    return ["infer", *options(endpoint, questions, index, out, *more)]


SAMPLED = ("--best_of", "8", "--policy.temperature", "0.8")


def test_every_episode_is_sampled_journalled_and_paid_and_the_first_is_the_one_that_is_played_alone(
    endpoint: Endpoint, world_index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(command(endpoint, world_index, out, *SAMPLED)) == 0
    rows, asked = list(read_records(out / "predictions.jsonl", Prediction)), len(endpoint.requests)
    assert sum(row.usage.calls for row in rows) == asked
    with sqlite3.connect(out / JOURNAL) as db:
        assert db.execute("SELECT COUNT(*) FROM calls").fetchone()[0] == asked
    for row in rows:
        answers = row.answers
        assert len(answers) == 8
        assert len(set(answers)) > 1, "episodes with other seeds differ"
        assert row.prediction == answers[row.chosen]
        votes = Counter(one for one in answers if one is not None)
        assert votes[row.prediction] == max(votes.values())
        assert row.usage.calls >= 8
    assert main(command(endpoint, world_index, out, *SAMPLED, "--best_of", "4")) == 2
    assert "best_of = 8, and is now asked for 4" in capsys.readouterr().err
    whole = (out / "predictions.jsonl").read_bytes()
    (out / "predictions.jsonl").unlink()
    assert main(command(endpoint, world_index, out, *SAMPLED)) == 0
    assert (out / "predictions.jsonl").read_bytes() == whole
    assert len(endpoint.requests) == asked, "an episode that the journal holds was played again"
    assert main(command(endpoint, world_index, tmp_path / "one", "--policy.temperature", "0.8")) == 0
    alone = list(read_records(tmp_path / "one/predictions.jsonl", Prediction))
    assert [one.prediction for one in alone] == [row.answers[0] for row in rows]
    assert {one.answers for one in alone} == {None}


def test_what_cannot_be_is_refused_before_anything_is_paid(
    endpoint: Endpoint, world_index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(endpoint, world_index, tmp_path / "a", "--best_of", "4")) == 2
    assert "best_of is 4 and policy.temperature is 0" in capsys.readouterr().err
    assert main(["ask", QUESTION, "--index", str(world_index), "--base_url", endpoint.url, *SAMPLED]) == 2
    assert "best_of is for steprag infer" in capsys.readouterr().err
    assert endpoint.requests == []


class Constrained(BelievingPolicy):
    """Answers at once where it may; else it searches and keeps what tells the currency."""

    async def sample(self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, n: int, seed: int) -> Sample:
        going_on = query("currency of Albania") if allowed == ("query",) else answer("lek")
        self.script = by_turn(going_on, evidence("Prices are quoted in the lek."), answer("lek"))
        return await super().sample(messages, allowed, n=n, seed=seed)


def played(policy: BelievingPolicy, most: float, depth: int = 7) -> Episode:
    environment = Environment(load_profile("transcript"), DictRetriever(), 2, depth)
    certain = CertainPolicy(policy, policy, environment.profile.grammar, most)
    return asyncio.run(episode_of(rollout(environment, certain, environment.start(QUESTION), seed=0)))


def test_an_uncertain_answer_waits_until_what_was_read_makes_it_certain() -> None:
    policy = Constrained()
    episode = played(policy, 0.5)
    assert [one.action for one in episode.state.steps] == ["query", "evidence", "answer"]
    assert policy.asked == [("query", "answer"), ("query",), ("evidence",), ("query", "answer")]
    assert policy.prompts[0] == policy.prompts[1], "asked again with the same prompt"
    assert policy.scored == [" lek </answer>", " lek </answer>"]
    assert episode.usage.calls == 4 + 2


@pytest.mark.parametrize(("policy", "most", "depth", "scored"), [
    (Constrained(), 2.0, 7, 1),  # certain enough
    (Constrained(), 0.5, 1, 0),  # nothing else could follow
    (BelievingPolicy(in_turn(answer("lek"), "Hm.")), 0.5, 7, 1),  # the other step breaks the grammar
])  # fmt: skip
def test_a_certain_answer_the_last_possible_one_and_one_without_another_step_are_taken(
    policy: BelievingPolicy, most: float, depth: int, scored: int
) -> None:
    assert [one.action for one in played(policy, most, depth).state.steps] == ["answer"]
    assert len(policy.scored) == scored


def test_a_run_holds_uncertain_answers_back_and_pays_for_nothing_twice(world_index: Path, tmp_path: Path) -> None:
    scripted = believing_reply(by_turn(answer("lek"), evidence("the lek"), answer("lek")))

    def reply(request: dict[str, object]) -> tuple[int, object]:
        grammar = str(request.get("grammar", ""))
        if re.search(r"root ::= .*query\)?\n", grammar) and "answer ::=" not in grammar:
            return believing_reply(lambda text, draw: query("currency of Albania"))(request)
        return scripted(request)

    out, priced = tmp_path / "p", ("--policy.engine", "llamacpp", "--policy.price.prompt", "2")
    with serve(reply) as endpoint:
        argv = command(endpoint, world_index, out, *priced, "--uncertainty", "0.5")
        assert main(argv) == 0
        held_back = list(read_records(out / "predictions.jsonl", Prediction))
        assert {actions(one) for one in held_back} == {("query", "evidence", "answer")}
        spent = json.loads((out / "manifest.json").read_text())["spent"]
        assert spent["calls"] == sum(one.usage.calls for one in held_back)
        assert spent["usd"] == pytest.approx(2e-6 * spent["prompt_tokens"]), "scores have the policy's price"
        paid = len(endpoint.requests)
        (out / "predictions.jsonl").unlink()
        assert main(argv) == 0
        calls = [request for request in endpoint.requests[paid:] if "messages" in request]
        assert calls == [], "answers, scores and the step in between were in the journal"
        assert main(command(endpoint, world_index, tmp_path / "plain", *priced)) == 0
    plain = read_records(tmp_path / "plain/predictions.jsonl", Prediction)
    assert {actions(one) for one in plain} == {("answer",)}, "off by default"
    assert "uncertainty" not in json.loads((tmp_path / "plain/manifest.json").read_text())["identity"]


def actions(played: Prediction) -> tuple[str, ...]:
    return tuple(step.action for step in played.steps)


@pytest.mark.parametrize(("given", "said"), [
    (("--policy.engine", "openai"), "uncertainty: engine openai cannot score"),
    (("--policy.engine", "vllm", "--policy.constrained", "false"), "an unconstrained policy would answer again"),
    (("--policy.engine", "transformers"), "engine transformers cannot be held to other steps and would answer again"),
    (("--uncertainty", "0"), "greater than 0"),
])  # fmt: skip
def test_what_cannot_be_told_is_refused_with_a_sentence(
    world_index: Path, tmp_path: Path, given: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    nobody = Endpoint("http://127.0.0.1:9", [])
    assert main(command(nobody, world_index, tmp_path / "p", "--uncertainty", "0.5", *given)) == 2
    assert said in capsys.readouterr().err
