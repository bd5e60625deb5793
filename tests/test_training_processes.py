"""Training in several processes: the same as in one, with the same rows a step."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from steprag.engines.threads import threads_for, usable_cores
from steprag.errors import ConfigError
from steprag.records.jsonl import read_records, write_records
from steprag.runs.run import read_manifest
from tests.training_parts import Capture, lines, moved, show_gpus, tensors, train, train_until_killed
from training.checks import check_keys
from training.config import TrainConfig
from training.launch.processes import command, threads_each, why
from training.machine import check_devices, show_one_gpu
from training.rows import TokenRow

TWO = ["--processes", "2", "--batch_size", "2"]
ONE = ["--accumulation", "2", "--batch_size", "2"]
"""As many rows a step as `TWO`."""


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    rows = [TokenRow([1, 2], ([3], [4, 5]), smoothing=0.1), TokenRow([6], ([7],), value=0.5)]
    write_records(tmp_path / "rows.jsonl", rows)
    assert list(read_records(tmp_path / "rows.jsonl", TokenRow)) == rows


def test_threads_are_shared_out_and_a_users_number_of_them_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [threads_each(TrainConfig(processes=n, threads=5)) for n in (1, 2, 5, 9)] == [5, 2, 1, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "6")
    assert [threads_each(TrainConfig(processes=n)) for n in (1, 2)] == [6, 3]
    assert [threads_for(TrainConfig().threads), threads_for(5)] == [6, 5]
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert threads_for(None) == usable_cores()


@pytest.mark.parametrize(("visible", "there", "shown"), [
    *((None, count, None) for count in (0, 1)),
    *((None, count, "0") for count in (2, 8)),
    *(("", 8, None), ("3", 8, None), ("3,1", 8, "3"), ("GPU-9a,GPU-1b", 0, "GPU-9a")),
])  # fmt: skip
def test_one_gpu_is_shown(visible: str | None, there: int, shown: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.machine.visible_gpus", lambda: there)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or "")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    show_one_gpu(TrainConfig())
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == (visible if shown is None else shown)


def test_a_run_on_a_machine_with_several_gpus_trains_on_one(
    tiny: Path, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Whatever nvidia-smi names, the environment that torch and TRL are loaded in has one."""
    show_gpus(2, tmp_path, monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # noted, to be put back
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert train(tiny, pairs, tmp_path / "out", "dpo", "--max_steps", "1", "--threads", "2") == 0
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
    assert os.environ["OMP_NUM_THREADS"] == "1", "a user's value stays"
    said = "train: 2 GPUs here, and one process trains on GPU 0 alone; --processes 2 takes all\n"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("stage", ["sft", "dpo", "grpo", "critic"])
def test_every_stage_minds_the_gpus(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is shown; those of other makers, which CUDA's variable does not hide, are refused; so are too few."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    show_one_gpu(TrainConfig(stage=stage, processes=2))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,5"
    show_one_gpu(TrainConfig(stage=stage))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4"
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    monkeypatch.setattr("torch.accelerator.device_count", lambda: 2)
    check_devices(TrainConfig(stage=stage, processes=2))
    with pytest.raises(ConfigError, match="processes: one trains on one GPU and sees 2"):
        check_devices(TrainConfig(stage=stage))
    with pytest.raises(ConfigError, match="processes: 3 are asked for and 2 GPUs are here"):
        check_devices(TrainConfig(stage=stage, processes=3))


def test_a_launcher_around_the_command_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="by the key processes"):
        check_keys(TrainConfig())


def test_the_first_failure_is_the_cause(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("rank : 1\n  exitcode  : 1 (pid: 7)\n")
    for rank, message in ((1, "RetrieverError: no answer"), (0, "RuntimeError: Connection closed by peer")):
        file = tmp_path / "logs" / "run" / "attempt_0" / str(rank) / "error.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"message": {"message": message}}))
        os.utime(file, (100 - rank, 100 - rank))
    assert why(tmp_path, log, 1) == "no answer"
    log.write_text("rank : 1\n  exitcode  : -9 (pid: 7)\n")
    assert why(tmp_path, log, 1).startswith("a process was killed, which is how the system ends what takes too much")


def losses(folder: Path) -> list[float]:
    return [row["loss"] for row in lines(folder / "metrics.jsonl") if "loss" in row]


LANDING = [pytest.param(stage, marks=pytest.mark.landing) for stage in ("sft", "dpo")]


@pytest.mark.engine
@pytest.mark.parametrize("stage", [*LANDING, "critic"])
def test_two_processes_learn_what_one_does(tiny: Path, pairs: Path, tmp_path: Path, stage: str) -> None:
    one, two, more = tmp_path / "one", tmp_path / "two", ["--max_steps", "5"]
    assert train(tiny, pairs, one, stage, *ONE, *more) == 0
    assert train(tiny, pairs, two, stage, *TWO, *more) == 0
    assert losses(two) == pytest.approx(losses(one), rel=1e-4)
    assert tensors(one).keys() == tensors(two).keys()
    assert not moved(one, two, by=1e-5)
    alone, shared = (read_manifest(folder)["held_out"] for folder in (one, two))
    assert shared.keys() == alone.keys()
    for key in alone.keys() - {"eval_runtime"}:
        assert shared[key] == pytest.approx(alone[key], rel=1e-3)
    assert {path.name for path in two.iterdir()} == {path.name for path in one.iterdir()}, "nothing is left over"
    assert [row["step"] for row in lines(two / "metrics.jsonl")][:5] == [1, 2, 3, 4, 5], "one process writes"


@pytest.mark.engine
@pytest.mark.parametrize("more", [[], ["--finetuning", "full"]], ids=["lora", "full"])
@pytest.mark.parametrize("stage", ["sft", "dpo"])
def test_sharded_processes_learn_what_whole_ones_do(
    tiny: Path, pairs: Path, tmp_path: Path, stage: str, more: list[str]
) -> None:
    """ZeRO-3 by DeepSpeed over gloo: the same losses, and whole weights in the checkpoint."""
    pytest.importorskip("deepspeed")
    from safetensors.torch import load_file

    whole, parts, name = tmp_path / "whole", tmp_path / "parts", "model" if more else "adapter_model"
    assert train(tiny, pairs, whole, stage, *TWO, *more, "--max_steps", "3") == 0
    assert train(tiny, pairs, parts, stage, *TWO, *more, "--max_steps", "3", "--deepspeed", "zero3") == 0
    assert losses(parts) == pytest.approx(losses(whole), rel=1e-4)
    one, other = (load_file(folder / f"{name}.safetensors") for folder in (whole, parts))
    assert all(one[key].allclose(other[key], atol=1e-4) for key in one)


@pytest.mark.engine
def test_two_nodes_learn_what_one_machine_does(tiny: Path, pairs: Path, tmp_path: Path, capsys: Capture) -> None:
    """Two agents of torchrun on this machine stand for two machines with a common file system."""
    one, two, more = tmp_path / "one", tmp_path / "two", ["--batch_size", "2", "--max_steps", "5"]
    with socket.create_server(("127.0.0.1", 0)) as unused:
        meeting = f"127.0.0.1:{unused.getsockname()[1]}"
    assert train(tiny, pairs, one, "sft", "--processes", "2", *more) == 0
    other = command(TrainConfig(nodes=2, rendezvous=meeting), two / "processes")
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(other, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as joined:
        assert train(tiny, pairs, two, "sft", "--nodes", "2", "--rendezvous", meeting, *more) == 0
        assert joined.wait(60) == 0
    said = capsys.readouterr().err
    assert shlex.join(other) in said, "the line for the other machine is not the one that joins"
    assert losses(two) == pytest.approx(losses(one), rel=1e-6)
    assert {path.name for path in two.iterdir()} == {path.name for path in one.iterdir()}


@pytest.mark.engine
def test_a_worker_that_fails_is_told_by_its_own_words(tiny: Path, pairs: Path, tmp_path: Path, capsys: Capture) -> None:
    assert train(tiny, pairs, tmp_path / "out", "sft", *TWO, "--learning_rate", "1e30", "--max_steps", "3") == 1
    error = capsys.readouterr().err
    assert "steprag: step 2: the gradient is not a number any more; lower learning_rate" in error
    assert " (logs: " in error
    assert "Traceback" not in error
    assert list((tmp_path / "out" / "processes").glob("logs/**/1/stderr.log"))


@pytest.mark.engine
def test_a_killed_run_leaves_no_worker_and_goes_on(tiny: Path, pairs: Path, tmp_path: Path) -> None:
    """That it comes to the same weights, a run of one process shows (`test_training.py`)."""
    out, options = tmp_path / "out", [*TWO, "--max_steps", "40", "--save_steps", "5"]
    train_until_killed(tiny, pairs, out, "sft", *options, checkpoint="checkpoint-5")
    while workers(out):
        time.sleep(0.1)
    assert train(tiny, pairs, out, "sft", *options) == 0
    assert any("resumed_from" in row for row in lines(out / "metrics.jsonl"))


def workers(out: Path) -> list[str]:
    """Processes that train for this folder."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(FileNotFoundError, ProcessLookupError):
            words = file.read_bytes().decode().split("\0")
            if "training.launch.processes" in words and str(out / "processes") in words:
                found.append(" ".join(words))
    return found
