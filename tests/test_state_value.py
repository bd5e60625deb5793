"""TC-RAG's state value: answers that the policy is not certain of are held back while it can go on."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from inference.state_value import CertainPolicy
from steprag.agent.environment import Environment
from steprag.agent.profiles import load_profile
from steprag.agent.rollout import episode_of, rollout
from steprag.cli import main
from steprag.records.jsonl import read_records, write_records
from steprag.types import Episode, Message, Prediction, Question, Sample
from tests.fakes import (
    QUESTION,
    BelievingPolicy,
    DictRetriever,
    answer,
    believing_reply,
    evidence,
    options,
    query,
    serve,
)


@dataclass
class Constrained(BelievingPolicy):
    """Answers at once where it may; else it searches and keeps what tells the currency. `asked`: allowed actions."""

    asked: list[tuple[str, ...]] = field(default_factory=list)

    async def sample(self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, n: int, seed: int) -> Sample:
        self.asked.append(allowed)
        self.script = lambda prompt, draw: step(allowed)
        return await super().sample(messages, allowed, n=n, seed=seed)


def step(allowed: tuple[str, ...]) -> str:
    if "evidence" in allowed:
        return evidence("Prices are quoted in the lek.")
    return answer("lek") if "answer" in allowed else query("currency of Albania")


def played(policy: Constrained, most: float, depth: int = 7) -> Episode:
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


def test_a_certain_answer_and_the_last_possible_one_are_taken() -> None:
    assert [one.action for one in played(Constrained(), 2.0).state.steps] == ["answer"]
    at_the_end = Constrained()
    assert [one.action for one in played(at_the_end, 0.5, depth=1).state.steps] == ["answer"]
    assert at_the_end.scored == [], "nothing else could follow"


def test_where_the_other_step_breaks_the_grammar_the_answer_stands() -> None:
    class Stubborn(Constrained):
        async def sample(self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, n: int, seed: int) -> Sample:
            self.script = lambda prompt, draw: answer("lek")
            return await BelievingPolicy.sample(self, messages, allowed, n=n, seed=seed)

    assert played(Stubborn(), 0.5).prediction == "lek"


def http_script(text: str, draw: int) -> str:
    return evidence("the lek") if text.endswith("Read the passages.") else answer("lek")


def test_a_run_holds_uncertain_answers_back_and_pays_for_nothing_twice(world_index: Path, tmp_path: Path) -> None:
    scripted = believing_reply(http_script)

    def reply(request: dict[str, object]) -> tuple[int, object]:
        grammar = str(request.get("grammar", ""))
        if re.search(r"root ::= .*query\)?\n", grammar) and "answer ::=" not in grammar:
            return believing_reply(lambda text, draw: query("currency of Albania"))(request)
        return scripted(request)

    file, out = tmp_path / "questions.jsonl", tmp_path / "p"
    write_records(file, [Question("q", QUESTION, ("lek",))])
    more = ("--uncertainty", "0.5", "--policy.engine", "llamacpp", "--policy.price.prompt", "2")
    with serve(reply) as endpoint:
        argv = ["infer", *options(endpoint, file, world_index, out, *more)]
        assert main(argv) == 0
        (prediction,) = read_records(out / "predictions.jsonl", Prediction)
        assert [one.action for one in prediction.steps] == ["query", "evidence", "answer"]
        spent = json.loads((out / "manifest.json").read_text())["spent"]
        assert spent["calls"] == prediction.usage.calls
        assert spent["usd"] == pytest.approx(2e-6 * spent["prompt_tokens"]), "scores have the policy's price"
        paid = len(endpoint.requests)
        (out / "predictions.jsonl").unlink()
        assert main(argv) == 0
        calls = [request for request in endpoint.requests[paid:] if "messages" in request]
        assert calls == [], "answers, scores and the step in between were in the journal"
        assert main(["infer", *options(endpoint, file, world_index, tmp_path / "plain", *more[2:4])]) == 0
    (plain,) = read_records(tmp_path / "plain/predictions.jsonl", Prediction)
    assert [one.action for one in plain.steps] == ["answer"], "off by default"
    identity = json.loads((tmp_path / "plain/manifest.json").read_text())["identity"]
    assert "uncertainty" not in identity


@pytest.mark.parametrize(
    ("given", "said"),
    [(("--policy.engine", "openai"), "uncertainty: engine openai cannot score"),
     (("--policy.engine", "vllm", "--policy.constrained", "false"), "an unconstrained policy would answer again"),
     (("--policy.engine", "transformers"), "engine transformers cannot be held to other steps and would answer again"),
     (("--uncertainty", "0"), "greater than 0")],
)  # fmt: skip
def test_what_cannot_be_told_is_refused_with_a_sentence(
    world_index: Path, tmp_path: Path, given: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_records(tmp_path / "q.jsonl", [Question("q", QUESTION, ("lek",))])
    sources = ["--questions", str(tmp_path / "q.jsonl"), "--index", str(world_index), "--out", str(tmp_path / "p")]
    argv = ["infer", *sources, "--base_url", "http://127.0.0.1:9", "--model", "m", "--uncertainty", "0.5", *given]
    assert main(argv) == 2
    assert said in capsys.readouterr().err
