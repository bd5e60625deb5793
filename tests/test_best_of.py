"""Which answer is taken. Best-of-N: the episode that is believed, of several a question. TC-RAG's state value: answers
that the policy is not certain of are held back while it can go on.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.commands import main
from inference.answer import answer_one
from inference.best_of import by_critic, by_vote, play
from steprag.agent.environment import Environment
from steprag.agent.profiles import load_profile
from steprag.batch.journal import JOURNAL
from steprag.records.jsonl import read_records, write_records
from steprag.types import Episode, Message, Prediction, Question, State, Step, Usage
from tests.fakes import (
    QUESTION,
    DictRetriever,
    Endpoint,
    ScriptedPolicy,
    answer,
    chat_reply,
    options,
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
