"""Machines that are not like ours: without a GPU or with many, with bounds on memory."""

from __future__ import annotations

from pathlib import Path

import pytest

import indexes.commands.build
import indexes.commands.plan
from indexes.commands.plan import encoders
from indexes.config import IndexConfig
from steprag.console.terminal import guarded
from steprag.engines.threads import usable_memory

WIKIPEDIA = ["--config", "configs/index/wikipedia.yaml"]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (WIKIPEDIA, "--device cuda:0: no GPU here of that kind; give --device cpu --dtype float32"),
        (["--device", "cuda"], "--device cuda: no GPU here of that kind; give --device cpu\n"),
        (["--device", "cpu,mps"], "--device mps: no GPU here"),
        (["--device", "gpu"], "--device 'gpu': give cpu, cuda, cuda:0,cuda:1 or auto"),
        (["--type", "gpu-cagra"], "gpu-cagra needs a GPU and faiss-gpu-cuvs"),
    ],
)
def test_a_gpu_that_is_not_here_is_told_before_the_corpus_is_read(
    options: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [*options, "--corpus", str(tmp_path / "not-there.jsonl"), "--out", str(tmp_path / "index")]
    assert guarded(indexes.commands.build.main, argv) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("keys", "devices", "expected"),
    [
        ({}, "cpu", (1, 8)),
        ({"processes": 4}, "cpu", (4, 2)),
        ({"processes": 4}, "cpu,cpu,cpu", (8, 1)),
        ({"ray": 32}, "cpu", (32, 1)),
        ({"processes": 2}, ",".join(f"cuda:{place}" for place in range(8)), (8, None)),
        ({"ray": 16}, "cuda", (16, None)),
    ],
)
def test_a_plan_counts_what_encodes_side_by_side(
    keys: dict[str, int], devices: str, expected: tuple[int, int | None]
) -> None:
    assert encoders(IndexConfig.model_validate(keys), devices.split(","), cores=8) == expected


@pytest.mark.parametrize(
    ("own", "files", "allowed"),
    [
        ("0::/a/b", {"a/memory.max": "1000", "a/b/memory.max": "max"}, 1000),
        ("5:memory:/docker/x", {"memory/memory.limit_in_bytes": "2000"}, 2000),
        ("5:memory:/", {"memory/memory.limit_in_bytes": "9223372036854771712"}, None),
        ("5:cpu:/", {"memory/memory.limit_in_bytes": "2000"}, None),
    ],
)
def test_the_memory_of_a_limited_container(
    own: str, files: dict[str, str], allowed: int | None, tmp_path: Path
) -> None:
    for name, text in [("proc/self/cgroup", own), *((f"sys/fs/cgroup/{key}", text) for key, text in files.items())]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert usable_memory(tmp_path) == (allowed or usable_memory(tmp_path / "no-linux"))
