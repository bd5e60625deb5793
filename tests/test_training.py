"""Training: data and recipes that are wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from steprag.cli import guarded
from steprag.config import load_config
from steprag.errors import ConfigError, DataError
from tests.training_parts import pair_row, reply, train, write
from training.config import TrainConfig
from training.rows import data_files, read_training
from training.train import main


@pytest.mark.parametrize("stage", ["sft", "dpo"])
def test_missing_file_is_named(tmp_path: Path, stage: str) -> None:
    path, _ = data_files(tmp_path, stage)
    with pytest.raises(ConfigError, match=path.name):
        read_training(path, stage)


def test_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no rows"):
        read_training(write(tmp_path / "pairs.train.jsonl", []), "dpo")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"chosen": reply("So the answer is <answer> nothing </answer>")}, "the same text"),
        ({"rejected": reply(" ")}, "rejected: the message is empty"),
        ({"chosen": reply("a") + reply("b")}, "chosen: expected one assistant message, found 2"),
        ({"prompt": reply("a")}, "its last message is not the user's"),
        ({"margin": "wide"}, "margin"),
    ],
)
def test_bad_pair_is_named_with_its_line(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    path = write(tmp_path / "pairs.train.jsonl", [pair_row(1), {**pair_row(2), **change}])
    with pytest.raises(DataError, match=problem) as caught:
        read_training(path, "dpo")
    assert caught.value.line == 2


def test_bad_data_makes_no_run_folder_and_loads_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "pairs.train.jsonl", [{"prompt": []}])
    out = tmp_path / "out"
    code = guarded(main, ["--pairs", str(tmp_path), "--out", str(out), "--model", "no/such-model"])
    assert code == 2
    assert not out.exists()
    error = capsys.readouterr().err.strip()
    assert "pairs.train.jsonl:1" in error
    assert "\n" not in error


def test_help_needs_no_torch() -> None:
    code = "import sys, training.train; sys.exit('torch' in sys.modules or 'trl' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_recipes_load() -> None:
    folder = Path(__file__).parent.parent / "configs" / "training"
    stages = {path.stem: load_config(TrainConfig, str(path)).stage for path in folder.glob("*.yaml")}
    assert stages == {
        "atlas-warmstart": "sft",
        "atlas-sft": "sft",
        "atlas-dpo": "dpo",
        "qwen2.5-7b-dpo-lora": "dpo",
    }


def test_unknown_key_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"learning_rate"):
        load_config(TrainConfig, None, {"learningrate": 1})


def test_adapter_of_another_rank_is_refused(tiny: Path, pairs: Path, warm: Path, tmp_path: Path) -> None:
    assert train(tiny, pairs, tmp_path / "out", "dpo", "--adapter", str(warm), "--lora.rank", "8") == 2
    assert not (tmp_path / "out").exists()
