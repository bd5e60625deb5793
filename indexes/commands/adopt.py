"""`steprag index adopt`: an index folder around a FAISS file that FlashRAG, Search-R1 or another program built.

Those programs leave no word of how they encoded, so the declared encoder is put to the test: sampled passages are
encoded again and must be what stands in their rows.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from indexes.commands.check import cosine_rows
from indexes.config import IndexConfig, chosen_encoder
from indexes.corpora.read_corpus import take_in
from indexes.corpora.readers import open_source
from indexes.encoding.embed import Encoder
from indexes.encoding.encoders import EncoderSpec
from indexes.folder.manifest import INDEX, CorpusFacts, IndexFacts, identity
from indexes.folder.sealing import Begun, Built, building, link, seal, shown
from indexes.rows.passage_store import PassageStore, passage_text
from indexes.vectors.index_types import ADOPTED, read_faiss
from steprag.config.load import add_options, config_from, parse_arguments
from steprag.console.progress import say
from steprag.console.terminal import guarded
from steprag.errors import ConfigError
from steprag.records.jsonl import existing

SAMPLE = 32
ALIKE = 0.995
"""Cosine that a row of a flat index must reach; fp16 and bfloat16 stay above it, another pooling far below."""
NEARER = 0.002
"""By how much another row may be nearer to a passage than its own: what rounding makes of near duplicates."""
FOUND = 0.9
"""Share of sampled passages that a compressed index must find among their own ten best."""


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
    from faiss import METRIC_INNER_PRODUCT

    say(f"index: {faiss_file} is read by FAISS's native code as it stands; adopt files of people you trust only")
    index = read_faiss(faiss_file, spec.dimension)
    if index.metric_type != METRIC_INNER_PRODUCT:
        raise ConfigError(
            f"{faiss_file} ranks by distance, not by inner product; build the index again from the corpus"
        )
    begun = Begun()
    corpus_hash = source.identity()
    with building(out, {"adopted": str(faiss_file.resolve()), "corpus": corpus_hash}) as folder:
        taken = take_in(source, folder, 0.0)
        if taken.rows != index.ntotal:
            raise ConfigError(f"{faiss_file} holds {index.ntotal} vectors, {corpus} {taken.rows} passages:"
                              " it was built from another corpus")  # fmt: skip
        checked = _check_encoder(index, folder, folder_of_encoder, spec)
        link(faiss_file, folder / INDEX)
        kind = type_of(index)
        facts = IndexFacts(kind, {} if kind == "flat" else {"class": type(index).__name__})
        wanted, stood = identity(corpus_hash, spec, facts), CorpusFacts(corpus, corpus_hash, taken.rows, taken.skipped)
        origin = f"{ADOPTED}: {faiss_file.name}"
        manifest = seal(
            folder, begun, wanted, spec, stood, facts, measured=checked, config=config.model_dump(), origin=origin
        )
    return Built(out, manifest, reused=False)


def type_of(index: Any) -> str:
    """flat for an exact fp32 index, whose vectors serve other types too; else adopted: opened as it is."""
    return "flat" if type(index).__name__ in ("IndexFlatIP", "IndexFlat") else ADOPTED


def _check_encoder(index: Any, folder: Path, encoder_folder: Path, spec: EncoderSpec) -> dict[str, Any]:
    """Encodes sampled passages again, with the title in quotation marks as FlashRAG's corpora have it and without,
    and looks for them in their rows. Raises ConfigError where neither is there.
    """
    rows = np.sort(np.random.default_rng(0).permutation(index.ntotal)[:SAMPLE])
    with PassageStore(folder) as store:
        passages = [store.read(int(row)) for row in rows]
    encoder = Encoder(encoder_folder, spec)
    compare = _compare_flat if type_of(index) == "flat" else _compare_found
    quoted = [passage_text(replace(passage, title=f'"{passage.title}"')) for passage in passages]
    plain = [passage_text(passage) for passage in passages]
    tried = [(compare(index, rows, encoder.encode_passages(texts)), spelling)
             for texts, spelling in ((quoted, "quoted"), (plain, "plain"))]  # fmt: skip
    (share, detail), spelling = max(tried, key=lambda each: each[0][0])
    if share < (1.0 if type_of(index) == "flat" else FOUND):
        raise ConfigError(f"{detail} by {spec.name} ({spec.pooling}); compare encoder, pooling (--pooling), prefixes,"
                          " length and corpus with those that built the file")  # fmt: skip
    return {"encoded_again": len(rows), "agreeing": round(share, 3), "titles": spelling}


def _compare_flat(index: Any, rows: np.ndarray, fresh: np.ndarray) -> tuple[float, str]:
    """The share of rows that are their passage's vector, which nothing else in the file is much nearer to."""
    stored = np.stack([index.reconstruct(int(row)) for row in rows])
    cosines, nearest = cosine_rows(fresh, stored), index.search(fresh, 1)[0][:, 0]
    alike = (cosines >= ALIKE) & ((fresh * stored).sum(axis=1) >= nearest - NEARER)
    worst = int(np.argmin(np.where(alike, 1.0, cosines)))
    return float(alike.mean()), f"row {rows[worst]} is not what is made of its passage (cosine {cosines[worst]:.3f})"


def _compare_found(index: Any, rows: np.ndarray, fresh: np.ndarray) -> tuple[float, str]:
    """The share of passages that find themselves among their ten best."""
    _, found = index.search(fresh, min(10, index.ntotal))
    share = float((found == rows[:, None]).any(axis=1).mean())
    return share, f"only {share:.0%} of sampled passages find themselves among their ten best when encoded"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="steprag index adopt", description="Makes an index folder of a FAISS file that another program built."
    )
    parser.add_argument("--faiss", required=True, help="the FAISS file, such as FlashRAG's e5_Flat.index")
    parser.add_argument("--corpus", required=True, help="the corpus it was built from, in the same order")
    parser.add_argument("--out", required=True, type=Path, help="the index folder to make")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    add_options(parser, IndexConfig)
    given = parse_arguments(parser, argv)
    built = adopt_index(existing(given.faiss, "FAISS file"), given.corpus, given.out, config_from(IndexConfig, given))
    sys.stdout.write(shown(built, as_json=given.json))
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
