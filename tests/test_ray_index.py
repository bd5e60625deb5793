"""A corpus encoded by processes of a Ray cluster: one process's bytes, whatever dies."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from indexes.commands.build import build_index
from indexes.encoding import shards
from indexes.rows.vector_file import MARKS, VECTORS
from steprag.errors import ConfigError, StepragError
from tests.indexing import small, write_corpus
from tests.ray_parts import MARK, needs_ray

ROWS, SHARD = 800, 10
pytestmark = [
    needs_ray,
    pytest.mark.slow,
    pytest.mark.usefixtures("on_cluster"),
    pytest.mark.timeout(900),  # a busy machine starts Ray in minutes
]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Short passages of different lengths."""
    rows = [(f"p{n}", f"Thing {n}", "is next to " * (n % 9 + 1) + str(n)) for n in range(ROWS)]
    return write_corpus(tmp_path / "c.jsonl", rows)


def encoding_processes() -> list[psutil.Process]:
    """Those of the tests' own cluster."""
    found = []
    for each in psutil.process_iter():
        with suppress(psutil.Error):
            if each.name().startswith("ray::EncodingS") and each.environ().get(MARK) == os.environ["RAY_ADDRESS"]:
                found.append(each)
    return found


def kill_one(marks: Path, killed: list[int]) -> None:
    """Kills an encoding process once some shards are marked."""
    until = time.monotonic() + 120
    while time.monotonic() < until and not (marks.exists() and marks.read_bytes().count(b"\n") >= 3):
        time.sleep(0.002)
    for process in encoding_processes()[:1]:
        process.kill()
        killed.append(process.pid)


def test_processes_of_a_cluster_encode_the_bytes_of_one_although_one_is_killed(
    corpus: Path, encoder: Path, tmp_path: Path
) -> None:
    config = small(encoder, shard_rows=SHARD, batch_tokens=512, device="cpu")
    plain = build_index(str(corpus), tmp_path / "plain", config)
    killed: list[int] = []
    killer = threading.Thread(target=kill_one, args=(tmp_path / ".ray.building" / MARKS, killed))
    killer.start()
    rayed = build_index(str(corpus), tmp_path / "ray", config.model_copy(update={"ray": 2}))
    killer.join()
    assert killed, "no process was there to kill"
    assert (rayed.path / VECTORS).read_bytes() == (plain.path / VECTORS).read_bytes()
    assert rayed.manifest.fingerprint == plain.manifest.fingerprint


class Deadly:
    """A tokeniser's stand-in that ends its process."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def tokenise(self, texts: Sequence[str]) -> None:
        del texts
        os._exit(1)


def test_passages_that_kill_every_process_end_the_build_in_one_line(
    corpus: Path, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class DeadlySlot(shards.EncodingSlot):
        def _loaded(self) -> Deadly:  # pyright: ignore[reportIncompatibleMethodOverride]
            return Deadly()

    monkeypatch.setattr(shards, "EncodingSlot", DeadlySlot)
    with pytest.raises(StepragError, match="died 4 times over the same passages"):
        build_index(str(corpus), tmp_path / "i", small(encoder, shard_rows=SHARD, device="cpu", ray=1))


def test_a_node_without_the_encoder_and_a_device_by_number_are_one_line(
    corpus: Path, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="--device cuda:0,cuda:1 with --ray"):
        build_index(str(corpus), tmp_path / "i", small(encoder, shard_rows=SHARD, device="cuda:0,cuda:1", ray=1))

    class ElsewhereSlot(shards.EncodingSlot):
        def _loaded(self) -> shards.Encoder:
            os.chdir("/")
            self._work = type(self._work)(**{**vars(self._work), "encoder_folder": Path("no-such-folder")})
            return super()._loaded()

    monkeypatch.setattr(shards, "EncodingSlot", ElsewhereSlot)
    with pytest.raises(ConfigError, match="a node of the cluster has no encoder at no-such-folder"):
        build_index(str(corpus), tmp_path / "i", small(encoder, shard_rows=SHARD, device="cpu", ray=1))
