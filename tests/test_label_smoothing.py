"""Pairs whose preference is not certain: conservative DPO, each row with a smoothing of its own."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from steprag.errors import DataError
from tests.training_parts import lines, make_qwen2, pair_row, some_rows, stock_trainer, train, write
from training.rows import read_file
from training.trl.shared_prefix import sharing

BETA = 0.5
"""That of `stock_trainer`."""


@pytest.fixture(scope="module")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_qwen2(tmp_path_factory.mktemp("qwen2"))


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
    with stock_trainer(qwen2, tmp_path, "full", ["aot"], smoothing=0.3) as (trainer, policy, batch):
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
    with stock_trainer(qwen2, tmp_path, "lora", ["sigmoid", "sft"]) as (trainer, policy, batch):
        trainer.loss_weights = [2.0, 0.5]
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


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--dpo.loss", '["sigmoid", "hinge"]'], "defined for dpo.loss sigmoid, not for hinge"),
        (["--trainer", "llamafactory", "--llamafactory.executable", "/bin/true"], "llamafactory takes for no single"),
    ],
)
def test_what_does_not_know_smoothing_is_refused(
    tiny: Path, tmp_path: Path, options: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "pairs.train.jsonl", [pair_row(0), {**pair_row(1), "label_smoothing": 0.2}])
    assert train(tiny, tmp_path, tmp_path / "out", "dpo", *options) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert "--dpo.smoothing false" in error
    assert not (tmp_path / "out").exists()


def test_smoothing_is_a_probability(tmp_path: Path) -> None:
    path = write(tmp_path / "pairs.train.jsonl", [{**pair_row(0), "label_smoothing": 1.5}])
    with pytest.raises(DataError, match="label_smoothing: 1.5 is not from 0 to 1"):
        read_file(path, "dpo")


def test_rows_without_smoothing_need_no_column() -> None:
    from training.trl.dpo import as_dataset

    rows = some_rows()
    assert "label_smoothing" not in as_dataset(rows, smoothing=True).column_names
    mixed = [replace(rows[0], smoothing=0.2), *rows[1:]]
    assert as_dataset(mixed, smoothing=True)["label_smoothing"][:2] == [0.2, 0.0]
    assert "label_smoothing" not in as_dataset(mixed).column_names
