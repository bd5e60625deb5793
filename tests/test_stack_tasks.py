"""Ledger and Forks: what their files promise, their words in each arm's grammar, and the gate."""

from __future__ import annotations

import asyncio
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from apps.commands import main
from apps.reproduce.stack_arms import ARMS, Arm, StackProof, StackSizes, stack, transcript, write_worked
from apps.reproduce.stack_proof import CONTEXTS, DEPTH, asked_of, did, scores
from apps.reproduce.stages import Contender
from data_generation.worked import WorkedEpisode, WorkedStep, replay_all
from inference.readings import after_a_search
from inference.scoring.scores import score
from steprag import atlas
from steprag.agent.environment import Environment
from steprag.agent.grammars import STACK
from steprag.agent.profiles import load_profile
from steprag.atlas import TaskEpisode
from steprag.errors import ConfigError
from steprag.records.inputs import read_passages, read_questions
from steprag.records.jsonl import read_json, read_records, write_records
from steprag.records.training_rows import Trajectory
from steprag.scores.gold import em_of, holds_golden, parts_of
from steprag.scores.metrics import parts_match
from steprag.types import Passage, Prediction, Question, Step, Usage
from tests.fakes import DictRetriever, Endpoint, answer, chat_reply, evidence, query, serve

CORPUS = {passage.id: passage for passage in read_passages(atlas.path("corpus"))}


def questions(name: str) -> list[Question]:
    return read_questions(atlas.task(name))


def test_every_part_of_a_ledger_stands_in_its_passage_and_the_decoys_of_a_fork_in_its_list() -> None:
    for asked in questions("ledger.test") + questions("ledger.dev"):
        parts, gold = parts_of(asked), asked.metadata["supporting_ids"]
        assert len(parts) == len(gold) == int(asked.metadata["type"].removeprefix("ledger-"))
        for golden, row in zip(parts, gold, strict=True):
            assert holds_golden(CORPUS[row].text, golden), asked.id
        assert em_of("; ".join(golden[0] for golden in parts), asked) == 1.0
    for asked in questions("forks.test") + questions("forks.dev"):
        list_row, row = asked.metadata["supporting_ids"]
        named, decoys = CORPUS[list_row].text, asked.metadata["decoys"]
        assert len(decoys) == int(asked.metadata["type"].removeprefix("fork-")) > 0
        assert all(decoy in named for decoy in decoys), asked.id
        assert holds_golden(CORPUS[row].text, asked.golden_answers), asked.id


def test_what_is_asked_in_a_split_is_asked_in_no_other() -> None:
    def asked(*names: str) -> set[str]:
        told = [one.metadata for name in names for one in questions(name)]
        return {row for one in told for row in one["supporting_ids"][-1 if "decoys" in one else 0 :]}

    splits = [asked("worked.train"), asked("ledger.dev", "forks.dev", "worked.dev"), asked("ledger.test", "forks.test")]
    assert all(splits)
    assert not splits[0] & splits[1] | splits[0] & splits[2] | splits[1] & splits[2]


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.name)
def test_worked_episodes_replay_in_the_words_of_each_arm(arm: Arm, tmp_path: Path) -> None:
    file = tmp_path / "episodes.jsonl"
    write_worked(atlas.task("worked.train"), file, arm.words)
    environment = Environment(load_profile(arm.profile), DictRetriever(tuple(CORPUS.values())[:50]), 3, DEPTH)
    rows = asyncio.run(replay_all(file, atlas.path("corpus"), environment, seed=0))
    readings = sum(len(one.readings) for one in read_records(atlas.task("worked.train"), TaskEpisode))
    assert len(rows) == 2 * readings + 300, "a search and what is made of it for each reading, and an answer each"


def test_of_the_corpus_only_the_gold_passages_stay_in_memory(tmp_path: Path) -> None:
    read = (WorkedStep("query", query("a")), WorkedStep("evidence", evidence("b"), ("gold",)))
    episode = WorkedEpisode("e", "Who?", ("x",), (*read, WorkedStep("answer", answer("x"))))
    write_records(tmp_path / "episodes.jsonl", [episode])
    many = (Passage(f"p{number}", "t", f"{number} " * 2**17) for number in range(40))
    write_records(tmp_path / "corpus.jsonl", [Passage("gold", "Gold", "It is b."), *many])
    environment = Environment(load_profile("transcript"), DictRetriever(), 3, DEPTH)
    tracemalloc.start()
    rows = asyncio.run(replay_all(tmp_path / "episodes.jsonl", tmp_path / "corpus.jsonl", environment, seed=0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "It is b." in rows[1].prompt[-1]["content"]
    assert peak < (tmp_path / "corpus.jsonl").stat().st_size / 3


def test_the_stack_sums_up_what_helps_and_takes_back_what_does_not() -> None:
    episode = next(one for one in read_records(atlas.task("worked.train"), TaskEpisode)
                   if [reading.keep for reading in one.readings] == [True, False, True])  # fmt: skip
    actions = " ".join(step["action"] for step in stack(episode))
    assert actions == "search summary search backtrack search summary answer"
    assert [step["action"] for step in transcript(episode)] == ["query", "evidence"] * 3 + ["answer"]


def test_parts_are_scored_in_order_and_a_part_that_lacks_is_wrong(tmp_path: Path) -> None:
    parts = [["Oslo"], ["58", "fifty-eight"], ["lek"]]
    assert parts_match("oslo; Fifty-eight; the lek", parts) == 1.0
    assert parts_match("58; Oslo; lek", parts) == pytest.approx(1 / 3)
    assert parts_match("Oslo", parts) == pytest.approx(1 / 3)
    assert parts_match(None, parts) == 0.0
    said = Prediction("q", "Answer each: …", ("Oslo; 58; lek",), "Oslo; 57; lek", (), (), Usage(), "answer",
                      metadata={"parts": parts})  # fmt: skip
    assert score(said).em == pytest.approx(2 / 3)
    with pytest.raises(ConfigError, match=r"question 'q': metadata.parts cannot be read"):
        em_of("a", Question("q", "?", ("a",), {"parts": ["Oslo"]}))


def test_the_prompt_of_a_step_is_no_longer_for_being_one_of_many_episodes(tmp_path: Path) -> None:
    steps = (Step("query", "", "a"), Step("evidence", "", "b"), Step("answer", "", "c"))
    alone = Prediction("q", "?", ("c",), "c", steps, (), Usage(3, 1200, 30), "answer")
    vote = replace(alone, usage=Usage(12, 4800, 120), answers=("c",) * 4, chosen=0, searches=4)
    for name, one in (("alone", alone), ("vote", vote)):
        write_records(tmp_path / name / "predictions.jsonl", [one])
    rows = did([Contender(name, tmp_path / name) for name in ("alone", "vote")])[2:]
    assert rows == ["| alone | 1.0 | 0.0 | 0.0 | 400 |", "| vote | 1.0 | 0.0 | 0.0 | 400 |"]


def policy(prompt: str, draw: int) -> str:
    """Takes back whatever is not of Albania; once it writes no step at all."""
    del draw
    if "prose" in prompt:
        return "I wonder."
    return "<summary> lek </summary>" if "Albania" in prompt else "<backtrack> not it </backtrack>"


@pytest.fixture
def worked(tmp_path: Path, world_index: Path) -> Path:
    """Worked steps over a small world: two readings to keep, two to take back."""

    def episode(name: str, asked: str, action: str, said: str) -> WorkedEpisode:
        steps = (("search", asked), (action, said), ("answer", "x"))
        return WorkedEpisode(name, asked, ("x",), tuple(WorkedStep(a, f"<{a}> {text} </{a}>") for a, text in steps))

    write_records(tmp_path / "episodes.jsonl", [
        episode("a", "money of Albania", "summary", "lek"), episode("b", "prose of Peru", "summary", "sol"),
        episode("c", "capital of Peru", "backtrack", "not it"),
        episode("d", "capital of Albania", "backtrack", "not it"),
    ])  # fmt: skip
    corpus = tmp_path / "corpus.jsonl"
    write_records(corpus, [Passage("0", "t", "x")])
    keys = ["--prompt.profile", "stack", "--episode.depth", "9", "--episode.top_k", "1"]
    files = ["--episodes", str(tmp_path / "episodes.jsonl"), "--corpus", str(corpus), "--index", str(world_index)]
    assert main(["worked", *files, *keys, "--out", str(tmp_path / "worked")]) == 0
    return tmp_path / "worked"


def test_fewer_questions_are_of_every_length(tmp_path: Path) -> None:
    proof = StackProof(out=tmp_path, sizes=StackSizes(test=9), engine="vllm")
    kinds = [question.metadata["type"] for question in asked_of(proof, "ledger")]
    assert kinds == ["ledger-2"] * 3 + ["ledger-4"] * 3 + ["ledger-8"] * 3
    assert len(asked_of(replace(proof, sizes=StackSizes()), "ledger")) == 300


@pytest.mark.parametrize("size", CONTEXTS)
def test_the_engine_takes_the_prompt_at_which_an_agent_is_to_sum_up(size: int, tmp_path: Path) -> None:
    """A prompt that is just within the bound, and on top the longest passages, a step, and the completion."""
    proof = StackProof(out=tmp_path, sizes=StackSizes(), engine="vllm")
    longest = sorted(len(passage.title) + len(passage.text) for passage in CORPUS.values())[-3:]
    for one in scores(proof, ARMS[0]):
        options = dict(zip(one.options[::2], one.options[1::2], strict=True))
        if one.out.name.split("-")[1] == str(size):
            chars = int(options["--episode.chars"]) + sum(longest) + 400
            assert int(options["--policy.context"]) > chars / 3.5 + 128


def readings(endpoint: Endpoint, worked: Path, out: Path, *more: str) -> int:
    served = ["--policy.base_url", endpoint.url, "--policy.model", "double", "--policy.engine", "openai"]
    return main(["readings", "--worked", str(worked), "--out", str(out), *served, *more])


def test_the_gate_counts_what_is_kept_and_what_is_taken_back(
    worked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "gate"
    with serve(chat_reply(policy)) as endpoint:
        assert readings(endpoint, worked, out) == 0
        asked = len(endpoint.requests)
        assert readings(endpoint, worked, out) == 0
        assert len(endpoint.requests) == asked == 4, "nothing is asked twice"
    scores = read_json(out / "metrics.json")
    assert (scores["kept"], scores["kept_of"], scores["dropped"], scores["dropped_of"]) == (0.5, 2, 0.5, 2)
    assert scores["balanced_accuracy"] == 0.5
    assert "balanced accuracy  0.500" in capsys.readouterr().out


def test_the_gate_asks_where_a_search_has_just_found_something(tmp_path: Path) -> None:
    steps = ["search", "reasoning", "summary", "search", "backtrack", "backtrack", "answer"]
    rows = [Trajectory((), (), "e", action, depth, "worked") for depth, action in enumerate(steps, 1)]
    write_records(tmp_path / "sft.train.jsonl", rows)
    assert [name for name, _ in after_a_search(tmp_path / "sft.train.jsonl", STACK)] == ["e/2", "e/5"]


def test_the_gate_refuses_steps_of_other_prompts_and_grammars_that_cannot_go_back(
    worked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve(chat_reply(policy)) as endpoint:
        assert readings(endpoint, worked, tmp_path / "other", "--prompt.profile", "flat") == 2
        assert "worked with prompt profile stack" in capsys.readouterr().err
        assert not endpoint.requests
