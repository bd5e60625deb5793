"""Encoding in shards: a killed build goes on behind its last finished shard, and gives the same bytes.

A shard is a range of rows. Its texts are batched among themselves, so its vectors depend on nothing outside it. Rows
are on the disk before the shard's mark is, and a mark holds the hash of what it stands for.

Processes of a Ray cluster (extra `ray`) get texts and give vectors. They open no file of the build, so the nodes need
no common file system: the one that builds alone writes, as two hosts that map one file would overwrite each other's
pages. They need the encoder at the same path. Ray replaces a process that dies, and gives its shards to the next one.
"""

from __future__ import annotations

import hashlib
import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from indexes.encoding.embed import Dtype, Encoder, Tokens
from indexes.encoding.encoders import EncoderSpec, describe
from indexes.encoding.runtimes import Backend
from indexes.rows.passage_store import PassageStore, Titles
from indexes.rows.vector_file import MARKS, VECTORS, VectorFile
from steprag.batch.ray_cluster import check_ray, cluster, own_error
from steprag.console.progress import Progress, say
from steprag.errors import ConfigError, StepragError, counted
from steprag.records.jsonl import LineJournal, read_rows

DEATHS = 4
"""A shard whose process dies so often ends the build."""
AHEAD = 2
"""Shards that a process has at once: one in the model, one waiting."""


@dataclass(frozen=True)
class Work:
    """What a process needs to encode shards of one build: all that decides their bytes, but for the machine."""

    folder: Path
    encoder_folder: Path
    spec: EncoderSpec
    rows: int
    shard_rows: int
    batch_tokens: int | None
    dtype: Dtype
    backend: Backend = "torch"
    titles: Titles = "plain"

    def range(self, shard: int) -> tuple[int, int]:
        """The shard's rows: the first, and the one after the last."""
        return shard * self.shard_rows, min(self.rows, (shard + 1) * self.shard_rows)

    @property
    def shards(self) -> int:
        """How many shards there are; the last may be shorter."""
        return -(-self.rows // self.shard_rows)


@dataclass(frozen=True)
class Mark:
    """A finished shard, as a line of `vectors.done.jsonl`. `cut`: how many of its passages are longer than what the
    encoder reads.
    """

    shard: int
    sha256: str
    cut: int


def encode_shards(work: Work, devices: list[str], slots: int = 0) -> int:
    """Encodes what is not encoded yet into `vectors.faiss`; returns how many passages are longer than what the encoder
    reads.

    One device encodes in this process; several have a process each. With `slots`, so many processes of a Ray cluster
    encode, each on a device of that name.
    """
    done = _finished(work)
    missing = [shard for shard in range(work.shards) if shard not in done]
    ready = work.rows - sum(end - start for start, end in map(work.range, missing))
    if done:
        say(f"index: {len(done)} of {work.shards} shards are encoded already")
    if missing:
        say(f"index: {counted(work.rows, 'passage')}, loading encoder {work.spec.name}")
        describe(work.spec)
        run = partial(_on_ray, slots) if slots else _here if len(devices) == 1 else _in_processes
        with Progress("encode", work.rows, "passages", ready) as progress, LineJournal(work.folder / MARKS) as marks:
            for mark in run(work, missing, devices, progress):
                marks.append(mark)
    return sum({mark.shard: mark.cut for mark in _marks(work)}.values())


def _marks(work: Work) -> list[Mark]:
    """The marks of a build; those of versions that did not count are left out."""
    return [Mark(row["shard"], row["sha256"], row["cut"]) for _, row in read_rows(work.folder / MARKS) if "cut" in row]


def _finished(work: Work) -> set[int]:
    """Shards whose mark is there and whose rows are those of the mark; the file is laid out where it is missing."""
    path, marks = work.folder / VECTORS, work.folder / MARKS
    if not path.exists() or not marks.exists():
        marks.unlink(missing_ok=True)
        VectorFile.create(path, work.rows, work.spec.dimension)
        return set()
    with LineJournal(marks):  # drops a line that a kill tore
        pass
    vectors = VectorFile(path, work.rows, work.spec.dimension)
    return {mark.shard for mark in _marks(work) if _hash(vectors.stored(*work.range(mark.shard))) == mark.sha256}


def _hash(stored: bytes) -> str:
    return hashlib.sha256(stored).hexdigest()


class _Encoding:
    """An encoder on its device, and the files of a build."""

    def __init__(self, work: Work, device: str) -> None:
        self._work, self._vectors, self.store = work, _writable(work), PassageStore(work.folder)
        self._encoder = Encoder(work.encoder_folder, work.spec, device=device, dtype=work.dtype, backend=work.backend)

    def prepared(self, shard: int) -> tuple[list[str], Tokens]:
        """A shard's texts and their tokens."""
        texts = self.store.texts(range(*self._work.range(shard)), self._work.titles)
        return texts, self._encoder.tokenise(texts)

    def encode(
        self, shard: int, texts: list[str], tokens: Tokens, advance: Callable[[int], None] | None = None
    ) -> Mark:
        """Encodes a shard and writes its vectors."""
        found = self._encoder.encode_tokens(texts, tokens, batch_tokens=self._work.batch_tokens, progress=advance)
        return _kept(self._work, self._vectors, shard, found, tokens.cut)


def _writable(work: Work) -> VectorFile:
    return VectorFile(work.folder / VECTORS, work.rows, work.spec.dimension, write=True)


def _kept(work: Work, vectors: VectorFile, shard: int, found: np.ndarray, cut: int) -> Mark:
    stored = vectors.write(work.range(shard)[0], found)
    vectors.release()
    return Mark(shard, _hash(stored), cut)


def _here(work: Work, shards: list[int], devices: list[str], progress: Progress) -> Iterator[Mark]:
    """Encodes shards one after another; the next one's tokens are made while this one is in the model."""
    encoding = _Encoding(work, devices[0])
    with encoding.store, ThreadPoolExecutor(1, thread_name_prefix="tokeniser") as ahead:
        waiting = ahead.submit(encoding.prepared, shards[0])
        for shard, following in zip_longest(shards, shards[1:]):
            prepared = waiting.result()
            if following is not None:
                waiting = ahead.submit(encoding.prepared, following)
            yield encoding.encode(shard, *prepared, progress.advance)


_given: tuple[Work, str]
"""In a process of its own: the work, and the process's device."""


def _start(work: Work, devices: Any) -> None:
    """A process begins: it takes a device. What loading raises here would end the pool without its reason."""
    global _given
    _given = work, devices.get()


@cache
def _own() -> _Encoding:
    """What this process encodes with, loaded at the first shard."""
    return _Encoding(*_given)


def _run(shard: int) -> Mark:
    return _own().encode(shard, *_own().prepared(shard))


def _in_processes(work: Work, shards: list[int], devices: list[str], progress: Progress) -> Iterator[Mark]:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    for device in devices:
        queue.put(device)
    with ProcessPoolExecutor(len(devices), context, _start, (work, queue)) as pool:
        running: set[Future[Mark]] = set()
        left = iter(shards)
        try:
            while True:
                running |= {pool.submit(_run, shard) for shard in islice(left, 2 * len(devices) - len(running))}
                if not running:
                    return
                finished, running = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    mark = future.result()
                    start, end = work.range(mark.shard)
                    progress.advance(end - start)
                    yield mark
        except BrokenProcessPool:
            raise StepragError("an encoding process died (out of memory?);"
                               " run the same command again to resume after the finished shards") from None  # fmt: skip


class EncodingSlot:
    """An actor, a process of a Ray cluster: an encoder, loaded at the first shard. One thread, unless it has a GPU."""

    def __init__(self, work: Work, device: str) -> None:
        self._work, self._device = work, device
        self._encoder: Encoder | None = None

    def encode(self, shard: int, texts: list[str]) -> tuple[int, np.ndarray, int]:
        """The shard, (len(texts), dimension) float16 of its texts, in their order, and how many of them are longer than
        what is read. Raises ConfigError where this node lacks the encoder.
        """
        encoder = self._encoder = self._encoder or self._loaded()
        tokens = encoder.tokenise(texts)
        found = encoder.encode_tokens(texts, tokens, batch_tokens=self._work.batch_tokens)
        return shard, found.astype(np.float16), tokens.cut

    def _loaded(self) -> Encoder:
        work = self._work
        if not work.encoder_folder.is_dir():
            raise ConfigError(f"a node of the cluster has no encoder at {work.encoder_folder}; put it there, as here")
        threads = None if self._device == "cuda" else 1
        how: dict[str, Any] = {"device": self._device, "dtype": work.dtype, "backend": work.backend, "threads": threads}
        return Encoder(work.encoder_folder, work.spec, **how)


def _on_ray(slots: int, work: Work, shards: list[int], devices: list[str], progress: Progress) -> Iterator[Mark]:
    """Writes the vectors of each shard as they come.

    Raises ConfigError where Ray is missing, no cluster is there or more than one device is named; StepragError where a
    shard's processes die.
    """
    check_ray()
    import ray  # pyright: ignore[reportMissingImports]
    from ray.exceptions import RayActorError, RayTaskError  # pyright: ignore[reportMissingImports]
    from ray.util import ActorPool  # pyright: ignore[reportMissingImports]

    vectors = _writable(work)
    with cluster(slots), PassageStore(work.folder) as store:
        device = _device(devices, ray.cluster_resources())
        options: dict[str, Any] = {"num_cpus": 1, "num_gpus": int(device == "cuda"), "scheduling_strategy": "SPREAD",
                                   "max_restarts": -1, "max_task_retries": DEATHS - 1}  # fmt: skip
        kind: Any = ray.remote(EncodingSlot)
        actors = [kind.options(**options).remote(work, device) for _ in range(min(slots, len(shards)))]
        try:
            pool: Any = ActorPool(actors * AHEAD)
            for shard, found, cut in pool.map_unordered(
                lambda actor, shard: actor.encode.remote(shard, store.texts(range(*work.range(shard)), work.titles)),
                shards,
            ):
                progress.advance(len(found))
                yield _kept(work, vectors, shard, found, cut)
        except RayActorError:
            raise StepragError(f"an encoding process died {DEATHS} times over the same passages (out of memory? Ray's"
                               " logs say why); run the same command again to resume after the finished shards"
                               ) from None  # fmt: skip
        except RayTaskError as error:
            raise own_error(error) from None


def _device(devices: list[str], resources: Mapping[str, Any]) -> str:
    """cpu or cuda: what each process computes on."""
    device = ",".join(devices)
    if device == "auto":
        return "cuda" if resources.get("GPU") else "cpu"
    if device not in ("cpu", "cuda"):
        raise ConfigError(f"--device {device} with --ray: give cpu, cuda or auto; Ray gives each process a GPU")
    return device
