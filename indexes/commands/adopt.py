"""`steprag index adopt`: an index folder around a FAISS file that FlashRAG, Search-R1 or another program built.

Those programs leave no word of how they encoded, so the declared encoder is put to the test: sampled passages are
encoded again and must be what stands in their rows. Their direction is compared, not their rank: of vectors that have
lengths of their own, another can have the greater inner product.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from indexes.commands.build import default_index
from indexes.config import IndexConfig, chosen_encoder
from indexes.corpora.read_corpus import ingest
from indexes.corpora.readers import open_source
from indexes.encoding.embed import Encoder
from indexes.encoding.encoders import POOLINGS, EncoderSpec, describe
from indexes.folder.manifest import INDEX, CorpusFacts, IndexFacts, identity
from indexes.folder.sealing import Begun, Built, building, link, seal, shown
from indexes.rows.passage_store import SPELLINGS, PassageStore, passage_text
from indexes.vectors.adopted import L2, ids_are_rows, keeps_vectors, stored_vectors
from indexes.vectors.index_types import ADOPTED, read_faiss
from steprag.config.load import add_options, config_from, parse_arguments
from steprag.console.progress import say, say_next
from steprag.errors import ConfigError, quoted
from steprag.records.jsonl import existing, read_lines
from steprag.types import Passage

SAMPLE = 32
ALIKE = 0.995
"""Cosine that a row must reach where the file keeps vectors as they are; fp16 and bfloat16 stay above it, another
pooling far below.
"""
NEARER = 0.002
"""By how much another sampled row may be nearer to a passage than its own: what rounding makes of near duplicates."""
FOUND = 0.9
"""Share of sampled passages that a compressed index must find among their own ten best."""
_PART = re.compile(r"(?P<whole>.*?)(?P<mark>[._-]?part[._-]?)(?P<number>[a-z]{2}|\d{1,4})", re.IGNORECASE)
"""Name of a part of a file that was split, as the hub's large indexes are: `e5_Flat.index.part.00`, `part_aa`."""


def adopt_index(faiss_file: Path, corpus: str, out: Path, config: IndexConfig) -> Built:
    """Makes the index folder `out` of a FAISS file and the corpus that it was built from, row by row.

    Raises ConfigError where the encoder is not the one, or rows and corpus do not agree; nothing is written then.
    """
    out = out.expanduser().resolve()
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"{out} exists already; choose another --out")
    source = open_source(corpus)
    folder_of_encoder, spec = chosen_encoder(config)
    if not spec.dense:
        raise ConfigError("a FAISS file holds vectors; say with --encoder what made them")
    say(f"index: {faiss_file} is read by FAISS's native code as it stands; adopt files of people you trust only")
    index = _opened(faiss_file, spec)
    describe(spec)
    begun = Begun()
    corpus_hash = source.identity()
    with building(out, {"adopted": str(faiss_file.resolve()), "corpus": corpus_hash}) as folder:
        taken = ingest(source, folder, 0.0, keep_empty=True)
        if taken.rows != index.ntotal:
            raise ConfigError(f"{faiss_file} holds {index.ntotal} vectors, {corpus} {taken.rows} passages:"
                              " it was built from another corpus")  # fmt: skip
        _check_order(faiss_file, folder)
        sample = _sample(folder, index)
        facts = _facts(faiss_file, sample)
        checked = _check_encoder(sample, folder_of_encoder, spec)
        link(faiss_file, folder / INDEX)
        wanted, stood = identity(corpus_hash, spec, facts), CorpusFacts(corpus, corpus_hash, taken.rows, taken.skipped)
        origin = f"{ADOPTED}: {faiss_file.name}"
        manifest = seal(
            folder, begun, wanted, spec, stood, facts, measured=checked, config=config.model_dump(), origin=origin
        )
    return Built(out, manifest, reused=False)


def _check_order(file: Path, folder: Path) -> None:
    """Raises ConfigError where the list of ids that Pyserini writes beside its file (`docid`) is not the corpus's."""
    listed = file.with_name("docid")
    if not listed.is_file():
        return
    ids = [id for _, id in read_lines(listed)]
    with PassageStore(folder) as store:
        passages = map(store.read, range(len(store)))
        pairs = ((row, one.id, ids[row : row + 1]) for row, one in enumerate(passages) if one.text)
        if other := next(((row, own, told) for row, own, told in pairs if told != [own]), None):
            row, own, told = other
            raise ConfigError(f"{listed} names {quoted(''.join(told))} for row {row}, and the corpus has {quoted(own)}"
                              " there: give the corpus in the order of that list")  # fmt: skip


def check_whole(file: Path) -> None:
    """Raises ConfigError, with what joins them, for a part of a split file, a folder of parts, and a file that is there
    in parts only.
    """
    folder = file if file.is_dir() else file.parent
    beside = sorted(folder.iterdir()) if folder.is_dir() and not file.is_file() else []
    for part in [file, *beside]:
        found = _PART.fullmatch(part.name)
        if found and (part == file or file.is_dir() or found["whole"] in ("", file.name)):
            parts = shlex.quote(str(part.with_name(found["whole"] + found["mark"])))
            whole = shlex.quote(str(part.with_name(found["whole"] or "whole.index")))
            raise ConfigError(f"{part} is one part of a FAISS file that was split; join them and give the whole file:"
                              f" cat {parts}* > {whole}")  # fmt: skip


def _opened(file: Path, spec: EncoderSpec) -> Any:
    """The FAISS index of a file. Raises ConfigError for one that has another dimension, metric, or ids of its own."""
    from faiss import METRIC_INNER_PRODUCT, METRIC_L2

    index = read_faiss(file, None)
    if index.d != spec.dimension:
        raise ConfigError(f"{file} holds vectors of {index.d} dimensions, encoder {spec.name} makes {spec.dimension};"
                          " give the encoder that made the file")  # fmt: skip
    if index.metric_type not in (METRIC_INNER_PRODUCT, METRIC_L2):
        raise ConfigError(f"{file} ranks by FAISS's metric {index.metric_type}, neither by inner product nor by"
                          " distance; build the index again from the corpus")  # fmt: skip
    if not ids_are_rows(index):
        raise ConfigError(f"{file}: its ids are no row numbers of the corpus (0 to {index.ntotal - 1});"
                          " add the vectors again in the corpus's order, without ids")  # fmt: skip
    return index


@dataclass(frozen=True)
class _Sample:
    """Rows of an index, their passages, and (rows, dimension) vectors where the file gives them back."""

    index: Any
    rows: np.ndarray
    passages: list[Passage]
    stored: np.ndarray | None


def _sample(folder: Path, index: Any) -> _Sample:
    """Up to SAMPLE rows at random, but for those without text."""
    picked: list[tuple[int, Passage]] = []
    with PassageStore(folder) as store:
        for row in np.random.default_rng(0).permutation(index.ntotal).tolist():
            if (passage := store.read(row)).text:
                picked.append((row, passage))
            if len(picked) == SAMPLE:
                break
    if not picked:
        raise ConfigError("the corpus has no passage with text")
    picked.sort(key=lambda pair: pair[0])
    rows = np.array([row for row, _ in picked], dtype=np.int64)
    return _Sample(index, rows, [passage for _, passage in picked], stored_vectors(index, rows))


def _facts(file: Path, sample: _Sample) -> IndexFacts:
    """flat for an exact fp32 index, whose vectors serve other types too; else adopted: opened as it is.

    Raises ConfigError for distances between vectors that are not of length 1: they are not the cosine's order.
    """
    from faiss import METRIC_L2

    name = type(sample.index).__name__
    if sample.index.metric_type != METRIC_L2:
        return IndexFacts("flat", {}) if name in ("IndexFlatIP", "IndexFlat") else IndexFacts(ADOPTED, {"class": name})
    allowed = 0.01 if keeps_vectors(sample.index) else 0.2  # compression shortens vectors
    if sample.stored is None or np.abs(np.linalg.norm(sample.stored, axis=1) - 1).max() > allowed:
        raise ConfigError(f"{file} ranks by distance, and its vectors are not of length 1, so not as the cosine does;"
                          " build the index again from the corpus")  # fmt: skip
    return IndexFacts(ADOPTED, {"class": name, "metric": L2})


def _check_encoder(sample: _Sample, folder: Path, spec: EncoderSpec) -> dict[str, Any]:
    """Encodes the sampled passages again, in every spelling of the title, and looks for them in their rows.

    Raises ConfigError where none is there, with the pooling or prefix that would fit.
    """
    encoder = Encoder(folder, spec)
    agrees, share, detail, spelling = _agreement(sample, encoder)
    if not agrees:
        raise ConfigError(f"{detail} by {spec.name} ({spec.pooling}); {_remedy(sample, folder, spec)}")
    told = {"encoded_again": len(sample.rows), "agreeing": round(share, 3), "titles": spelling}
    if cut := encoder.tokenise([passage_text(each, SPELLINGS[spelling]) for each in sample.passages]).cut:
        say(f"index: {cut} of {len(sample.rows)} sampled passages are longer than the encoder's {spec.max_length}"
            " tokens; the rest of such passages cannot be found by vectors")  # fmt: skip
        told["longer_than_read"] = cut
    return told


def _remedy(sample: _Sample, folder: Path, spec: EncoderSpec) -> str:
    """What would make the encoder fit: tried one after another."""
    others = {f"--pooling {mode}": {"pooling": mode} for mode in POOLINGS.values() if mode != spec.pooling}
    others |= {f"--passage_prefix '{prefix}'": {"passage_prefix": prefix}
               for prefix in ("", "passage: ") if prefix != spec.passage_prefix}  # fmt: skip
    if "+" not in spec.pooling and sample.stored is not None:
        for option, values in others.items():
            if _agreement(sample, Encoder(folder, replace(spec, **values)))[0]:
                return f"the encoder is right with {option}"
    return "no other pooling fits: another encoder, prefix, length (--max_length) or corpus made the file"


def _agreement(sample: _Sample, encoder: Encoder) -> tuple[bool, float, str, str]:
    """Of the best spelling of titles: whether enough rows agree, their share, what is wrong, and its name."""
    texts = {name: [passage_text(each, titles) for each in sample.passages] for name, titles in SPELLINGS.items()}
    tried = [(*_compared(sample, encoder.encode_passages(spelt)), name) for name, spelt in texts.items()]
    return max(tried, key=lambda each: each[:2])


def _compared(sample: _Sample, fresh: np.ndarray) -> tuple[bool, float, str]:
    """Whether enough rows are their passage's vector (of a compressed file FOUND), their share, and what is wrong."""
    cosines = None if sample.stored is None else _unit(fresh) @ _unit(sample.stored).T
    if cosines is not None:
        own = np.diagonal(cosines)
        alike = (own >= ALIKE) & (own >= cosines.max(axis=1) - NEARER)
        if alike.all() or keeps_vectors(sample.index):
            worst = int(np.argmin(np.where(alike, 1.0, own)))
            made = f"row {sample.rows[worst]} is not what is made of its passage (cosine {own[worst]:.3f})"
            return bool(alike.all()), float(alike.mean()), made
    if cosines is not None and not np.allclose(np.linalg.norm(fresh, axis=1), 1, atol=0.01):
        found = cosines.argmax(axis=1) == np.arange(len(fresh))
    else:
        rows = sample.index.search(fresh, min(10, sample.index.ntotal))[1]
        found = (rows == sample.rows[:, None]).any(axis=1)
    share = float(found.mean())
    said = f"only {share:.0%} of sampled passages find themselves among their ten best when encoded"
    return share >= FOUND, share, said


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="steprag index adopt", description="Makes an index folder of a FAISS file that another program built."
    )
    parser.add_argument("--faiss", required=True, help="the FAISS file, such as FlashRAG's e5_Flat.index")
    parser.add_argument("--corpus", required=True, help="the corpus it was built from, in the same order")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the index folder to make [runs/index-CORPUS]")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    add_options(parser, IndexConfig)
    given = parse_arguments(parser, argv)
    check_whole(Path(given.faiss).expanduser())
    config, faiss = config_from(IndexConfig, given), existing(given.faiss, "FAISS file")
    built = adopt_index(faiss, given.corpus, given.out or default_index(given.corpus, config), config)
    sys.stdout.write(shown(built, as_json=given.json))
    say_next("serve", built.path)
    return 0
