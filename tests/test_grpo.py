"""GRPO: what is learnt from, by how much, and whole runs of a tiny model over a real index."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import pytest

from steprag.agent.environment import Environment
from steprag.agent.profiles import load_profile
from steprag.batch.journal import QuestionCalls
from steprag.console.terminal import guarded
from steprag.engines.models import resolve_model
from steprag.engines.tokens import prompt_tokens
from steprag.engines.weights import load_tokenizer
from steprag.errors import TrainingError
from steprag.records.jsonl import drop_torn_line, write_records
from steprag.runs.run import open_run, read_manifest
from steprag.types import Passage, Question
from tests.fakes import DictRetriever, chat_reply, query, retrieve, serve
from tests.grpo_parts import ASKED, KEPT, NO, SEARCH, YES, spoken, world
from tests.training_parts import Capture, killed_at, lines, moved, tensors
from training.config import GrpoSection, TrainConfig
from training.play.episodes import Group, Sampling, StepRow, numbers_of, play, rows_of, sampled_tokens
from training.play.turn_gains import Scored, normalised, turn_gains
from training.play.world import GrpoStage, World, staged
from training.plots import curves
from training.train import main

FAST = [
    *("--stage", "grpo", "--threads", "1", "--warmup", "0", "--episode.top_k", "1", "--episode.depth", "5"),
    *("--grpo.questions", "1", "--grpo.max_tokens", "40", "--scheduler", "constant_with_warmup"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, world_index: Path) -> Path:
    """A folder with `questions.jsonl` and the index of the world."""
    folder = tmp_path_factory.mktemp("data")
    shutil.copytree(world_index, folder / "index")
    write_records(folder / "questions.jsonl", [ASKED])
    return folder


def argv(model: Path, data: Path, out: Path, *options: str) -> list[str]:
    sources = ["--questions", str(data / "questions.jsonl"), "--index", str(data / "index")]
    return [*FAST, "--model", str(model), *sources, "--out", str(out), *options]


def grpo(model: Path, data: Path, out: Path, *options: str) -> int:
    return guarded(main, argv(model, data, out, *options))


# What is played and learnt from


@dataclass
class SlowRetriever(DictRetriever):
    """Answers after a random while."""

    async def search(self, query: str, top_k: int) -> tuple[Passage, ...]:
        await asyncio.sleep(random.random() / 100)
        return await super().search(query, top_k)


def unscored(texts: list[Scored]) -> list[float]:
    """No belief is asked where turns are not rewarded."""
    raise AssertionError(f"{len(texts)} texts scored")


def saying(tokenizer: Any, reply: Callable[[str], str], sent: list[list[list[int]]], longest: int = 1024) -> Sampling:
    """Completions by a function of the prompt's text; `sent` takes the prompts of every batch."""
    end = int(tokenizer.eos_token_id)

    def generate(prompts: list[list[int]], seed: int) -> list[list[int]]:
        del seed
        sent.append(prompts)
        texts = [reply(str(tokenizer.decode(ids))) for ids in prompts]
        return [[*tokenizer.encode(text, add_special_tokens=False), end] for text in texts]

    return Sampling(generate, tokenizer, frozenset({end}), 60, longest, unscored)


def scripted(speaker: Path, texts: dict[str, Sequence[str]], sent: list[list[list[int]]]) -> Sampling:
    """Completions by the last line of the prompt, drawn at random."""
    drawn = random.Random(0)

    def reply(prompt: str) -> str:
        return drawn.choice(texts[prompt.split("<|im_end|>")[-2].split("\n")[-1]])

    return saying(load_tokenizer(resolve_model(str(speaker))), reply, sent)


SCRIPT = {"Search or answer.": (SEARCH, YES, NO), "Read the passages.": (KEPT,), "Answer now.": (YES, NO)}


def played(
    speaker: Path, *, questions: Sequence[Question] = (ASKED,), max_length: int = 1024,
    branch: int = 0, turns: Literal["gold"] | None = None, **texts: Sequence[str],
) -> tuple[list[Group], Any]:  # fmt: skip
    """The groups of one step, and the prompts of each batch that was sampled."""
    sent: list[list[list[int]]] = []
    how = replace(scripted(speaker, {**SCRIPT, **texts}, sent), max_length=max_length)
    environment = replace(world(), retriever=SlowRetriever())
    section = GrpoSection(episodes=6, branch=branch, turns=turns)
    return asyncio.run(play(questions, environment, how, section, seed=1)), sent


def test_rows_hold_what_was_sent_and_sampled_and_passages_only_in_prompts(speaker: Path) -> None:
    groups, sent = played(speaker)
    tokenizer = load_tokenizer(resolve_model(str(speaker)))
    (group,) = groups
    rows = rows_of(groups)
    assert len(rows) == sum(map(len, group.turns)) == sum(map(len, sent))
    assert group.advantages is not None
    assert sum(group.advantages) == pytest.approx(0)
    prompts = {tuple(ids) for batch in sent for ids in batch}
    assert {tuple(prompt_tokens(prompt, tokenizer)) for prompt, _ in spoken()} <= prompts
    assert {tuple(row.prompt) for row in rows} == prompts
    learnt = {str(tokenizer.decode(row.completion)) for row in rows}
    assert learnt <= {text + "<|im_end|>" for text in (SEARCH, KEPT, YES, NO)}
    assert any("Passages:\nLima: Lima is the capital" in str(tokenizer.decode(list(prompt))) for prompt in prompts)


def test_what_branches_share_is_asked_and_learnt_once(speaker: Path) -> None:
    groups, sent = played(speaker, branch=4)
    (group,) = groups
    rows, new = rows_of(groups), group.episodes[6:]
    assert 1 <= len(new) <= 4
    assert len(rows) == sum(map(len, sent)) == sum(map(len, group.turns)) - sum(fork.shared for fork in group.forks)
    assert sampled_tokens(groups) == sum(len(row.completion) for row in rows)
    for episode, fork, turns in zip(new, group.forks[6:], group.turns[6:], strict=True):
        chain = group.episodes[fork.chain]
        assert fork.shared > 0
        assert episode.state.steps[: fork.shared] == chain.state.steps[: fork.shared]
        assert turns[: fork.shared] == group.turns[fork.chain][: fork.shared]
        assert len(episode.retrieved) == sum(step.action == "query" for step in episode.state.steps)
    (again,), _ = played(speaker, branch=4)
    assert again == group


def test_a_label_that_says_nothing_of_a_question_is_no_zero(speaker: Path) -> None:
    (marked,), _ = played(speaker, turns="gold")
    assert any(marked.terms["gold"])
    (bare,), _ = played(speaker, questions=[Question("q", ASKED.question, ("yes",))], turns="gold")
    assert bare.terms["gold"] == [None] * 6
    assert "rewards/gold" not in numbers_of([bare])


def test_a_profile_that_the_assistant_continues_is_played_and_learnt_as_inference_sends_it(speaker: Path) -> None:
    found, done = "<think>Look.</think>\n<search> Lima </search>", "<think>So.</think>\n<answer> yes </answer>"
    tokenizer = load_tokenizer(resolve_model(str(speaker)))
    how = saying(tokenizer, lambda prompt: done if "Doc 1(Title" in prompt else found, [])
    environment = Environment(load_profile("search-r1"), DictRetriever(), top_k=1, depth=5)
    (group,) = asyncio.run(play([ASKED], environment, how, GrpoSection(episodes=2), seed=1))
    assert [episode.prediction for episode in group.episodes] == ["yes", "yes"]
    state = group.episodes[0].state.before
    asked, written = environment.observe(state).messages
    opened = str(tokenizer.apply_chat_template([asked], tokenize=False, add_generation_prompt=True))  # pyright: ignore
    assert written["role"] == "assistant"
    assert group.turns[0][1].prompt == tokenizer.encode(opened + written["content"], add_special_tokens=False)


def test_an_adapter_of_other_prompts_is_refused(speaker: Path, data: Path, tmp_path: Path, capsys: Capture) -> None:
    trained = shutil.copytree(speaker, tmp_path / "trained")
    prompt = {"profile": "search-r1", "hash": "abc"}
    (trained / "manifest.json").write_text(json.dumps({"stage": "train", "config": {"stage": "sft"}, "prompt": prompt}))
    short = ("--max_steps", "1", "--grpo.episodes", "2")
    assert grpo(trained, data, tmp_path / "out", *short) == 2
    assert "was trained on prompts of profile search-r1 (hash abc)" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert grpo(trained, data, tmp_path / "out", *short, "--prompt.unchecked", "true") == 0


def test_searches_that_come_back_in_any_order_make_the_same_batches(speaker: Path) -> None:
    (first, sent), (second, again) = played(speaker), played(speaker)
    assert sent == again
    assert first == second
    assert max(map(len, sent)) == 6, "the episodes of a group are sampled together"


def test_a_prompt_that_leaves_no_room_ends_the_episode_and_is_not_learnt(speaker: Path) -> None:
    (group,), sent = played(speaker, max_length=130, **{"Search or answer.": (SEARCH, query("Peru"))})
    assert {episode.finish for episode in group.episodes} == {"truncated"}
    assert all(len(ids) + 60 <= 130 for batch in sent for ids in batch)
    assert all(len(turns) == 1 for turns in group.turns), "only the query was sampled"


def test_groups_are_scored_by_their_own_question_and_dropped_alone(speaker: Path) -> None:
    """Two questions of the same words: "yes" is right for one and nothing is right for the other."""
    nobody = replace(ASKED, id="nobody", golden_answers=("maybe",))
    (one, other), sent = played(speaker, questions=(ASKED, nobody))
    assert len(sent[0]) == 12
    assert one.terms["f1"] == [float(episode.prediction == "yes") for episode in one.episodes]
    assert other.terms["f1"] == [0.0] * 6
    assert one.advantages is not None
    assert other.advantages is None, "format is kept by all of them"
    assert len(rows_of([one, other])) == sum(map(len, one.turns))
    numbers, searches = numbers_of([one, other]), [len(each.retrieved) for each in (*one.episodes, *other.episodes)]
    assert numbers["groups_dropped"] == 0.5
    assert numbers["rewards/f1"] == pytest.approx(sum(one.terms["f1"]) / 12)  # pyright: ignore[reportArgumentType]
    assert numbers["episodes/searches"] == pytest.approx(sum(searches) / 12)


def test_what_was_taken_back_is_not_praised_where_one_asks_for_that(speaker: Path) -> None:
    """On the stack: one episode searches, goes back and is right; the others are wrong at once."""
    tokenizer = load_tokenizer(resolve_model(str(speaker)))
    environment = Environment(load_profile("stack"), DictRetriever(), 1, 9)

    def groups(**keys: Any) -> Group:
        completions = iter(["<search> a </search>", *["<answer> no </answer>"] * 3, "<backtrack> b </backtrack>",
                            "<search> b </search>", "<summary> b </summary>", "<answer> yes </answer>"])  # fmt: skip
        section = GrpoSection(episodes=4, rewards={"em": 1.0}, scale="none", **keys)
        how = saying(tokenizer, lambda prompt: next(completions), [], longest=2048)
        (group,) = asyncio.run(play([ASKED], environment, how, section, seed=1))
        return group

    plain, kept, weighed = groups(), groups(credit="kept"), groups(weigh="episode")
    assert plain.advantages == [0.75, -0.25, -0.25, -0.25], "of four episodes, not of eight rows"
    assert plain.worth == [[0.75] * 5, [-0.25], [-0.25], [-0.25]]
    assert kept.worth == [[0.0, 0.75, 0.75, 0.75, 0.75], [-0.25], [-0.25], [-0.25]], "what is folded is praised"
    assert len(rows_of([plain])) == 8, "popped and folded completions keep their rows"
    asked = [plain.episodes[0].state]
    while asked[-1].steps:
        asked.append(asked[-1].before)
    sent = [environment.observe(one).messages for one in asked[:0:-1]]
    assert [turn.prompt for turn in plain.turns[0]] == [prompt_tokens(messages, tokenizer) for messages in sent]
    tokens = [sum(len(turn.completion) for turn in turns) for turns in weighed.turns]
    sums = [sum(len(t.completion) * w for t, w in zip(ts, ws, strict=True))
            for ts, ws in zip(weighed.turns, weighed.worth, strict=True)]  # fmt: skip
    assert sums == pytest.approx([advantage * sum(tokens) / 4 for advantage in plain.advantages])


def test_turns_are_rewarded_by_what_they_add_to_the_belief_apart_from_the_outcome(speaker: Path) -> None:
    """A model that believes in "lek" once it was searched: queries gain, evidence adds nothing, answers count alone."""
    tokenizer, asked = load_tokenizer(resolve_model(str(speaker))), replace(ASKED, golden_answers=("lek", "leke"))
    scored: list[Scored] = []

    def score(texts: list[Scored]) -> list[float]:
        scored.extend(texts)
        read = [str(tokenizer.decode(prompt)) for prompt, _ in texts]
        return [-3.0 if SEARCH in prompt else -99.0 for prompt in read]

    how = replace(scripted(speaker, SCRIPT, []), score=score)
    section = GrpoSection(episodes=6, gain=0.5)
    (group,) = asyncio.run(play([asked], world(), how, section, seed=1))
    assert group.advantages is None, "nobody answers lek"
    assert not group.dropped
    assert group.gains is not None
    gains = turn_gains(asked, group.episodes, world(), tokenizer, score)
    for episode, mine, turns in zip(group.episodes, gains, group.turns, strict=True):
        actions = [each.action for each in episode.state.steps]
        first = actions.index("query") if "query" in actions else None
        expected = [0.75 if place == first else 0.0 for place, action in enumerate(actions) if action != "answer"]
        assert mine == expected
        assert len(turns) == len(actions)
    rows = rows_of([group])
    assert len(rows) == sum(map(len, group.turns))
    query_worth = {row.advantage for row in rows if "<query>" in str(tokenizer.decode(row.completion))}
    answer_worth = {row.advantage for row in rows if "<answer>" in str(tokenizer.decode(row.completion))}
    assert max(query_worth) > 0
    assert answer_worth == {0.0}
    text = tokenizer.decode(scored[0][1])
    assert text == " lek </answer>"
    assert str(tokenizer.decode(scored[0][0])).endswith("So the answer is <answer>")
    assert normalised([[0.5, 0.5], [0.5]], "group") is None
    (guessed,) = asyncio.run(play([replace(ASKED, golden_answers=("no",))], world(), how, section, seed=1))
    assert guessed.gains is None


def test_scores_of_a_batch_are_those_of_each_text_alone(speaker: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    tokenizer, model = load_tokenizer(resolve_model(str(speaker))), AutoModelForCausalLM.from_pretrained(speaker)
    pairs = [("Is Lima in Peru?", " yes </answer>"), ("Search or answer. " * 3, " no"), ("So", " the capital of")]
    texts = [(tokenizer.encode(prompt), tokenizer.encode(text)) for prompt, text in pairs]
    with trainer_for(speaker, tmp_path) as trainer:
        told = trainer.score([*texts, *texts])  # more than a batch
    assert told[:3] == pytest.approx(told[3:], abs=1e-4)
    for (prompt, text), one in zip(texts, told[:3], strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + text])).logits[0, len(prompt) - 1 : -1]
        assert one == pytest.approx(float(torch.log_softmax(logits, -1)[range(len(text)), text].sum()), abs=1e-4)


# Searches and judges that fail


def refused(request: dict[str, Any]) -> tuple[int, object]:
    """A service that is down."""
    return 500, {"detail": "down"}


def first_fails(reply: Any) -> Any:
    """`reply`, but for the first request."""
    answers = chain([refused], repeat(reply))
    return lambda request: next(answers)(request)


def served(speaker: Path, data: Path, out: Path, url: str, *options: str) -> int:
    """As `grpo`, with two questions a step and searches by a service."""
    write_records(data / "two.jsonl", [replace(ASKED, id=name) for name in ("a", "b")])
    sources = ["--questions", str(data / "two.jsonl"), "--index", url, "--retriever.retries", "0"]
    return grpo(speaker, data, out, *sources, "--grpo.questions", "2", "--grpo.episodes", "6", *options)


def test_a_failed_search_costs_its_question_alone(speaker: Path, data: Path, tmp_path: Path, capsys: Capture) -> None:
    with serve(first_fails(retrieve)) as service:
        assert served(speaker, data, tmp_path, service.url, "--max_steps", "3") == 0
        assert len(service.requests) == 3, "the one that failed, and one a question: in later steps the journal has it"
    metrics, episodes = lines(tmp_path / "metrics.jsonl"), lines(tmp_path / "episodes.jsonl")
    assert [row["groups_failed"] for row in metrics] == [0.5, 0, 0]
    assert [sum(row["step"] == step for row in episodes) for step in (1, 2, 3)] == [6, 12, 12]
    learnt = [len(row["steps"]) + (row["refused"] is not None) for row in episodes if row["step"] == 1]
    assert metrics[0]["rows"] == sum(learnt)
    assert "train: step 1: the episodes of question" in capsys.readouterr().err


def test_a_service_that_is_down_ends_the_run(speaker: Path, data: Path, tmp_path: Path, capsys: Capture) -> None:
    with serve(refused) as service:
        assert served(speaker, data, tmp_path, service.url, "--max_steps", "3") == 1
    assert f" questions of the last steps could not be played: {service.url}: " in capsys.readouterr().err
    assert not (tmp_path / "adapter_model.safetensors").exists()


@contextmanager
def stage_of(folder: Path, questions: Sequence[Question], config: TrainConfig, done: int = 0) -> Iterator[GrpoStage]:
    """A run's stage over the questions, in the usual world, after so many steps."""
    with open_run(folder, "train", identity={}, config={}) as run:
        with staged(World([*questions], world(), {}), config, run, done) as stage:
            yield stage


ONE_BY_ONE = TrainConfig(stage="grpo", grpo=GrpoSection(questions=1, episodes=6))


def test_a_failed_search_in_the_first_steps_of_one_question_ends_no_run(tmp_path: Path) -> None:
    with stage_of(tmp_path, [ASKED], ONE_BY_ONE) as stage:
        for failure in ("down", None, "down", "down"):
            stage.check([Group(ASKED, failure=failure)])
        with pytest.raises(TrainingError, match="4 of 5 questions .*: down; mend"):
            stage.check([Group(ASKED, failure="down")])


@pytest.mark.parametrize("killed", ["between steps", "in a line"])
def test_a_run_that_resumes_knows_its_groups_and_holds_each_episode_once(
    killed: str, speaker: Path, tmp_path: Path
) -> None:
    """Killed after step 3, resumed from the checkpoint of step 2; from then on all groups are flat."""
    (moving,), _ = played(speaker)
    flat = replace(moving, advantages=None)
    with stage_of(tmp_path, [ASKED], ONE_BY_ONE) as stage:
        for step in (1, 2, 3):
            stage.note(step, [moving])
    file = tmp_path / "episodes.jsonl"
    if killed == "in a line":
        file.write_text(file.read_text()[:-20])
    with stage_of(tmp_path, [ASKED], ONE_BY_ONE, done=2) as stage:
        for step in (3, 4):
            stage.note(step, [flat])
        assert stage.tally.groups == 4
        assert stage.tally.warning is None, "steps 1 and 2 moved weights"
    assert [row["step"] for row in lines(file)] == [step for step in (1, 2, 3, 4) for _ in moving.episodes]
    with stage_of(tmp_path, [ASKED], ONE_BY_ONE) as stage:
        assert not file.read_text(), "no checkpoint: the run begins again"
        stage.note(1, [flat])
        assert "every group was dropped (1 of 1)" in str(stage.tally.warning)


def test_a_judge_that_fails_costs_one_group(speaker: Path, data: Path, tmp_path: Path) -> None:
    with serve(first_fails(chat_reply(lambda prompt, draw: str(draw % 100)))) as judge, serve(retrieve) as service:
        asked = ["--judge.base_url", judge.url, "--judge.model", "double", "--judge.engine", "openai"]
        options = ["--grpo.rewards", "{judge: 1.0}", "--max_steps", "2", "--judge.retries", "0", *asked]
        assert served(speaker, data, tmp_path, service.url, *options) == 0
    assert [row["groups_failed"] for row in lines(tmp_path / "metrics.jsonl")] == [0.5, 0]


def test_passages_of_questions_that_were_played_are_in_the_journal_alone(speaker: Path, tmp_path: Path) -> None:
    how = scripted(speaker, SCRIPT, [])
    with stage_of(tmp_path, [replace(ASKED, id=str(number)) for number in range(3)], ONE_BY_ONE) as stage:
        for number in range(3):
            assert stage.play([number], how, number, 0)[0].failure is None
        gc.collect()
        alive = [one for one in gc.get_objects() if type(one) is QuestionCalls]
        assert not [one for one in alive if one._journal is stage.journal]  # pyright: ignore[reportPrivateUsage]


# The gradient


@contextmanager
def trainer_for(speaker: Path, folder: Path, share_prefix: bool = True, **section: Any) -> Iterator[Any]:
    """A trainer as a run builds it."""
    from training.job import Job
    from training.model import load_policy
    from training.trl.common import quiet
    from training.trl.grpo import build

    quiet()
    files = resolve_model(str(speaker))
    grpo = GrpoSection(questions=1, episodes=6, max_tokens=40, temperature=0.8, **section)
    keys: dict[str, Any] = {"finetuning": "full", "max_steps": 1, "batch_size": 4, "share_prefix": share_prefix}
    config = TrainConfig(stage="grpo", grpo=grpo, **keys)
    with stage_of(folder, [ASKED], config) as stage:
        job = Job(files, load_tokenizer(files), [], [], config, stage.run, stage.world)
        trainer = build(load_policy(files, config), stage, job)
        trainer.current_gradient_accumulation_steps = 1
        yield trainer


def step(trainer: Any) -> dict[str, Any]:
    """The gradients of one step."""
    trainer.model.zero_grad()
    trainer.training_step(trainer.model, [{"number": 0}] * 6)
    return {name: weight.grad.clone() for name, weight in trainer.model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("share_prefix", [True, False])
def test_the_gradient_is_the_policy_gradient_of_samples(speaker: Path, tmp_path: Path, share_prefix: bool) -> None:
    """Against plain torch, one row at a time without padding: -A ∇log p of each sampled token, over all of them."""
    import torch

    with trainer_for(speaker, tmp_path / "run", share_prefix=share_prefix, log_kl=True) as trainer:
        groups = trainer.play([0])
        rows = rows_of(groups)
        assert len({len(row.prompt) for row in rows}) > 1, "prompts of several states"
        with mock.patch.object(
            trainer.ref_model.base_model, "forward", wraps=trainer.ref_model.base_model.forward
        ) as ref:
            found = step(trainer)
        seen = sum(call.kwargs["input_ids"].numel() for call in ref.call_args_list)
        assert (seen < 4 * min(len(row.prompt) for row in rows)) == share_prefix, "the reference shares prefixes too"
        trainer.model.zero_grad()
        count = sum(len(row.completion) for row in rows)
        for row in rows:
            ids = torch.tensor([row.prompt + row.completion])
            logits = trainer.model(ids).logits[0, len(row.prompt) - 1 : -1] / 0.8
            scores = torch.log_softmax(logits, -1).gather(1, torch.tensor(row.completion)[:, None])
            (-row.advantage * scores.sum() / count).backward()
        for name, weight in trainer.model.named_parameters():
            assert torch.allclose(found[name], weight.grad, atol=2e-5), name


def test_what_prompts_begin_with_is_computed_once_before_they_are_sampled(speaker: Path, tmp_path: Path) -> None:
    said, seen = [], []
    for share_prefix in (True, False):
        with trainer_for(speaker, tmp_path / str(share_prefix), share_prefix=share_prefix) as trainer:
            prompts = [prompt_tokens(prompt, trainer.processing_class) for prompt, _ in spoken()]
            backbone = trainer.model.base_model
            with mock.patch.object(backbone, "forward", wraps=backbone.forward) as forward:
                said.append([trainer.sample(some, 7) for some in (prompts, prompts[:2], prompts[:1])])
        seen.append(sum(call.kwargs["input_ids"].numel() for call in forward.call_args_list))
    assert said[0] == said[1]
    assert len({len(prompt) for prompt in prompts}) > 1
    assert seen[0] < 0.8 * seen[1]


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_dropped_groups_count_among_the_tokens_and_are_held_to_the_reference(
    beta: float, speaker: Path, tmp_path: Path
) -> None:
    """Against plain torch: the sum over all rows, divided by the tokens of both groups."""
    import torch

    with trainer_for(speaker, tmp_path / "run", share_prefix=False, beta=beta) as trainer:
        assert (trainer.ref_model is None) == (not beta)
        (moving,) = trainer.play([0])
        flat = replace(moving, advantages=None, worth=[[0.0] * len(worth) for worth in moving.worth])
        trainer.play = lambda numbers: [moving, flat]
        with torch.no_grad():  # away from the reference, where the divergence has a gradient
            trainer.model.lm_head.weight.add_(0.05 * torch.randn_like(trainer.model.lm_head.weight))
        found = step(trainer)
        logged = dict(trainer._metrics["train"])
        trainer.model.zero_grad()
        count = 2 * sum(len(turn.completion) for turns in moving.turns for turn in turns)
        for row in rows_of([moving, flat], dropped=True):
            ids, steps = torch.tensor([row.prompt + row.completion]), torch.tensor(row.completion)[:, None]

            def scores(model: Any, ids: Any = ids, steps: Any = steps, start: int = len(row.prompt) - 1) -> Any:
                return torch.log_softmax(model(ids).logits[0, start:-1] / 0.8, -1).gather(1, steps)[:, 0]

            mine = scores(trainer.model)
            loss = -row.advantage * mine
            if beta:
                gap = scores(trainer.ref_model).detach() - mine
                loss = loss + beta * (gap.exp() - gap - 1) * (mine - mine.detach()).exp()  # unbiased (2512.02556)
            (loss.sum() / count).backward()
        for name, weight in trainer.model.named_parameters():
            assert torch.allclose(found[name], weight.grad, rtol=1e-3, atol=2e-5), name
    assert ("kl" in logged) == bool(beta), "unknown without a reference, not 0"
    assert logged["rows"] == [len(rows_of([moving, flat], dropped=bool(beta)))]


# Whole runs


def test_a_rewarded_action_becomes_more_likely(speaker: Path, data: Path, tmp_path: Path) -> None:
    """From real samples of its own: of "yes" and "no" by halves, to "yes"."""
    options = ["--finetuning", "full", "--learning_rate", "0.001", "--max_steps", "8", "--grpo.episodes", "12"]
    assert (
        grpo(speaker, data, tmp_path, *options, "--grpo.rewards", "{em: 1.0, cost: 0.0}", "--grpo.log_kl", "true") == 0
    )
    before, after = likelihood(speaker, YES), likelihood(tmp_path, YES)
    assert 0.2 < before < 0.45
    assert after > before + 0.2
    assert likelihood(tmp_path, NO) < likelihood(speaker, NO) - 0.1

    metrics = lines(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in metrics] == list(range(1, 9))
    assert {"reward", "rewards/em", "rewards/cost", "groups_dropped", "episodes/steps", "rows"} <= metrics[0].keys()
    assert {"episodes/right_logp", "episodes/repeated"} <= metrics[-1].keys()
    assert metrics[0]["kl"] == pytest.approx(0, abs=1e-6), "the divergence is logged without a weight"
    assert metrics[-1]["kl"] > 0.01
    assert curves(tmp_path / "metrics.jsonl")["divergence from the start"]["kl"][-1] == (8, metrics[-1]["kl"])
    assert all(row["reward"] == pytest.approx(row["rewards/em"]) for row in metrics)
    episodes = lines(tmp_path / "episodes.jsonl")
    assert len(episodes) == 8 * 12
    first = [row for row in episodes if row["step"] == 1]
    assert metrics[0]["rewards/em"] == pytest.approx(sum(row["prediction"] == "yes" for row in first) / 12)
    manifest = read_manifest(tmp_path)
    assert (manifest["questions"], manifest["prompt"]["profile"]) == (1, "transcript")
    assert "collapse" not in manifest
    assert manifest["reward_first"] == metrics[0]["reward"]
    assert (tmp_path / "curves.png").exists()


def test_a_run_that_collapses_ends_with_its_last_sound_weights(
    speaker: Path, data: Path, tmp_path: Path, capsys: Capture
) -> None:
    """At a rate 30 times too high; the warm-up holds it back for a while."""
    rate = ["--learning_rate", "0.3", "--warmup", "15", "--save_steps", "1", "--max_steps", "12"]
    options = [*rate, "--grpo.episodes", "8", "--seed", "2"]
    assert grpo(speaker, data, tmp_path, *options) == 3
    manifest = read_manifest(tmp_path)
    told, history = manifest["collapse"], [row for row in lines(tmp_path / "metrics.jsonl") if "loss" in row]
    assert 0 < told["kept"] < told["step"] == len(history) < 12
    assert (manifest["steps"], manifest["stopped_by"]) == (told["kept"], "collapse")
    assert f"step {told['step']}: the run has collapsed: the log-probability" in capsys.readouterr().err
    assert likelihood(tmp_path, YES) > 0.1, "the weights are those from before the fall"
    assert grpo(speaker, data, tmp_path / "on", *options, "--collapse", "false") == 0
    assert likelihood(tmp_path / "on", YES) < 0.1


@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_a_base_in_few_bits_plays_and_learns(kind: str, speaker: Path, data: Path, tmp_path: Path) -> None:
    """On the processor too, by bitsandbytes' kernels; the adapter is whole and stands over the base as it was."""
    pytest.importorskip("bitsandbytes")
    options = ["--quantization", kind, "--learning_rate", "0.01", "--max_steps", "3", "--grpo.episodes", "6"]
    options += ["--grpo.log_kl", "true"]
    assert grpo(speaker, data, tmp_path / kind, *options) == 0
    metrics = lines(tmp_path / kind / "metrics.jsonl")
    assert metrics[0]["episodes/answered"] > 0, "it speaks as the whole base does"
    assert metrics[0]["kl"] == pytest.approx(0, abs=1e-4)
    assert any(weight.any() for name, weight in tensors(tmp_path / kind).items() if "lora_B" in name)
    assert json.loads((tmp_path / kind / "adapter_config.json").read_text())["base_model_name_or_path"] == str(speaker)


@pytest.mark.engine
@pytest.mark.parametrize("shards", ["zero2", "zero3"])
def test_sharded_processes_learn_what_whole_ones_do(shards: str, speaker: Path, data: Path, tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    options = ["--max_steps", "3", "--grpo.questions", "2", "--processes", "2", "--grpo.episodes", "6"]
    options += ["--grpo.log_kl", "true"]
    whole, parts = tmp_path / "whole", tmp_path / shards
    assert grpo(speaker, data, whole, *options) == 0
    assert grpo(speaker, data, parts, *options, "--deepspeed", shards) == 0
    for one, other in zip(lines(whole / "metrics.jsonl"), lines(parts / "metrics.jsonl"), strict=True):
        for key in ("loss", "grad_norm", "reward", "kl", "rows"):
            assert other[key] == pytest.approx(one[key], abs=1e-4), key
    assert not moved(whole, parts, by=1e-4)


def likelihood(folder: Path, text: str) -> float:
    """The probability of a whole step at the question's start."""
    import torch
    from transformers import AutoModelForCausalLM

    tokenizer = load_tokenizer(resolve_model(str(folder)))
    model = AutoModelForCausalLM.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(list(spoken()[0][0]), add_generation_prompt=True, return_dict=True)  # pyright: ignore
    ids = prompt["input_ids"]  # pyright: ignore
    reply = tokenizer.encode(text, add_special_tokens=False)
    with torch.no_grad():
        logits = model(torch.tensor([ids + reply])).logits[0, len(ids) - 1 : -1]
    return float(torch.log_softmax(logits, -1)[range(len(reply)), reply].sum().exp())


def test_groups_without_variance_move_no_weight(speaker: Path, data: Path, tmp_path: Path, capsys: Capture) -> None:
    """Without gold passages recall says nothing, so every episode is worth the same; nor does weight decay act."""
    shutil.copytree(data, tmp_path / "data")
    write_records(tmp_path / "data" / "questions.jsonl", [Question("q", ASKED.question, ("yes",))])
    start = ["--grpo.rewards", "{f1: 1.0}", "--max_steps", "1", "--learning_rate", "0.01", "--grpo.episodes", "6"]
    assert grpo(speaker, data, tmp_path / "start", *start) == 0
    alike = ["--grpo.rewards", "{recall: 1.0}", "--max_steps", "3", "--learning_rate", "0.01", "--weight_decay", "0.5"]
    alike += ["--adapter", str(tmp_path / "start"), "--grpo.episodes", "6"]
    assert grpo(speaker, tmp_path / "data", tmp_path / "alike", *alike) == 3
    assert "every group was dropped (3 of 3), no weight moved; all episodes" in capsys.readouterr().err
    assert any(weight.any() for name, weight in tensors(tmp_path / "start").items() if "lora_B" in name)
    assert not moved(tmp_path / "start", tmp_path / "alike")
    metrics = lines(tmp_path / "alike" / "metrics.jsonl")
    assert [row["groups_dropped"] for row in metrics] == [1.0] * 3
    assert [row["rows"] for row in metrics] == [0.0] * 3
    assert not any("rewards/recall" in row for row in metrics)


def test_the_divergence_is_measured_without_dropout(speaker: Path, data: Path, tmp_path: Path) -> None:
    options = ["--max_steps", "2", "--learning_rate", "0.002", "--grpo.episodes", "6", "--lora.dropout", "0.5"]
    assert grpo(speaker, data, tmp_path / "start", *options) == 0
    options += ["--adapter", str(tmp_path / "start"), "--grpo.log_kl", "true"]
    assert grpo(speaker, data, tmp_path / "next", *options) == 0
    kept = [row["kl"] for row in lines(tmp_path / "next" / "metrics.jsonl")]
    assert kept[0] == pytest.approx(0, abs=1e-6)
    assert not any("kl" in row for row in lines(tmp_path / "start" / "metrics.jsonl"))


def test_equal_runs_are_equal_and_the_reference_holds(speaker: Path, data: Path, tmp_path: Path) -> None:
    options = ["--grpo.beta", "0.05", "--lora.layers", "1", "--learning_rate", "0.02", "--max_steps", "3"]
    options += ["--grpo.episodes", "6", "--batch_size", "4"]
    one, other = tmp_path / "one", tmp_path / "other"
    assert grpo(speaker, data, one, *options) == 0
    assert grpo(speaker, data, other, *options) == 0
    assert (one / "episodes.jsonl").read_text() == (other / "episodes.jsonl").read_text()
    assert not moved(one, other)
    assert all(".layers.1." in name for name, weight in tensors(one).items() if "lora_B" in name and weight.any())
    divergence = [row["kl"] for row in lines(one / "metrics.jsonl") if "kl" in row]
    assert divergence[0] == pytest.approx(0, abs=1e-6)
    assert divergence[-1] > 1e-6
    assert not (one / "ref").exists()

    longer = [*options[:-6], "--max_steps", "4", *options[-4:]]
    assert grpo(speaker, data, one, *longer) == 2, "another recipe is refused"
    assert grpo(speaker, data, one, *options) == 0, "a finished run has nothing to do"


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_weights(speaker: Path, data: Path, tmp_path: Path) -> None:
    options = ["--learning_rate", "0.005", "--max_steps", "30", "--save_steps", "5", "--grpo.episodes", "6"]
    options += ["--grpo.beta", "0.01", "--lora.layers", "1"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert grpo(speaker, data, whole, *options) == 0
    killed_at("checkpoint-10", killed, argv(speaker, data, killed, *options))
    drop_torn_line(killed / "episodes.jsonl")
    with (killed / "episodes.jsonl").open("a") as stream:  # steps after the checkpoint were played, one in part
        stream.writelines(line for line in (whole / "episodes.jsonl").open() if json.loads(line)["step"] == 11)
        stream.write('{"step":12,"ques')
    assert grpo(speaker, data, killed, *options) == 0
    assert any("resumed_from" in row for row in lines(killed / "metrics.jsonl"))
    assert not moved(whole, killed)
    assert (whole / "episodes.jsonl").read_text() == (killed / "episodes.jsonl").read_text()


def test_the_judge_is_asked_of_finished_episodes_alone(speaker: Path, data: Path, tmp_path: Path) -> None:
    def score(prompt: str, draw: int) -> str:
        return "90" if "<answer> yes" in prompt else "10"

    with serve(chat_reply(score)) as endpoint:
        judge = ["--judge.base_url", endpoint.url, "--judge.model", "double", "--judge.engine", "openai"]
        options = ["--grpo.rewards", "{judge: 1.0}", "--max_steps", "1", "--grpo.episodes", "6", *judge]
        assert grpo(speaker, data, tmp_path, *options) == 0
        episodes = lines(tmp_path / "episodes.jsonl")
        answered = [row for row in episodes if row["prediction"] is not None]
        assert len(endpoint.requests) == len(answered) > 0
    for row in episodes:
        expected = 0.0 if row["prediction"] is None else 0.9 if row["prediction"].startswith("yes") else 0.1
        assert row["rewards"]["judge"] == row["reward"] == expected


@pytest.mark.parametrize(("options", "complaint"), [
    (["grpo", "--questions", "q.jsonl"], "--index: stage grpo learns from --questions and --index; give it"),
    (["grpo", "--pairs", "pairs"], "--pairs: stage grpo learns from --questions and --index; leave it out"),
    (["dpo"], "--pairs: stage dpo learns from --pairs; give it"),
])  # fmt: skip
def test_a_stage_without_a_source_names_it(options: list[str], complaint: str, capsys: Capture, tmp_path: Path) -> None:
    assert guarded(main, ["--stage", *options, "--out", str(tmp_path / "out")]) == 2
    assert complaint in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# Several processes


@pytest.mark.parametrize(("count", "processes"), [(10, 1), (10, 2), (10, 3), (3, 4), (0, 2)])
def test_rows_are_dealt_out_once_in_equal_batches(count: int, processes: int) -> None:
    from training.trl.batches import dealt

    rows = [StepRow([number], [1], 0.5) for number in range(count)]
    hands = [list(dealt(rows, 3, process, processes)) for process in range(processes)]
    assert len({tuple(len(batch) for batch, _ in hand) for hand in hands}) == 1
    assert all(len(batch) <= 3 for hand in hands for batch, _ in hand)
    learnt = sorted(row.prompt[0] for hand in hands for batch, real in hand for row in batch[:real])
    assert learnt == list(range(count))


@pytest.mark.engine
def test_processes_that_share_the_episodes_make_the_gradient_of_one(speaker: Path, tmp_path: Path) -> None:
    import torch

    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
    launch = ["-m", "torch.distributed.run", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    for start in ([], [*launch, "--nproc-per-node", "2"]):
        command = [sys.executable, *start, "-m", "tests.test_grpo", str(speaker), str(tmp_path)]
        subprocess.run(command, check=True, env=environment)
    one, two = (torch.load(tmp_path / f"gradients-{count}.pt") for count in (1, 2))
    assert max(gradient.abs().max() for gradient in one.values()) > 1e-3
    assert all(torch.allclose(one[name], two[name], atol=1e-6) for name in one)


@pytest.mark.engine
@pytest.mark.landing
def test_two_processes_play_their_questions_and_learn_from_all(speaker: Path, data: Path, tmp_path: Path) -> None:
    """One of them has a search that fails: the other does not wait for its episodes."""
    shutil.copytree(data, tmp_path / "data")
    write_records(tmp_path / "data" / "questions.jsonl", [replace(ASKED, id=name) for name in ("a", "b", "c", "d")])
    options = ["--finetuning", "full", "--learning_rate", "0.001", "--max_steps", "12", "--grpo.episodes", "6"]
    options += ["--grpo.questions", "2", "--processes", "2", "--grpo.beta", "0.001", "--batch_size", "4"]
    options += ["--grpo.rewards", "{em: 1.0, cost: 0.0}", "--retriever.retries", "0"]
    out = tmp_path / "out"
    with serve(first_fails(retrieve)) as service:
        assert grpo(speaker, tmp_path / "data", out, *options, "--index", service.url) == 0
    assert likelihood(out, YES) > likelihood(speaker, YES) + 0.1
    metrics, played = lines(out / "metrics.jsonl"), lines(out / "episodes.jsonl")
    assert [row["step"] for row in metrics] == list(range(1, 13))
    assert sum(row["groups_failed"] for row in metrics) == 0.5
    for row in metrics:
        now = [episode for episode in played if episode["step"] == row["step"]]
        asked = [episode["question"] for episode in now]
        assert len(now) == 6 * len(set(asked)) == 12 * (1 - row["groups_failed"]), "a question of each process"
        assert asked == sorted(asked, key=asked.index), "a group's episodes side by side"
        assert row["rewards/em"] == pytest.approx(sum(episode["rewards"]["em"] for episode in now) / len(now))
    groups: dict[str, list[Any]] = {}
    for episode in played:
        if episode["step"] == 12:
            groups.setdefault(episode["question"], []).append(episode["steps"])
    one, other = groups.values()
    assert one != other, "each process draws its own samples"


def write_gradients(speaker: Path, out: Path) -> None:
    """The gradients of one step on episodes that are always the same. Under torchrun each process played a share."""
    import torch

    rank, count = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(1)
    questions = [replace(ASKED, id=str(number)) for number in range(4)]
    groups = asyncio.run(play(questions, world(), scripted(speaker, SCRIPT, []), GrpoSection(episodes=6), seed=1))
    with trainer_for(speaker, out / f"run-{count}-{rank}", beta=0.1) as trainer:
        share = len(questions) // count
        trainer.play = lambda numbers: groups[rank * share : (rank + 1) * share]
        trainer.training_step(trainer.accelerator.prepare_model(trainer.model), [{"number": 0}] * 6)
        if rank == 0:
            gradients = {name: weight.grad for name, weight in trainer.model.named_parameters()}
            torch.save(gradients, out / f"gradients-{count}.pt")
    if count > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    write_gradients(Path(sys.argv[1]), Path(sys.argv[2]))
