"""Encoding in shards: a killed build goes on behind its last finished shard, and gives the same bytes.

A shard is a range of rows. Its texts are batched among themselves, so its vectors depend on nothing outside it. Rows
are on the disk before the shard's mark is, and a mark holds the hash of what it stands for.
"""

from __future__ import annotations

import hashlib
import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import cache, partial
from itertools import islice
from queue import Queue
from typing import Any

from indexes.corpora.passage_store import PassageStore
from indexes.encoding.embed import Encoder, Tokens
from indexes.encoding.work import MARKS, Mark, Work
from indexes.vectors.vector_file import VECTORS, VectorFile
from steprag.errors import StepragError
from steprag.files import LineJournal, read_rows
from steprag.progress import Progress, say


def encode_shards(work: Work, devices: list[str], slots: int = 0) -> int:
    """Encodes what is not encoded yet into `vectors.faiss`; returns how many shards were there already.

    One device encodes in this process; several have a process each. With `slots`, so many processes of a Ray cluster
    encode, each on a device of that name.
    """
    done = _finished(work)
    missing = [shard for shard in range(work.shards) if shard not in done]
    ready = work.rows - sum(end - start for start, end in map(work.range, missing))
    if done:
        say(f"index: {len(done)} of {work.shards} shards are encoded already")
    if missing:
        say(f"index: {work.rows} passages, loading encoder {work.spec.name}")
        run = partial(_on_ray, slots) if slots else _here if len(devices) == 1 else _in_processes
        with (
            Progress("encode", work.rows, "passages", ready) as progress,
            LineJournal(work.folder / MARKS) as marks,
        ):
            for mark in run(work, missing, devices, progress):
                marks.append(mark)
    return len(done)


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
    marked = [Mark(row["shard"], row["sha256"]) for _, row in read_rows(marks)]
    return {mark.shard for mark in marked if _hash(vectors.stored(*work.range(mark.shard))) == mark.sha256}


def _hash(stored: bytes) -> str:
    return hashlib.sha256(stored).hexdigest()


def _here(work: Work, shards: list[int], devices: list[str], progress: Progress) -> Iterator[Mark]:
    yield from _encoded(work, shards, devices[0], progress.advance)


def _on_ray(slots: int, work: Work, shards: list[int], devices: list[str], progress: Progress) -> Iterator[Mark]:
    from indexes.encoding.ray_shards import on_ray

    vectors = VectorFile(work.folder / VECTORS, work.rows, work.spec.dimension, write=True)
    with PassageStore(work.folder) as store:
        for shard, found in on_ray(work, shards, devices, slots, lambda shard: store.texts(range(*work.range(shard)))):
            stored = vectors.write(work.range(shard)[0], found)
            vectors.release()
            progress.advance(len(found))
            yield Mark(shard, _hash(stored))


def _encoded(
    work: Work, shards: Iterable[int], device: str, advance: Callable[[int], None] | None = None
) -> Iterator[Mark]:
    """Encodes shards one after another; the next one's tokens are made while this one is in the model."""
    encoder = Encoder(work.encoder_folder, work.spec, device=device, dtype=work.dtype, backend=work.backend)
    vectors = VectorFile(work.folder / VECTORS, work.rows, work.spec.dimension, write=True)
    with PassageStore(work.folder) as store, ThreadPoolExecutor(1, thread_name_prefix="tokeniser") as ahead:

        def prepared(shard: int) -> tuple[list[str], Tokens | None]:
            texts = store.texts(range(*work.range(shard)))
            return texts, encoder.tokenise(texts)

        waiting: Queue[tuple[int, Future[tuple[list[str], Tokens | None]]]] = Queue()
        for shard in shards:
            waiting.put((shard, ahead.submit(prepared, shard)))
            if waiting.qsize() > 1:
                yield _stored(work, encoder, vectors, *waiting.get(), advance)
        while not waiting.empty():
            yield _stored(work, encoder, vectors, *waiting.get(), advance)


def _stored(
    work: Work, encoder: Encoder, vectors: VectorFile, shard: int,
    prepared: Future[tuple[list[str], Tokens | None]], advance: Callable[[int], None] | None,
) -> Mark:  # fmt: skip
    texts, tokens = prepared.result()
    found = encoder.encode_tokens(texts, tokens, batch_tokens=work.batch_tokens, progress=advance)
    stored = vectors.write(work.range(shard)[0], found)
    vectors.release()
    return Mark(shard, _hash(stored))


_given: tuple[Work, str]
"""In a process of its own: the work, and the process's device."""


def _start(work: Work, devices: Any) -> None:
    """A process begins: it takes a device. What loading raises here would end the pool without its reason."""
    global _given
    _given = work, devices.get()


@cache
def _encode_one() -> Callable[[int], Mark]:
    """Encodes a shard with the encoder that this process loads at the first call."""
    work, device = _given
    encoder = Encoder(work.encoder_folder, work.spec, device=device, dtype=work.dtype, backend=work.backend)
    vectors = VectorFile(work.folder / VECTORS, work.rows, work.spec.dimension, write=True)
    store = PassageStore(work.folder)

    def encode_one(shard: int) -> Mark:
        texts = store.texts(range(*work.range(shard)))
        ready: Future[tuple[list[str], Tokens | None]] = Future()
        ready.set_result((texts, encoder.tokenise(texts)))
        return _stored(work, encoder, vectors, shard, ready, None)

    return encode_one


def _run(shard: int) -> Mark:
    return _encode_one()(shard)


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
                               " run the same command again to go on behind the finished shards") from None  # fmt: skip
