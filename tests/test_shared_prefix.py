"""DPO and SFT: losses from prompts that are encoded once, and pairs with a smoothing of their own."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steprag.errors import ConfigError
from tests.training_parts import Refused, lines, pair_row, some_rows, stock_sft_trainer, stock_trainer, train, write
from training.config import TrainConfig
from training.order import order_for, row_order
from training.rows import TokenRow
from training.trl.shared_prefix import SharedPrefix, pack, sharing


def gradients(trainer: Any, policy: Any, batch: Any) -> tuple[float, dict[str, Any]]:
    policy.train()  # only then does checkpointing take place
    policy.zero_grad()
    loss = trainer.compute_loss(policy, batch)
    loss.backward()
    found = {name: weight.grad.clone() for name, weight in policy.named_parameters() if weight.grad is not None}
    return loss.item(), found


def shared_alike(trainer: Any, policy: Any, batch: Any, budget: int, slack: float = 0.0) -> tuple[SharedPrefix, float]:
    """Compares loss and gradients with and without sharing; returns what was shared, and the loss."""
    import torch

    loss, stock = gradients(trainer, policy, batch)
    with sharing(policy, budget) as shared:
        same_loss, same = gradients(trainer, policy, batch)
    assert same_loss == pytest.approx(loss, rel=1e-4)
    assert stock.keys() == same.keys()
    for name, expected in stock.items():
        assert torch.norm(same[name] - expected) <= 1e-4 * torch.norm(expected) + slack, name
    return shared, loss


@pytest.mark.parametrize(
    ("finetuning", "budget", "checkpointing"),
    [("lora", 1, False), ("lora", 150, True), ("lora", 4000, False), ("full", 1, True), ("full", 150, False)],
)
def test_loss_and_gradients_are_those_of_stock_dpo(
    qwen2: Path, tmp_path: Path, finetuning: str, budget: int, checkpointing: bool
) -> None:
    import torch

    trainer, policy, batch = stock_trainer(qwen2, tmp_path, finetuning, ["sigmoid", "sft"], checkpointing)
    if finetuning == "lora":
        for name, weight in policy.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.1)  # zero at the start, where lora_A has no gradient
    shared, loss = shared_alike(trainer, policy, batch, budget)
    assert shared.computed < shared.given / (1 if budget == 1 else 1.5)
    again, _ = gradients(trainer, policy, batch)
    assert again == loss


@pytest.mark.parametrize("finetuning", ["lora", "full"])
@pytest.mark.parametrize("budget", [1, 150, 4000])
def test_loss_and_gradients_are_those_of_stock_sft(qwen2: Path, tmp_path: Path, finetuning: str, budget: int) -> None:
    import torch

    trainer, policy, batch = stock_sft_trainer(qwen2, tmp_path, finetuning)
    first = next(weight for name, weight in policy.named_parameters() if "lora_B" in name or "q_proj" in name)
    torch.nn.init.normal_(first, std=0.1)
    shared, _ = shared_alike(trainer, policy, batch, budget, slack=1e-9)
    assert shared.computed < shared.given


def test_reference_is_scored_alike(qwen2: Path, tmp_path: Path) -> None:
    import torch

    trainer, policy, batch = stock_trainer(qwen2, tmp_path, "full", ["sigmoid"])
    inputs = {key: value for key, value in batch.items() if not key.startswith("ref_")}
    with torch.no_grad():
        stock = trainer.compute_ref_log_probs(policy, inputs)
        with sharing(policy, 200):
            shared = trainer.compute_ref_log_probs(policy, inputs)
    assert all(torch.allclose(a, b, rtol=1e-5) for a, b in zip(stock, shared, strict=True))


def test_siblings_cost_their_own_tokens_alone() -> None:
    prompt, steps = list(range(100)), [[200 + n, 201, 2] for n in range(4)]
    sequences = [prompt + step for one in steps for step in (one, steps[0])]
    assert [len(row.tokens) for row in pack(sequences, 1)] == [100 + 3 * 4]


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


def test_a_sequence_longer_than_a_window_and_another_kind_of_attention_are_refused() -> None:
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
    model.set_attn_implementation("eager")
    with pytest.raises(ConfigError, match="--share_prefix false"), sharing(model, 100):
        pass


BETA = 0.5
"""That of `stock_trainer`."""


def loss_of(trainer: Any, policy: Any, batch: dict[str, Any], smoothing: list[float]) -> Any:
    import torch

    return trainer.compute_loss(policy, {**batch, "label_smoothing": torch.tensor(smoothing)})


def one_row(batch: dict[str, Any], row: int) -> dict[str, Any]:
    """A batch of one pair; chosen and rejected sequences lie behind one another."""
    count = len(batch["ref_chosen_logps"])
    return {k: v[[row]] if k.startswith("ref_") else v[[row, row + count]] for k, v in batch.items()}


@pytest.mark.parametrize("shared", [False, True])
def test_equal_rows_are_smoothed_as_trl_smooths_a_loss(qwen2: Path, tmp_path: Path, shared: bool) -> None:
    """TRL's `aot` sorts pairs within a batch; of one pair alone it is the sigmoid loss with TRL's label smoothing."""
    trainer, policy, batch = stock_trainer(qwen2, tmp_path, "full", ["aot"], smoothing=0.3)
    expected = [trainer.compute_loss(policy, one_row(batch, row)).item() for row in range(6)]
    trainer.loss_types = ["sigmoid"]
    with sharing(policy, 150) if shared else nullcontext():
        found = loss_of(trainer, policy, batch, [0.3] * 6).item()
        plain = loss_of(trainer, policy, batch, [0.0] * 6).item()
    assert found == pytest.approx(sum(expected) / 6, rel=1e-5)
    assert plain == pytest.approx(trainer.compute_loss(policy, batch).item(), rel=1e-5)
    assert plain != pytest.approx(found, rel=1e-2)


@pytest.mark.parametrize("shared", [False, True])
def test_rows_keep_their_own_smoothing(qwen2: Path, tmp_path: Path, shared: bool) -> None:
    import torch

    smoothing = [0.0, 0.1, 0.25, 0.5, 0.8, 0.0]
    trainer, policy, batch = stock_trainer(qwen2, tmp_path, "lora", ["sigmoid", "sft"])
    batch["ref_chosen_logps"] = batch["ref_chosen_logps"] + torch.arange(6.0)
    margins = [-BETA * (0.7 + row) for row in range(6)]  # untrained, a policy is its own reference
    sigmoid = [
        (1 - eps) * math.log1p(math.exp(-x)) + eps * math.log1p(math.exp(x))
        for eps, x in zip(smoothing, margins, strict=True)
    ]
    with sharing(policy, 150) if shared else nullcontext():
        trainer.loss_types, trainer.loss_weights = ["sft"], [0.5]
        sft = trainer.compute_loss(policy, batch).item()
        trainer.loss_types, trainer.loss_weights = ["sigmoid", "sft"], [2.0, 0.5]
        loss = loss_of(trainer, policy, batch, smoothing)
        policy.zero_grad()
        loss.backward()
    assert loss.item() == pytest.approx(2 * sum(sigmoid) / 6 + sft, rel=1e-4)
    assert any(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in policy.parameters())


def test_smoothing_reaches_the_trainer_from_the_pairs(tiny: Path, tmp_path: Path) -> None:
    """Preferences that are wrong as often as right teach nothing: the loss is symmetric where training starts."""
    rows = [{**pair_row(n), "label_smoothing": 0.5} for n in range(8)]
    write(tmp_path / "pairs.train.jsonl", rows)
    write(tmp_path / "pairs.val.jsonl", rows[:4])
    gains = {}
    for smoothing in ("true", "false"):
        out = tmp_path / smoothing
        assert train(tiny, tmp_path, out, "dpo", "--max_steps", "4", "--dpo.smoothing", smoothing) == 0
        gains[smoothing] = lines(out / "metrics.jsonl")[-1]["eval_rewards/margins"]
    assert abs(gains["true"]) < gains["false"] / 5  # what rounding does in four steps differs by processor


@pytest.mark.parametrize(("options", "complaint"), [
    (["--dpo.loss", '["sigmoid", "hinge"]'], "which is defined for dpo.loss sigmoid, not for hinge"),
    (["--trainer", "llamafactory", "--llamafactory.executable", "/bin/true"],
     "which llamafactory takes for no single row"),
])  # fmt: skip
def test_unknown_smoothing_is_refused(tmp_path: Path, options: list[str], complaint: str, refused: Refused) -> None:
    write(tmp_path / "pairs.train.jsonl", [pair_row(0), {**pair_row(1), "label_smoothing": 0.2}])
    refused("dpo", f"{complaint}; set --dpo.smoothing false to ignore it", *options, rows=tmp_path)


def test_rows_without_smoothing_need_no_column() -> None:
    from training.trl.dpo import as_dataset

    rows = some_rows()
    assert "label_smoothing" not in as_dataset(rows, smoothing=True).column_names
    mixed = [replace(rows[0], smoothing=0.2), *rows[1:]]
    assert as_dataset(mixed, smoothing=True)["label_smoothing"][:2] == [0.2, 0.0]
    assert "label_smoothing" not in as_dataset(mixed).column_names
