"""`steprag index build`: corpus to vectors to a FAISS index, in a folder that appears whole or not at all."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from filelock import FileLock, Timeout
from pydantic import Field

from indexes.bm25 import FOLDER as BM25
from indexes.bm25 import Bm25Config, add_bm25
from indexes.corpus import OFFSETS, PASSAGES, corpus_path, passage_text, read_corpus, write_passages
from indexes.encoders import EMBEDDED, Encoder, EncoderSpec, Overrides, find_encoder, read_spec
from indexes.links import add_links
from indexes.manifest import (
    FORMAT,
    INDEX,
    STAGE,
    CorpusFacts,
    IndexFacts,
    IndexManifest,
    file_facts,
    fingerprint,
    identity,
    read_index_manifest,
)
from steprag.cli import guarded
from steprag.config import Positive, StageConfig, add_options, config_from, parse_arguments
from steprag.errors import ConfigError
from steprag.files import dump_line, file_hash, to_dict, write_json
from steprag.progress import Progress, say
from steprag.runs import code_version
from steprag.types import Passage

SAMPLE = 100
"""Passages that serve as queries when recall and latency are measured."""
DEPTH = 10


class IndexConfig(StageConfig):
    encoder: str = Field(EMBEDDED, description="minilm, bge-base, …, a sentence-transformers folder, or a hub id")
    type: Literal["flat"] = Field("flat", description="FAISS index: flat is exact search")
    batch_size: Positive = Field(16, description="passages encoded at once; 256 suits a GPU")
    max_length: Positive | None = Field(None, description="tokens of a text that are read; none: as the model says")
    query_prefix: str | None = Field(None, description="words before every query; none: as the model says")
    passage_prefix: str | None = Field(None, description="words before every passage; none: as the model says")
    device: str = Field("auto", description="where passages are encoded: cpu, cuda, or auto")
    bm25: Bm25Config = Bm25Config()


@dataclass(frozen=True)
class Built:
    """An index folder and whether it was there already."""

    path: Path
    manifest: IndexManifest
    reused: bool


def build_index(corpus: str, out: Path, config: IndexConfig) -> Built:
    """Builds the index folder `out`, or finds it built from the same corpus, encoder and type.

    Raises ConfigError where `out` holds anything else, and DataError where the corpus is not in order; either way
    nothing is written.
    """
    source, out = corpus_path(corpus), out.expanduser().resolve()
    encoder_folder = find_encoder(config.encoder)
    overrides = Overrides(config.max_length, config.query_prefix, config.passage_prefix)
    encoder = read_spec(config.encoder, encoder_folder, overrides)
    index = IndexFacts(config.type, {})
    sha256 = file_hash(source) if source.is_file() else ""
    wanted = identity(sha256, encoder, index)
    if found := _existing(out, wanted):
        return Built(out, found, reused=True)
    passages = read_corpus(source)
    facts = CorpusFacts(corpus, sha256, len(passages))
    with _appearing(out) as folder:
        started, clock = _now(), time.monotonic()
        vectors = _encode(passages, encoder_folder, encoder, config)
        write_passages(folder, passages)
        measured = _write_index(folder / INDEX, vectors)
        manifest = IndexManifest(
            format=FORMAT,
            stage=STAGE,
            status="done",
            version=code_version(),
            started=started,
            ended=_now(),
            seconds=round(time.monotonic() - clock, 2),
            identity=wanted,
            config=config.model_dump(),
            encoder=encoder,
            metric="inner_product",
            corpus=facts,
            index=index,
            measured=measured,
            files={name: file_facts(folder / name) for name in (INDEX, PASSAGES, OFFSETS)},
            fingerprint=fingerprint(encoder, index, file_hash(folder / PASSAGES)),
        )
        write_json(folder / "manifest.json", to_dict(manifest))
    return Built(out, manifest, reused=False)


def _existing(out: Path, wanted: dict[str, Any]) -> IndexManifest | None:
    """The manifest of a finished index at `out` that is the wanted one; None where `out` is free."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    if not (out / "manifest.json").is_file():
        raise ConfigError(f"{out} exists and is no index folder; choose another --out")
    manifest = read_index_manifest(out)
    for part, value in wanted.items():
        if manifest.identity.get(part) != value:
            raise ConfigError(f"{out} holds an index of another {part}; choose another --out, or delete that folder")
    return manifest


@contextmanager
def _appearing(out: Path) -> Iterator[Path]:
    """A folder beside `out` that gets its name when the block ends well, and vanishes when it does not.

    What a killed build left behind is cleared by the next; a build that runs is left alone (ConfigError).
    """
    folder = out.parent / f".{out.name}.building"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make a folder beside {out}: {error.strerror or error}") from None
    lock = FileLock(folder / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise ConfigError(f"{out} is being built by another process; wait for it or choose another --out") from None
    finished = False
    try:
        for left in folder.iterdir():
            if left.name != ".lock":
                left.unlink()
        yield folder
        (folder / ".lock").unlink()
        _rename(folder, out)
        finished = True
    finally:
        if not finished:
            shutil.rmtree(folder, ignore_errors=True)
        lock.release()


def _rename(folder: Path, out: Path) -> None:
    try:
        folder.replace(out)
    except OSError as error:
        raise ConfigError(
            f"{out} appeared while its index was built ({error.strerror}); choose another --out"
        ) from None


def _encode(passages: Sequence[Passage], folder: Path, spec: EncoderSpec, config: IndexConfig) -> np.ndarray:
    say(f"index: {len(passages)} passages, loading encoder {spec.name}")
    encoder = Encoder(folder, spec, device=config.device)
    with Progress("encode", len(passages), "passages") as progress:
        texts = [passage_text(passage) for passage in passages]
        return encoder.encode_passages(texts, batch_size=config.batch_size, progress=progress.advance)


def _write_index(path: Path, vectors: np.ndarray) -> dict[str, Any]:
    """Writes the FAISS index and returns what was measured of it."""
    import faiss

    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)  # pyright: ignore[reportCallIssue] - the Python wrapper takes the array alone
    faiss.write_index(index, str(path))
    return measure(index, vectors)


def measure(index: Any, vectors: np.ndarray) -> dict[str, Any]:
    """Recall@10 against exact search and milliseconds a query, one query at a time, for sampled rows as queries.

    A found row counts where its exact score reaches the tenth best, so that ties cost nothing.
    """
    rows = np.random.default_rng(0).permutation(len(vectors))[:SAMPLE]
    depth = min(DEPTH, len(vectors))
    hits, seconds = 0, 0.0
    for row in rows:
        query = vectors[row : row + 1]
        start = time.perf_counter()
        _, found = index.search(query, depth)
        seconds += time.perf_counter() - start
        exact = vectors @ query[0]
        hits += int((exact[found[0][found[0] >= 0]] >= np.partition(exact, -depth)[-depth] - 1e-5).sum())
    return {
        "recall_at_10": round(hits / (len(rows) * depth), 4),
        "search_ms": round(1000 * seconds / len(rows), 3),
        "queries": len(rows),
    }


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _report(built: Built) -> dict[str, Any]:
    manifest = built.manifest
    return {
        "index": str(built.path),
        "reused": built.reused,
        "passages": manifest.corpus.rows,
        "encoder": manifest.encoder.name,
        "dimension": manifest.encoder.dimension,
        "fingerprint": manifest.fingerprint,
        "seconds": manifest.seconds,
        **dataclasses.asdict(manifest.index),
        **manifest.measured,
    }


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag index build", description="Builds an index folder from a corpus.")
    parser.add_argument("--corpus", required=True, help="JSON Lines file, plain or .gz, or the word atlas")
    parser.add_argument("--out", required=True, type=Path, help="the index folder to make")
    parser.add_argument("--hybrid", action="store_true", help="BM25 and title links too, for sparse and hybrid search")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    add_options(parser, IndexConfig)
    arguments = parse_arguments(parser, argv)
    config = config_from(IndexConfig, arguments)
    built = build_index(arguments.corpus, arguments.out, config)
    added = arguments.hybrid and any(
        [add_bm25(built.path, built.manifest, config.bm25), add_links(built.path, built.manifest)]
    )
    report = {**_report(built), "bm25": (built.path / BM25).exists()}
    if built.reused and not added:
        say(f"index: {built.path} holds this index already; nothing to do")
    if arguments.json:
        sys.stdout.write(dump_line(report) + "\n")
    else:
        sys.stdout.write("".join(f"{key:<13} {value}\n" for key, value in report.items()))
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
