"""Tokens: the ids that each trainer is given are those that inference sends and stops at; masks, order, weights."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from apps.commands import main
from steprag.errors import TrainingError
from steprag.records.jsonl import write_records
from steprag.runs.run import read_manifest
from steprag.types import Question
from tests.fakes import BY_ROLLOUTS, QUESTION, chat_reply, options, serve
from tests.models import make_tokenizer, template
from tests.training_parts import Capture, lines, messages, pair_row, reply, step_row, train, write
from training.config import DpoSection, TrainConfig
from training.parity import check_parity, checked_tokens
from training.rows import Row, TokenRow, read_file, row_order


@pytest.fixture
def tokenizer(tmp_path: Path) -> Any:
    return make_tokenizer(tmp_path, [json.dumps(pair_row(n)) for n in range(20)], template("qwen2-5"))


@pytest.fixture
def rows(tmp_path: Path) -> list[Row]:
    made = [pair_row(n) for n in range(8)]
    made[3]["prompt"] = made[3]["prompt"][1:]  # no system message: the template puts its own
    made[4]["prompt"] = [*messages(4), *reply("An earlier step."), {"role": "user", "content": "Go on: ünï→\n\n  x"}]
    return read_file(write(tmp_path / "pairs.jsonl", made), "dpo")


def stops_at(ids: list[int], end: int) -> list[int]:
    """What an engine has generated when it stops."""
    return ids[: ids.index(end) + 1]


def test_both_trainers_see_what_inference_sends(tokenizer: Any, rows: list[Row]) -> None:
    from training.launch.llamafactory import columns
    from training.trl import dpo, sft

    tokens = checked_tokens(rows, tokenizer, 1000)
    steps = sft.as_dataset([replace(each, completions=each.completions[:1]) for each in tokens])
    for row, made, seen, step in zip(rows, tokens, dpo.as_dataset(tokens), steps, strict=True):
        text = tokenizer.apply_chat_template(list(row.prompt), tokenize=False, add_generation_prompt=True)
        sent = tokenizer.encode(text, add_special_tokens=False)
        assert seen["prompt_ids"] == sent
        given = columns(made)
        for completion, name in zip(row.completions, ("chosen", "rejected"), strict=True):
            learnt = [label for label in given[f"{name}_labels"] if label != -100]
            assert learnt == seen[f"{name}_ids"] == stops_at(learnt, tokenizer.eos_token_id)
            assert tokenizer.decode(learnt[:-1]) == completion["content"]
            assert given[f"{name}_input_ids"] == sent + learnt
        assert (step["input_ids"], step["labels"]) == (given["chosen_input_ids"], given["chosen_labels"])


def test_the_first_differing_tokens_are_shown(tokenizer: Any, rows: list[Row]) -> None:
    tokens = checked_tokens(rows, tokenizer, 1000)
    wrong = list(tokens)
    wrong[5] = replace(tokens[5], prompt=[*tokens[5].prompt[:-1], tokenizer.pad_token_id])
    with pytest.raises(TrainingError, match=r"row 6: .*differ from token \d+ on.*<\|endoftext\|>.*inference sends"):
        check_parity(rows, wrong, tokenizer)


@pytest.mark.parametrize(("change", "complaint"), [
    (lambda ids, tokenizer: ids + tokenizer.encode("\n"), "row 2: the completion ends with"),
    (lambda ids, tokenizer: [ids[0], ids[-1], *ids[1:]], "within its text"),
    (lambda ids, tokenizer: ids[2:], "is not what was sampled"),
])  # fmt: skip
def test_completions_end_as_inference_ends_them(tokenizer: Any, rows: list[Row], change: Any, complaint: str) -> None:
    tokens = checked_tokens(rows, tokenizer, 1000)
    chosen, rejected = tokens[1].completions
    tokens[1] = TokenRow(tokens[1].prompt, (chosen, change(rejected, tokenizer)))
    with pytest.raises(TrainingError, match=complaint):
        check_parity(rows, tokens, tokenizer)


def continued(number: int) -> list[dict[str, str]]:
    """A prompt as profile search-r1 makes it: the assistant is to write on behind what it found."""
    told = f'<search> town {number} </search>\n\n<information>Doc 1(Title: "Lima") Lima.</information>\n\n'
    return [*messages(number)[1:], *reply(told)]


def test_a_message_that_the_assistant_continues_is_trained_as_it_is_sent(tokenizer: Any, tmp_path: Path) -> None:
    made = [{**pair_row(n), "prompt": continued(n)} for n in range(4)]
    rows = read_file(write(tmp_path / "pairs.jsonl", made), "dpo")
    tokens = checked_tokens(rows, tokenizer, 1000)
    for row, seen in zip(rows, tokens, strict=True):
        opened = tokenizer.apply_chat_template(list(row.prompt[:-1]), tokenize=False, add_generation_prompt=True)
        sent = tokenizer.encode(opened + row.prompt[-1]["content"], add_special_tokens=False)
        assert seen.prompt == sent
        for completion, ids in zip(row.completions, seen.completions, strict=True):
            assert ids == [*tokenizer.encode(completion["content"], add_special_tokens=False), tokenizer.eos_token_id]
    closed = tokenizer.apply_chat_template(list(rows[1].prompt), add_generation_prompt=True)["input_ids"]
    with pytest.raises(TrainingError, match=r"row 2: the prompt's tokens differ"):  # a turn closed, and another begun
        check_parity(rows, [tokens[0], replace(tokens[1], prompt=closed), *tokens[2:]], tokenizer)


def search_r1(prompt: str, draw: int) -> str:
    """A policy of middling skill: searches well or badly, then answers rightly or wrongly."""
    tirana, albania = (f"<think>So.</think>\n<search> {asked} </search>" for asked in ("Tirana", "Albania prices"))
    lek, sol = (f"<think>So.</think>\n<answer> {said} </answer>" for said in ("lek", "sol"))
    return ([lek, sol, lek] if "Doc 1(Title" in prompt else [tirana, albania, sol])[draw % 3]


def test_trees_of_a_continued_prompt_become_pairs_that_train(tiny: Path, world_index: Path, tmp_path: Path) -> None:
    questions, run, pairs = (tmp_path / name for name in ("questions.jsonl", "run", "pairs"))
    write_records(questions, [Question(f"q{n}", f"{QUESTION} ({n})", ("lek",)) for n in range(4)])
    with serve(chat_reply(search_r1)) as endpoint:
        assert main(["generate", *options(endpoint, questions, world_index, run, "--prompt.profile", "search-r1")]) == 0
    assert main(["pairs", "--trees", str(run), "--out", str(pairs), "--validation", "0", *BY_ROLLOUTS]) == 0
    for stage, file in (("sft", "sft.train.jsonl"), ("dpo", "pairs.train.jsonl")):
        made, out = lines(pairs / file), tmp_path / stage
        assert {row["prompt"][-1]["role"] for row in made} == {"user", "assistant"}
        assert train(tiny, pairs, out, stage, "--max_steps", "2", "--max_length", "2000") == 0
        manifest = read_manifest(out)
        assert (manifest["rows"], manifest["prompt"]["profile"]) == (len(made), "search-r1")


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_a_models_own_code_is_never_run(
    tiny: Path, tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    folder, ran = shutil.copytree(tiny, tmp_path / "model"), tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(ran)!r}, 'w')\nclass Evil: pass\n")
    settings = json.loads((folder / file).read_text())
    if file == "config.json":
        settings |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}}
    else:
        settings |= {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}}
    (folder / file).write_text(json.dumps(settings))
    (tmp_path / "pairs").mkdir()
    write(tmp_path / "pairs" / "sft.train.jsonl", [step_row(n) for n in range(4)])
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 20))
    assert train(folder, tmp_path / "pairs", tmp_path / "out", "sft", "--max_steps", "1") == 2
    assert not ran.exists()
    assert str(folder) in capsys.readouterr().err


@pytest.mark.slow
def test_llamacpp_sends_the_ids_that_are_trained() -> None:
    """The serving engine's own template and tokenizer, on the embedded model."""
    import httpx2

    from steprag.engines.launch import EngineSpec
    from steprag.engines.models import resolve_model
    from steprag.engines.server import serving
    from steprag.engines.tokens import prompt_tokens
    from steprag.engines.weights import load_tokenizer

    tokenizer = load_tokenizer(resolve_model("smollm2-135m-instruct"))
    chats = [messages(n) for n in range(3)] + [messages(3)[1:]]
    later = {"role": "user", "content": "é→ 12\n\n y"}
    chats += [[*messages(4), *reply("So the next query is <query> x </query>"), later]]
    chats += [continued(5), [messages(6)[0], *continued(6)]]
    with serving(EngineSpec("llamacpp", "smollm2-135m-instruct", None, parallel=1)) as endpoint:
        root = endpoint.base_url.removesuffix("/v1")
        for chat in chats:
            prompt = httpx2.post(f"{root}/apply-template", json={"messages": chat}, timeout=60).json()["prompt"]
            request = {"content": prompt, "add_special": True, "parse_special": True}
            sent = httpx2.post(f"{root}/tokenize", json=request, timeout=60).json()["tokens"]
            assert sent == prompt_tokens(chat, tokenizer), chat


def test_long_rows_are_left_out_whole(tiny: Path, pairs: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny)
    rows = read_file(pairs / "pairs.train.jsonl", "dpo")
    lengths = [row.length for row in checked_tokens(rows, tokenizer, 10_000)]
    limit = sorted(lengths)[8]
    assert [row.length for row in checked_tokens(rows, tokenizer, limit)] == [n for n in lengths if n <= limit]


def test_order_covers_every_row_each_epoch_with_little_padding() -> None:
    lengths = [50 + 37 * n % 101 for n in range(100)]
    order = row_order(lengths, 4, 2, seed=1)
    assert sorted(order) == sorted([*range(100), *range(100)])
    assert order == row_order(lengths, 4, 2, seed=1)
    assert order != row_order(lengths, 4, 2, seed=2)

    def padding(rows: list[int]) -> int:
        groups = [[lengths[row] for row in rows[start : start + 4]] for start in range(0, len(rows), 4)]
        return sum(max(group) * len(group) - sum(group) for group in groups)

    assert padding(order) < padding(list(range(100)) * 2) / 3
    assert len(row_order(lengths, 4, 0.25, seed=1)) == 25


def test_chosen_likelihood_joins_as_a_loss() -> None:
    from training.trl.dpo import losses

    assert losses(DpoSection(sft_weight=0.1)) == {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.1]}
    assert losses(DpoSection()) == {"loss_type": ["sigmoid"], "loss_weights": [1.0]}


def test_cheap_head_gives_the_same_loss_and_gradients(tiny: Path) -> None:
    import torch
    import trl.trainer.utils

    from steprag.engines.models import resolve_model
    from training.model import load_policy
    from training.trl.common import completion_only_head

    assert hasattr(trl.trainer.utils, "_use_triton"), "TRL moved its switch; prompts are scored against the vocabulary"
    policy = load_policy(resolve_model(str(tiny)), TrainConfig())
    trl.trainer.utils.add_fused_lm_head(policy.get_base_model(), outputs=("log_probs", "entropy", "is_top1"))
    ids = torch.arange(40).view(2, 20)
    labels = ids.masked_fill(torch.arange(20) < 12, -100)

    def gradients() -> tuple[float, list[Any]]:
        policy.zero_grad()
        loss = -policy(input_ids=ids, labels=labels, fused_lm_head=True).log_probs.sum()
        loss.backward()
        return loss.item(), [p.grad.clone() for p in policy.parameters() if p.grad is not None]

    stock_loss, stock = gradients()
    with completion_only_head():
        cheap_loss, cheap = gradients()
    assert cheap_loss == pytest.approx(stock_loss, rel=1e-5)
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(stock, cheap, strict=True))
