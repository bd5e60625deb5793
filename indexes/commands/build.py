"""`steprag index build`: corpus to passages to vectors to an index, in a folder that appears whole or not at all.

Intake (`indexes.corpora.read_corpus`), encoding in shards (`indexes.encoding.shards`) and the index itself
(`indexes.vectors.index_types`) follow one another; each begins where a killed build left it. An index of another type
of the same corpus and encoder is built from the vectors that are there. An update of an index to what its corpus is now
reads changed documents alone, and takes over the vectors of passages that are the same.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from indexes.addons.bm25 import FOLDER as BM25
from indexes.addons.bm25 import add_bm25
from indexes.addons.links import FOLDER as LINKS
from indexes.addons.links import add_links
from indexes.config import IndexConfig, chosen_encoder
from indexes.corpora.read_corpus import Intake, ingest
from indexes.corpora.readers import Source, open_source
from indexes.encoding.again import check_known
from indexes.encoding.cut_passages import counted_cut, none_cut, said_cut, unknown_cut
from indexes.encoding.embed import Encoder
from indexes.encoding.encoders import NONE, EncoderSpec
from indexes.encoding.runtimes import check_backend, device_here
from indexes.encoding.shards import Work, encode_shards
from indexes.folder.manifest import (
    BUILT,
    INDEX,
    MEND,
    SPARSE,
    CorpusFacts,
    IndexFacts,
    IndexManifest,
    add_ons,
    identity,
    read_index_manifest,
)
from indexes.folder.sealing import Begun, Built, building, link, restore, seal, shown
from indexes.rows.passage_store import (
    DOCUMENTS,
    OFFSETS,
    PASSAGES,
    SKIPPED,
    PassageStore,
    passage_text,
    write_passages,
)
from indexes.rows.vector_file import VECTORS, VectorFile
from indexes.vectors.gpu import gpu_faiss
from indexes.vectors.index_types import TYPES, build_type, check_type, requested
from indexes.vectors.recall import make_probe
from steprag.config.load import add_options, config_from, parse_arguments
from steprag.config.recipes import RUNS, stem_of
from steprag.console.progress import say, say_next
from steprag.console.terminal import guarded
from steprag.errors import ConfigError, quoted
from steprag.records.inputs import read_questions
from steprag.records.jsonl import existing, read_json, write_json
from steprag.records.sealed import check_files
from steprag.runs.run import as_noted

INTAKE = "intake.json"
FRESH = "fresh"
"""While an index is updated: the folder of the passages that are encoded."""
QUERIES = 500
"""Questions that are measured at most."""
LATE = ("config_hash",)
"""Of an encoder's identity: what earlier versions did not note (`indexes.encoding.again.check_known`)."""
PLAIN = {"dtype": "float32", "backend": "torch", "titles": "plain"}


@dataclass(frozen=True)
class _Order:
    """What is to be built: `wanted` is the identity of the result."""

    source: Source
    encoder_folder: Path
    spec: EncoderSpec
    config: IndexConfig
    wanted: dict[str, Any]


def build_index(
    corpus: str, out: Path, config: IndexConfig, vectors_from: Path | None = None, *, hybrid: bool = False,
    update: bool = False,
) -> Built:  # fmt: skip
    """Builds the index folder `out`, or finds it built from the same corpus, encoder and type.

    `hybrid` adds BM25 and title links; one of documents, or without vectors, has BM25 anyway. An index of the same
    corpus and encoder but of another type, at `out` or at `vectors_from`, gives its vectors. `update`:
    so does an index of the corpus as it was, at `out`, to passages that are the same; BM25 and links are built anew.
    Raises ConfigError where `out` holds anything else, and DataError where the corpus is not in order; either way
    `out` is as before. A build that is killed goes on when it is started again.
    """
    out = out.expanduser().resolve()
    restore(out)
    order = _order(corpus, config, out)
    there = _existing(out, order, update)
    reused = there is not None and there.identity == as_noted(order.wanted, there.identity, LATE)
    if there is not None and reused:
        return Built(out, there, True, _add_ons(out, there, order, hybrid))
    kept = tuple(add_ons(out)) if update and there is not None else ()
    manifest = _build(order, out, there, vectors_from, kept)
    return Built(out, manifest, False, (*kept, *_add_ons(out, manifest, order, hybrid)))


def _add_ons(folder: Path, manifest: IndexManifest, order: _Order, hybrid: bool) -> tuple[str, ...]:
    """Adds what is wanted and not there; returns the names of what was added."""
    added: list[str] = []
    wanted = hybrid or not manifest.encoder.dense
    cheap = order.source.documents is not None and BM25 not in add_ons(folder)  # a document takes far longer to read
    if (wanted or cheap) and add_bm25(folder, manifest, order.config.bm25):
        added.append(BM25)
    if hybrid and add_links(folder, manifest):
        added.append(LINKS)
    return tuple(added)


def _build(
    order: _Order, out: Path, older: IndexManifest | None, vectors_from: Path | None, kept: tuple[str, ...]
) -> IndexManifest:
    """Builds `out`, where an `older` index of another type or of the corpus as it was may stand; returns the manifest
    as written. `kept`: BM25 and links, which the index appears with.
    """
    config = order.config
    if vectors_from and not order.spec.dense:
        raise ConfigError(f"--vectors_from gives vectors, and --encoder {NONE} wants none; leave one of them out")
    giver = out if older else existing(vectors_from, "index folder") if vectors_from else None
    state = {key: order.wanted[key] for key in ("corpus", "encoder")}
    state |= config.model_dump(include={"dtype", "backend", "batch_tokens", "shard_rows", "max_skipped"})
    state |= _arithmetic(config)
    begun = Begun()
    updated = older is not None and older.identity.get("corpus") != order.wanted["corpus"]
    if older and updated:
        state["updated"], giver = older.fingerprint, None
        check_files(out, older.files, MEND, full=True)
    with building(out, state) as folder:
        taken = _given(order, folder, giver) if giver else _taken_in(order, folder, out if updated else None)
        facts, measured = _indexed(order, folder, taken) if order.spec.dense else (IndexFacts(SPARSE, {}), {})
        stood = CorpusFacts(order.source.name, order.wanted["corpus"], *vars(taken).values())
        origin = read_index_manifest(giver).origin if giver else BUILT
        told = config.model_dump()
        manifest = seal(
            folder, begun, order.wanted, order.spec, stood, facts, measured=measured, config=told, origin=origin
        )
        if not order.spec.dense or BM25 in kept:
            add_bm25(folder, manifest, config.bm25)  # an index of BM25 alone appears with it, or not at all
        if LINKS in kept:
            add_links(folder, manifest)
    return manifest


def _order(corpus: str, config: IndexConfig, out: Path) -> _Order:
    if not config.ray and config.encoder != NONE:
        for device in config.device.split(","):
            device_here(device, config.dtype)
    if TYPES[config.type].gpu:
        gpu_faiss(config.type)
    source = open_source(corpus, config.documents, out)
    folder, spec = chosen_encoder(config)
    if not spec.dense:
        if config.type != "flat":
            raise ConfigError(f"--type {config.type} is a type of vectors, and --encoder {NONE} makes none")
        return _Order(source, folder, spec, config, identity(source.identity(), spec, IndexFacts(SPARSE, {})))
    check_backend(config.backend)
    asked = requested(config.type, config.ann)
    asked.parameters.update(_arithmetic(config))
    return _Order(source, folder, spec, config, identity(source.identity(), spec, asked))


def _arithmetic(config: IndexConfig) -> dict[str, str]:
    """What made the vectors, where it was not PyTorch in float32 of plain titles: part of what an index is."""
    made = {key: str(getattr(config, key)) for key in PLAIN}
    return {key: value for key, value in made.items() if value != PLAIN[key]}


def _existing(out: Path, order: _Order, update: bool) -> IndexManifest | None:
    """The manifest of the index at `out`, whose corpus and encoder are those wanted, but for the corpus where it is an
    `update`; None where `out` is free.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    if not (out / "manifest.json").is_file():
        raise ConfigError(f"{out} exists and is no index folder; choose another --out")
    manifest = read_index_manifest(out)
    remedy = "choose another --out, or delete that folder"
    if not update:
        _check_corpus(out, manifest, order.wanted, f"--update brings it up to date with this one, or {remedy}")
    _check_reused(out, manifest, order, remedy)
    return manifest


def _check_corpus(folder: Path, manifest: IndexManifest, wanted: dict[str, Any], remedy: str) -> None:
    if manifest.identity.get("corpus") != wanted["corpus"]:
        raise ConfigError(f"{folder} holds an index of another corpus; {remedy}")


def _check_reused(folder: Path, manifest: IndexManifest, order: _Order, remedy: str) -> None:
    """Raises ConfigError where the folder's vectors are not those that are wanted. Queries' prefixes are in none."""
    wanted, made = as_noted(order.wanted, manifest.identity, LATE), manifest.identity.get("encoder", {})
    differing = next((key for key, value in wanted["encoder"].items()
                      if key != "query_prefix" and made.get(key) != value), None)  # fmt: skip
    if differing is not None:
        raise ConfigError(f"{folder} holds an index of another encoder ({differing}: {quoted(made.get(differing))}, not"
                          f" {quoted(wanted['encoder'][differing])}); {remedy}")  # fmt: skip
    for key, plain in PLAIN.items():
        here, asked = (facts["parameters"].get(key, plain) for facts in (manifest.identity["index"], wanted["index"]))
        if here != asked:
            raise ConfigError(f"{folder} holds vectors encoded in {here}{' titles' * (key == 'titles')}; {remedy}")
    if manifest.encoder.dense and not manifest.encoder.config_hash:
        check_known(folder, manifest, Encoder(order.encoder_folder, order.spec))


def _taken_in(order: _Order, folder: Path, older: Path | None) -> Intake:
    """Passages of the corpus and their vectors, as far as they are not there already, or in an `older` index."""
    config = order.config
    if (folder / INTAKE).is_file():
        taken = Intake(**read_json(folder / INTAKE))
    else:
        taken = ingest(order.source, folder, config.max_skipped)
        write_json(folder / INTAKE, dataclasses.asdict(taken))
    if order.spec.dense:
        check_type(config.type, taken.rows, order.spec.dimension, config.ann)
        how = config.shard_rows, config.batch_tokens, config.dtype, config.backend, config.titles
        work = Work(folder, order.encoder_folder, order.spec, taken.rows, *how)
        if older and (older / VECTORS).is_file():
            cut = _carry_over(older, work, config)
        else:
            cut = encode_shards(work, config.device.split(",") * config.processes, config.ray)
        taken.left_out.extend(said_cut(cut, taken.rows, order.spec, order.source.name))
    return taken


def _carry_over(older: Path, work: Work, config: IndexConfig) -> int:
    """Lays out the vectors of all passages: those that an older index has, and the others, which are encoded. Returns
    how many passages are longer than what the encoder reads.
    """
    cut = 0
    with PassageStore(older) as before, PassageStore(work.folder) as store:
        rows = {key: row for row, key in enumerate(_hashes(before))}
        known = np.array([rows.get(key, -1) for key in _hashes(store)])
        is_fresh = known < 0
        fresh = np.flatnonzero(is_fresh)
        say(f"index: {len(known) - len(fresh):,} of {len(known):,} passages have their vectors already")
        parts = [VectorFile(older / VECTORS, len(before), work.spec.dimension)]
        if len(fresh):
            (work.folder / FRESH).mkdir(exist_ok=True)
            write_passages(work.folder / FRESH, map(store.read, fresh.tolist()))
            part = dataclasses.replace(work, folder=work.folder / FRESH, rows=len(fresh))
            cut = encode_shards(part, config.device.split(",") * config.processes, config.ray)
            parts.append(VectorFile(part.folder / VECTORS, len(fresh), work.spec.dimension))
        if not none_cut(read_index_manifest(older)):
            encoder = Encoder(work.encoder_folder, work.spec)
            cut += counted_cut(encoder, store, np.flatnonzero(~is_fresh), work.titles)
    known[fresh] = np.arange(len(fresh))
    vectors = VectorFile.create(work.folder / VECTORS, work.rows, work.spec.dimension)
    for start in range(0, work.rows, config.shard_rows):
        block = slice(start, start + config.shard_rows)
        values = np.empty((len(known[block]), work.spec.dimension), dtype=np.float32)
        for number, part in enumerate(parts):
            here = is_fresh[block] == bool(number)
            values[here] = part.take(known[block][here])
        vectors.write(start, values)
    return cut


def _hashes(store: PassageStore) -> Iterator[bytes]:
    """Of what the encoder reads of each passage."""
    for row in range(len(store)):
        yield hashlib.blake2b(passage_text(store.read(row)).encode(), digest_size=16).digest()


def _indexed(order: _Order, folder: Path, taken: Intake) -> tuple[IndexFacts, dict[str, Any]]:
    """Builds the index of the wanted type from the vectors; returns its parameters and what was measured of it."""
    config = order.config
    vectors = VectorFile(folder / VECTORS, taken.rows, order.spec.dimension)
    probe = make_probe(vectors, _questions(order))
    if config.type != "flat":
        say(f"index: building {config.type}, measured against exact search")
    facts, measured = build_type(config.type, folder, vectors, config.ann, probe)
    facts.parameters.update(_arithmetic(config))
    return facts, dataclasses.asdict(measured)


def _given(order: _Order, folder: Path, giver: Path) -> Intake:
    """Passages and vectors of another index of the same corpus and encoder, under a second name."""
    manifest = read_index_manifest(giver)
    _check_corpus(giver, manifest, order.wanted, "its vectors are of no use here")
    _check_reused(giver, manifest, order, "its vectors are of no use here")
    rows = manifest.corpus.rows
    check_type(order.config.type, rows, order.spec.dimension, order.config.ann)
    say(f"index: the vectors of {giver} are taken; nothing is encoded")
    check_files(giver, manifest.files, MEND, full=True)
    for name in (PASSAGES, OFFSETS, SKIPPED, VECTORS, DOCUMENTS):
        if (giver / name).is_file():
            link(giver / name, folder / name)
    for name in add_ons(giver):
        shutil.copytree(giver / name, folder / name, copy_function=link, dirs_exist_ok=True)
    if VECTORS not in manifest.files:
        _halved(giver, manifest, folder)
    stood = manifest.corpus
    left_out = stood.left_out if manifest.encoder.config_hash else [*stood.left_out, unknown_cut(stood.path)]
    return Intake(rows, stood.skipped, stood.parts, left_out)


def _halved(giver: Path, manifest: IndexManifest, folder: Path) -> None:
    """The fp16 vectors of a flat fp32 index, as earlier versions and other programs leave it without them."""
    if manifest.index.type != "flat":
        raise ConfigError(f"{giver} has no {VECTORS}, and its type {manifest.index.type} does not keep them exactly;"
                          " build the index again")  # fmt: skip
    rows, dimension = manifest.corpus.rows, manifest.encoder.dimension
    VectorFile(giver / INDEX, rows, dimension, np.float32).copy(folder / VECTORS, np.float16)


def _questions(order: _Order) -> np.ndarray | None:
    """Vectors of the questions that are to be measured; None where passages are."""
    if order.config.queries is None:
        return None
    questions = [question.question for question in read_questions(order.config.queries)]
    picked = np.random.default_rng(0).permutation(len(questions))[:QUERIES]
    return Encoder(order.encoder_folder, order.spec).encode_queries([questions[row] for row in picked])


def default_index(corpus: str, config: IndexConfig) -> Path:
    """runs/index-NAME of the corpus, with a number behind it where that name is another corpus's."""
    source = open_source(corpus, config.documents).name
    names = (f"{RUNS}/index-{stem_of(corpus)}{f'-{number}' * (number > 1)}" for number in count(1))
    return next(
        Path(name) for name in names
        if not Path(name, "manifest.json").is_file() or read_index_manifest(Path(name)).corpus.path == source
    )  # fmt: skip


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag index build", description="Builds an index folder from a corpus.")
    parser.add_argument(
        "--corpus",
        required=True,
        help="a folder of documents (PDF, DOCX, PPTX, ODT, EPUB, HTML, Markdown, text), or one; JSON Lines, an array, a"
        " table with tabs or Parquet, or a folder of them; a Wikipedia dump (.xml.bz2), hub:OWNER/NAME, the word atlas",
    )
    told = "the index folder to make, or to give another type [runs/index-CORPUS]"
    parser.add_argument("--out", type=Path, metavar="DIR", help=told)
    parser.add_argument("--vectors_from", type=Path, metavar="DIR", help="take the vectors of this index folder")
    parser.add_argument("--update", action="store_true", help="bring the index at --out up to date with its corpus")
    parser.add_argument("--hybrid", action="store_true", help="BM25 and title links too, for sparse and hybrid search")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    add_options(parser, IndexConfig)
    arguments = parse_arguments(parser, argv)
    config = config_from(IndexConfig, arguments)
    hybrid, update, out = arguments.hybrid, arguments.update, arguments.out or default_index(arguments.corpus, config)
    built = build_index(arguments.corpus, out, config, arguments.vectors_from, hybrid=hybrid, update=update)
    if built.reused and not built.added:
        say(f"index: {built.path} holds this index already; nothing to do")
    sys.stdout.write(shown(built, as_json=arguments.json))
    say_next("serve", built.path)
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
