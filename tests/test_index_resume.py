"""Builds that are killed, that run out of disk, or that meet another: what they leave, and how they go on.

Processes of a Ray cluster encode one process's bytes, whatever dies.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import indexes.commands.build
from indexes.commands.build import build_index
from indexes.encoding import shards
from indexes.folder.manifest import read_index_manifest
from indexes.rows.vector_file import MARKS, VECTORS
from steprag.errors import ConfigError, StepragError
from tests.indexing import ask, small, write_corpus
from tests.ray_parts import MARK, needs_ray

SHARD = 16
ROWS = 1200


def many(path: Path) -> Path:
    """A corpus of short passages of different lengths."""
    return write_corpus(path, [(f"p{n}", f"Thing {n}", "is next to " * (n % 9 + 1) + str(n)) for n in range(ROWS)])


def command(corpus: Path, out: Path, encoder: Path, *more: str) -> list[str]:
    argv = ["--corpus", str(corpus), "--out", str(out), "--encoder", str(encoder), "--shard_rows", str(SHARD), *more]
    return [sys.executable, "-m", "indexes.commands.build", *argv]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return many(tmp_path / "c.jsonl")


def test_a_killed_build_goes_on_and_gives_the_same_bytes(
    corpus: Path, encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = small(encoder, shard_rows=SHARD)
    whole = build_index(str(corpus), tmp_path / "whole", config)
    out, marks = tmp_path / "i", tmp_path / ".i.building" / MARKS
    process = subprocess.Popen(command(corpus, out, encoder), stderr=subprocess.DEVNULL)
    while process.poll() is None and (not marks.exists() or marks.read_bytes().count(b"\n") < 10):
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not out.exists()
    finished = marks.read_bytes().count(b"\n")
    assert 10 <= finished < ROWS // SHARD
    with marks.open("ab") as stream:
        stream.write(b'{"shard": 7')  # what a kill in the middle of a line leaves
    capsys.readouterr()
    build_index(str(corpus), out, config)
    assert f"{finished} of {ROWS // SHARD} shards are encoded already" in capsys.readouterr().err
    for name in (VECTORS, "index.faiss", "passages.jsonl", "passages.offsets.npy"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert read_index_manifest(out).fingerprint == whole.manifest.fingerprint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.jsonl", "i", "whole"]


def test_a_shard_whose_bytes_are_not_those_of_its_mark_is_encoded_again(
    corpus: Path, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    config = small(encoder, shard_rows=100)
    whole = build_index(str(corpus), tmp_path / "whole", config)
    with monkeypatch.context() as patch:
        patch.setattr(indexes.commands.build, "build_type", interrupt)
        with pytest.raises(KeyboardInterrupt):
            build_index(str(corpus), tmp_path / "i", config)
    vectors = tmp_path / ".i.building" / VECTORS
    content = bytearray(vectors.read_bytes())
    content[-1] ^= 1  # of the last shard
    vectors.write_bytes(content)
    (vectors.parent / ".passages.jsonl.k3j2.partial").write_bytes(b"a second copy of the corpus, which a kill left")
    (vectors.parent / ".ids.k3j2").mkdir()
    capsys.readouterr()
    build_index(str(corpus), tmp_path / "i", config)
    assert "11 of 12 shards are encoded already" in capsys.readouterr().err
    assert (tmp_path / "i" / VECTORS).read_bytes() == (whole.path / VECTORS).read_bytes()
    assert sorted(os.listdir(tmp_path / "i")) == sorted(os.listdir(whole.path))


def test_what_another_build_left_is_not_taken_for_this_one(
    corpus: Path, encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = tmp_path / ".i.building"
    left.mkdir()
    (left / "state.json").write_text(json.dumps({"corpus": "another"}))
    (left / VECTORS).write_bytes(b"half")
    (left / MARKS).write_text('{"shard": 0, "sha256": "0"}\n')
    (left / "bm25").mkdir()
    assert build_index(str(corpus), tmp_path / "i", small(encoder)).manifest.corpus.rows == ROWS
    assert "holds part of another build" in capsys.readouterr().err


@pytest.mark.slow
def test_several_processes_encode_the_same_vectors(corpus: Path, encoder: Path, tmp_path: Path) -> None:
    one = build_index(str(corpus), tmp_path / "one", small(encoder, shard_rows=100, device="cpu"))
    two = build_index(str(corpus), tmp_path / "two", small(encoder, shard_rows=100, device="cpu", processes=2))
    assert (one.path / VECTORS).read_bytes() == (two.path / VECTORS).read_bytes()


@pytest.mark.slow
def test_a_process_that_cannot_begin_says_why(corpus: Path, encoder: Path, tmp_path: Path) -> None:
    given = small(encoder, device="cpu,cpu", backend="onnx", dtype="int8")
    with pytest.raises(ConfigError, match="--backend onnx encodes on a CPU in float32"):
        build_index(str(corpus), tmp_path / "i", given)


LIMITED = """
import json, resource, sys
from indexes.commands.build import main
from steprag.console.terminal import guarded
for most, argv in json.loads(sys.argv[1]):
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
    print("ended with", guarded(main, argv), file=sys.stderr)
"""
"""Builds none of whose files may grow beyond so many bytes, which is how a full disk looks."""


def test_a_full_disk_leaves_the_old_index_and_is_told(index: Path, corpus: Path, encoder: Path, tmp_path: Path) -> None:
    """The passages, the vectors or the index find no room."""
    before = {path.name: path.read_bytes() for path in index.iterdir()}
    outs = {size: tmp_path / f"new{size}" for size in (3_000, 45_000, 60_000)}
    retyped = [*command(write_corpus(tmp_path / "small.jsonl"), index, encoder)[3:], "--type", "hnsw-sq8"]
    builds = [*((size, command(corpus, out, encoder)[3:]) for size, out in outs.items()), (900, retyped)]
    given = [sys.executable, "-c", LIMITED, json.dumps(builds)]
    *said, end = subprocess.run(given, capture_output=True, text=True, check=True).stderr.split("ended with 2\n")
    assert end == ""
    assert len(said) == 4
    assert all("no room for" in each for each in said[: len(outs)])
    assert not any("Traceback" in each for each in said)
    assert {path.name: path.read_bytes() for path in index.iterdir()} == before
    for out in outs.values():
        assert not out.exists()
        built = build_index(str(corpus), out, small(encoder, shard_rows=SHARD))  # room was made
        assert built.manifest.corpus.rows == ROWS


def test_a_kill_between_two_renames_loses_no_index(index: Path, encoder: Path, tmp_path: Path) -> None:
    found = ask(index, "iron")
    index.rename(tmp_path / ".index.replaced")
    again = build_index(str(write_corpus(tmp_path / "c.jsonl")), tmp_path / "index", small(encoder))
    assert again.reused
    assert ask(tmp_path / "index", "iron") == found


def test_an_index_that_a_kill_left_unfinished_is_not_taken_along(index: Path, encoder: Path, tmp_path: Path) -> None:
    corpus = str(write_corpus(tmp_path / "c.jsonl"))
    left = tmp_path / ".new.building"
    (tmp_path / ".index.building").mkdir()
    build_index(corpus, tmp_path / "first", small(encoder, type="flat-fp16"))
    (tmp_path / "first").rename(left)
    state = {"corpus": again_identity(left, "corpus"), "encoder": again_identity(left, "encoder")}
    config = small(encoder).model_dump(include={"dtype", "batch_tokens", "shard_rows", "max_skipped"})
    (left / "state.json").write_text(json.dumps(state | config))
    (left / "index.faiss").write_bytes(b"half")
    built = build_index(corpus, tmp_path / "new", small(encoder, type="flat-fp16"), vectors_from=index)
    assert not (built.path / "index.faiss").exists()


def again_identity(folder: Path, part: str) -> object:
    return json.loads((folder / "manifest.json").read_text())["identity"][part]


# --- on a Ray cluster -------------------------------------------------------------------------------------------------
def on_ray(test: Callable[..., None]) -> Callable[..., None]:
    marks = needs_ray, pytest.mark.slow, pytest.mark.usefixtures("on_cluster")
    for mark in (*marks, pytest.mark.timeout(900)):  # a busy machine starts Ray in minutes
        test = mark(test)
    return test


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


@on_ray
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


@on_ray
def test_passages_that_kill_every_process_end_the_build_in_one_line(
    corpus: Path, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class DeadlySlot(shards.EncodingSlot):
        def _loaded(self) -> Deadly:  # pyright: ignore[reportIncompatibleMethodOverride]
            return Deadly()

    monkeypatch.setattr(shards, "EncodingSlot", DeadlySlot)
    with pytest.raises(StepragError, match="died 4 times over the same passages"):
        build_index(str(corpus), tmp_path / "i", small(encoder, shard_rows=SHARD, device="cpu", ray=1))


@on_ray
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
