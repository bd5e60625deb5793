"""Prompts encoded once: the same loss and gradients as TRL's own DPO, from fewer tokens."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steprag.errors import ConfigError
from tests.training_parts import make_qwen2, stock_sft_trainer, stock_trainer
from training.config import TrainConfig
from training.rows import TokenRow, order_for, row_order
from training.trl.shared_prefix import pack, sharing


@pytest.fixture(scope="module")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_qwen2(tmp_path_factory.mktemp("qwen2"))


def gradients(trainer: Any, policy: Any, batch: Any) -> tuple[float, dict[str, Any]]:
    policy.train()  # only then does checkpointing take place
    policy.zero_grad()
    loss = trainer.compute_loss(policy, batch)
    loss.backward()
    found = {name: weight.grad.clone() for name, weight in policy.named_parameters() if weight.grad is not None}
    return loss.item(), found


@pytest.mark.parametrize(
    ("finetuning", "budget", "checkpointing"),
    [("lora", 1, False), ("lora", 150, True), ("lora", 4000, False), ("full", 1, True), ("full", 150, False)],
)
def test_loss_and_gradients_are_those_of_stock_dpo(
    qwen2: Path, tmp_path: Path, finetuning: str, budget: int, checkpointing: bool
) -> None:
    import torch

    with stock_trainer(qwen2, tmp_path, finetuning, ["sigmoid", "sft"], checkpointing) as (trainer, policy, batch):
        if finetuning == "lora":
            for name, weight in policy.named_parameters():
                if "lora_B" in name:
                    torch.nn.init.normal_(weight, std=0.1)  # zero at the start, where lora_A has no gradient
        loss, stock = gradients(trainer, policy, batch)
        with sharing(policy, budget) as shared:
            same_loss, same = gradients(trainer, policy, batch)
        assert same_loss == pytest.approx(loss, rel=1e-4)
        assert stock.keys() == same.keys()
        for name, expected in stock.items():
            assert torch.norm(same[name] - expected) <= 1e-4 * torch.norm(expected), name
        assert shared.computed < shared.given / (1 if budget == 1 else 1.5)
        again, _ = gradients(trainer, policy, batch)
        assert again == loss


@pytest.mark.parametrize("finetuning", ["lora", "full"])
@pytest.mark.parametrize("budget", [1, 150, 4000])
def test_loss_and_gradients_are_those_of_stock_sft(qwen2: Path, tmp_path: Path, finetuning: str, budget: int) -> None:
    import torch

    with stock_sft_trainer(qwen2, tmp_path, finetuning) as (trainer, policy, batch):
        torch.nn.init.normal_(
            next(weight for name, weight in policy.named_parameters() if "lora_B" in name or "q_proj" in name), std=0.1
        )
        loss, stock = gradients(trainer, policy, batch)
        with sharing(policy, budget) as shared:
            same_loss, same = gradients(trainer, policy, batch)
        assert same_loss == pytest.approx(loss, rel=1e-4)
        assert stock.keys() == same.keys()
        for name, expected in stock.items():
            assert torch.norm(same[name] - expected) <= 1e-4 * torch.norm(expected) + 1e-9, name
        assert shared.computed < shared.given


def test_reference_is_scored_alike(qwen2: Path, tmp_path: Path) -> None:
    import torch

    with stock_trainer(qwen2, tmp_path, "full", ["sigmoid"]) as (trainer, policy, batch):
        inputs = {key: value for key, value in batch.items() if not key.startswith("ref_")}
        with torch.no_grad():
            stock = trainer.compute_ref_log_probs(policy, inputs)
            with sharing(policy, 200):
                shared = trainer.compute_ref_log_probs(policy, inputs)
        assert all(torch.allclose(a, b, rtol=1e-5) for a, b in zip(stock, shared, strict=True))


def test_siblings_cost_their_own_tokens_alone() -> None:
    prompt, steps = list(range(100)), [[200 + n, 201, 2] for n in range(4)]
    sequences = [prompt + step for one in steps for step in (one, steps[0])]
    rows = pack(sequences, 1)
    assert [len(row.tokens) for row in rows] == [100 + 3 * 4]


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), min_size=1, max_size=8), st.integers(1, 40))
def test_every_sequence_can_be_read_off_its_tree(sequences: list[list[int]], budget: int) -> None:
    rows = pack(sequences, budget)
    found = {number: (row, path) for row in rows for number, path in row.paths.items()}
    assert sorted(found) == list(range(len(sequences)))
    for number, (row, path) in found.items():
        assert [row.tokens[place] for place in path] == sequences[number]
        assert [row.positions[place] for place in path] == list(range(len(path)))
        assert path == sorted(path)
    assert sum(len(row.tokens) for row in rows) <= sum(map(len, sequences))


def test_pairs_of_one_prompt_stay_together() -> None:
    groups = [n // 3 for n in range(60)]
    lengths = [100 + 7 * group % 31 + n for n, group in enumerate(groups)]
    order = row_order(lengths, 6, 2, seed=1, groups=groups)
    assert sorted(order) == sorted([*range(60), *range(60)])
    batches = [[groups[row] for row in order[start : start + 6]] for start in range(0, 120, 6)]
    assert all(len(set(batch)) <= 2 for batch in batches)
    assert order != row_order(lengths, 6, 2, seed=2, groups=groups)


@pytest.mark.parametrize(("side_by_side", "names"), [
    ("prompt", ["a", "a", "b", "c", "c", "c"]), ("question", ["one", "one", "one", "two", "two", "two"]),
])  # fmt: skip
def test_rows_of_one_prompt_or_question_are_learnt_one_after_the_other(side_by_side: Any, names: list[str]) -> None:
    prompts = {"a": [1, 2], "b": [1, 2, 3, 4], "c": [1, 5]}
    asked = [("a", "one"), ("c", "two"), ("b", "one"), ("c", "two"), ("a", "one"), ("c", "two")]
    rows = [TokenRow(prompts[name], ([number],), question) for number, (name, question) in enumerate(asked)]
    config = TrainConfig(stage="dpo", epochs=1, side_by_side=side_by_side)
    told = {tuple(prompt): name for name, prompt in prompts.items()}
    kept = [told[tuple(rows[i].prompt)] if side_by_side == "prompt" else rows[i].question
            for i in order_for(config, rows)]  # fmt: skip
    assert sorted(kept) == names
    assert len(list(groupby(kept))) == len(set(names))


def test_a_sequence_longer_than_a_window_of_attention_is_refused() -> None:
    import torch
    from transformers import MistralConfig, MistralForCausalLM

    small = MistralConfig(vocab_size=50, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
                          num_key_value_heads=1, sliding_window=6, attn_implementation="sdpa")  # fmt: skip
    model = MistralForCausalLM(small)
    ids = torch.arange(14).reshape(2, 7)
    alone = model(input_ids=ids[:, :6], attention_mask=torch.ones(2, 6)).logits
    with sharing(model, 100):
        shared = model.base_model(input_ids=ids[:, :6], attention_mask=torch.ones(2, 6))
        assert torch.allclose(model.lm_head(shared.last_hidden_state), alone, atol=1e-5)
        with pytest.raises(ConfigError, match="see 6 tokens back, and a sequence has more"):
            model.base_model(input_ids=ids, attention_mask=torch.ones(2, 7))


def test_models_that_it_does_not_fit_are_refused(qwen2: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(qwen2, attn_implementation="eager")
    with pytest.raises(ConfigError, match="--share_prefix false"), sharing(model, 100):
        pass
