"""Training: tokens, masks, order, and which weights learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.training_parts import messages, step_row
from training.config import DpoSection, LoraSection, TrainConfig
from training.parity import checked_tokens
from training.rows import read_file, row_order


def test_rows_learn_the_step_and_the_end_of_turn_once(tiny: Path, pairs: Path) -> None:
    from transformers import AutoTokenizer

    from training.trl.sft import as_dataset

    tokenizer = AutoTokenizer.from_pretrained(tiny)
    (row, *_) = checked_tokens(read_file(pairs / "sft.train.jsonl", "sft"), tokenizer, 512)
    data = as_dataset([row])[0]
    learnt = [token for token, label in zip(data["input_ids"], data["labels"], strict=True) if label != -100]
    assert tokenizer.decode(learnt) == step_row(0)["completion"][0]["content"] + "<|im_end|>"
    prompt = data["input_ids"][: len(data["input_ids"]) - len(learnt)]
    assert (
        prompt == tokenizer.apply_chat_template(messages(0), add_generation_prompt=True, return_dict=True)["input_ids"]
    )


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


def test_lora_reaches_the_top_blocks_alone(tiny: Path) -> None:
    from steprag.engines.models import resolve_model
    from training.model import load_policy

    policy = load_policy(resolve_model(str(tiny)), TrainConfig(lora=LoraSection(layers=1)))
    trained = {name for name, parameter in policy.named_parameters() if parameter.requires_grad}
    assert trained
    assert all(".layers.1." in name for name in trained)


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
