"""The proof on Atlas: its policy in this process, its training, its labels, and a whole run at its smallest."""

from __future__ import annotations

import asyncio
import json
import random
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.atlas_arms import ARMS, OTHERS, facts_met, pairs_of, unsolved_of
from benchmarks.atlas_proof import QUICK, AtlasBench, report, tree_file, work
from benchmarks.batched import SlotModel, SlotPolicy
from benchmarks.gpu_training import Descent, LearntReply, dpo, sft
from steprag import atlas
from steprag.agent.grammars import TRANSCRIPT
from steprag.cli import main
from steprag.engines.models import resolve_model
from steprag.engines.tokens import prompt_tokens
from steprag.engines.weights import load_tokenizer
from steprag.tree import TREE_FORMAT, Node, Tree
from steprag.types import Found, Message, Question, Usage
from tests.models import make_llama


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """A random llama: folder, model, tokenizer."""
    from transformers import AutoModelForCausalLM

    folder = make_llama(tmp_path_factory.mktemp("tiny") / "start", ["some words, and more of them <query> </query>"])
    model: Any = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False, dtype=torch.float32)
    with torch.no_grad():  # so that it does not say one word for ever
        for weight in model.parameters():
            weight.mul_(6.0 if weight.dim() == 2 else 1.0)
    return folder, model.eval(), load_tokenizer(resolve_model(folder))


def asked(number: int) -> tuple[Message, ...]:
    """A prompt of some length."""
    return (Message(role="user", content="words " * random.Random(number).randint(1, 40) + str(number)),)


def test_rows_that_share_slots_say_what_transformers_says(tiny: tuple[Path, Any, Any]) -> None:
    _, model, tokenizer = tiny
    policy = SlotPolicy(SlotModel(model, 6, 256), tokenizer, ("</query>",), most=12)
    prompts = [asked(number) for number in range(9)]

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*(policy.sample(prompt, (), n=2, seed=0) for prompt in prompts))

    for prompt, sample in zip(prompts, asyncio.run(all_of_them()), strict=True):
        ids = prompt_tokens(prompt, tokenizer)
        told = model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)[0, len(ids) :]
        ended = tokenizer.eos_token_id in told
        wanted = tokenizer.decode(told, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert [(one.text, one.finish) for one in sample.completions] == 2 * [(wanted, "stop" if ended else "length")]


def test_a_completion_ends_behind_its_closing_tag_and_sampling_follows_min_p(tiny: tuple[Path, Any, Any]) -> None:
    _, model, tokenizer = tiny
    prompt = asked(1)
    [whole] = asyncio.run(SlotPolicy(SlotModel(model, 2, 256), tokenizer, (), most=12).sample(
        prompt, (), n=1, seed=0)).completions  # fmt: skip
    tag = next(letter for letter in whole.text if letter.isascii() and letter.isalpha())
    policy = SlotPolicy(SlotModel(model, 2, 256), tokenizer, (tag,), most=12, temperature=1.0, min_p=0.999)
    cut = asyncio.run(policy.sample(prompt, (), n=2, seed=0)).completions
    # of all tokens min_p leaves the likeliest alone
    assert [(one.text, one.finish) for one in cut] == 2 * [(whole.text.partition(tag)[0] + tag, "stop")]
    assert whole.finish == "length"
    long = (Message(role="user", content="words " * 400),)
    assert asyncio.run(policy.sample(long, (), n=1, seed=0)).completions[0].finish == "length"


def test_a_completion_keeps_to_the_steps_that_may_follow(tiny: tuple[Path, Any, Any]) -> None:
    _, model, tokenizer = tiny
    for sampled in (0.0, 1.0):
        policy = SlotPolicy(
            SlotModel(model, 2, 256), tokenizer, (), most=60, temperature=sampled, form=TRANSCRIPT.regex
        )
        [said] = asyncio.run(policy.sample(asked(1), ("evidence",), n=1, seed=0)).completions
        assert said.text.startswith("Based on the query, the relevant evidence is")
        free = SlotPolicy(SlotModel(model, 2, 256), tokenizer, (), most=60, temperature=sampled)
        [said] = asyncio.run(free.sample(asked(1), ("evidence",), n=1, seed=0)).completions
        assert not said.text.startswith("Based")


def test_training_in_process_prefers_what_is_chosen(tiny: tuple[Path, Any, Any]) -> None:
    from peft import LoraConfig, get_peft_model

    from benchmarks.gpu_training import _logps

    _, model, _ = tiny
    rows = [LearntReply([1, 5, 9 + n], [20 + n, 30, 31][: 1 + n % 3]) for n in range(6)]
    alone = [_logps(model, [row])[0].item() for row in rows]
    assert _logps(model, rows)[0].tolist() == pytest.approx(alone, abs=1e-4)  # padding changes nothing
    pairs, how = list(zip(rows[:3], rows[3:], strict=True)), Descent(12, 2, 1e-3, warmup=2)
    learnt = deepcopy(model)
    losses = dpo(learnt, pairs, how, np.random.default_rng(0))
    before, after = (_logps(each, rows)[0] for each in (model, learnt))
    assert losses[-1] < losses[0]
    assert ((after[:3] - after[3:]) > (before[:3] - before[3:])).all()
    adapted: Any = get_peft_model(learnt, LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    told = sft(adapted, rows, replace(how, rate=1e-2, cosine=True), np.random.default_rng(0))
    assert told[-1] < told[0]
    assert how.rate_at(0) == how.rate / 2
    assert how.rate_at(12) == pytest.approx(how.rate / 10)


KINDS = ("bridge", "one-hop")
FACTS = [{"passage": "7", "anyof": [["Peru"]]}, {"passage": "8", "anyof": [["Lima"]]}]


def tree_of(name: str, *answers: str) -> Tree:
    """A question's tree: two searches, one finds the first fact; two notes of it, one keeps it; answers."""
    prompt = (Message(role="user", content=f"Question: {name}\nPeru: Cusco lies in Peru, says Lima."),)

    def node(number: int, parent: int | None, depth: int, action: str, content: str, **more: Any) -> Node:
        heads = {"query": "So the next query is", "answer": "So the answer is"}
        head = heads.get(action, "Based on the query, the relevant evidence is")
        text = f"{head} <{action}> {content} </{action}>"
        return Node(number, parent, depth, action, text, content, messages=prompt, **more)

    nodes = [
        Node(0, None, 0, messages=prompt),
        node(1, 0, 1, "query", "Where is Cusco?", passages=(Found("7", "Cusco"),)),
        node(2, 0, 1, "query", "What is asked?", passages=(Found("3", "Rome"),)),
        node(3, 1, 2, "evidence", "Cusco lies in Peru"),
        node(4, 1, 2, "evidence", "Peru says"),
        node(5, 1, 2, "evidence", "says Lima"),
        *(
            node(6 + n, 3, 3, "answer", a, terminal=True, prediction_f1=float(a == "Lima"))
            for n, a in enumerate(answers)
        ),
    ]
    question = Question(name, "Which is the capital of the country of Cusco?", ("Lima",), {"facts": FACTS})
    return Tree(TREE_FORMAT, question, "limit", Usage(), tuple(nodes), grammar="transcript")


def test_marked_facts_are_found_then_kept_and_unsolved_trees_come_first() -> None:
    solved, unsolved = tree_of("solved", "Lima", "Cusco"), tree_of("unsolved", "Cusco", "Rome")
    assert [told and told.value for told in facts_met(solved)] == [None, 0.5, 0.0, 0.5, 0.5, 0.0, None, 0.5]
    assert unsolved_of([solved, unsolved]) == {"unsolved"}
    arms = {arm.name: pairs_of(arm, [solved, unsolved], 1) for arm in (*ARMS, *OTHERS)}
    facts = arms["marked facts"]
    assert [pair.question_id for pair in facts] == ["unsolved"] * 3 + ["solved"] * 3
    assert {(pair.chosen_node, pair.rejected_node) for pair in facts} == {(1, 2), (3, 5), (4, 5)}
    assert {(pair.chosen_node, pair.rejected_node) for pair in arms["outcomes"]} == {(6, 7)}
    assert len(arms["marked facts, as many pairs"]) == 1
    assert {(pair.chosen_node, pair.rejected_node) for pair in arms["chained match"]} >= {(6, 7), (5, 3)}


def test_a_run_at_its_smallest(tiny: tuple[Path, Any, Any], tmp_path: Path) -> None:
    sizes = replace(QUICK, train=((2, 1), (1, 1)), calls=3)
    (tmp_path / "questions").mkdir()
    (tmp_path / "start").symlink_to(tiny[0])
    for name, part in {"train-1": "train", "test": "test"}.items():
        rows = [json.loads(row) for row in atlas.path(part).read_text(encoding="utf-8").splitlines()]
        chosen = [json.dumps(next(row for row in rows if row["metadata"]["type"] == kind)) for kind in KINDS]
        (tmp_path / "questions" / f"{name}.jsonl").write_text("\n".join(chosen) + "\n", encoding="utf-8")
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(atlas.path("corpus").read_text(encoding="utf-8").splitlines(keepends=True)[:50]), "utf-8")
    assert main(["index", "build", "--corpus", str(corpus), "--encoder", "none", "--out", str(tmp_path / "index")]) == 0
    bench = AtlasBench(tmp_path, sizes)
    bench.trees(1)
    assert tree_file(tmp_path, 1).read_text(encoding="utf-8").count("\n") == 2
    results = tmp_path / "results" / "test"
    results.mkdir(parents=True)
    bench.result(results / "start.json", None, 0, 0.0, "test")
    for arm in ARMS[:2]:
        bench.result(results / f"{arm.name}-1.json", arm, 1, 1e-5, "test")
    page = report(tmp_path)
    assert "| marked facts over outcomes | +0.0 |" in page
    assert json.loads((results / "start.json").read_text())["ends"]
    work(0.0, results / "late.json", "result")  # the time is over: nothing is begun
    assert not (results / "late.json").exists()
