"""`python -m indexes.index_builder`: FlashRAG's command line for an index, as `steprag index build` carries it out.

Its vectors are those of FlashRAG's own builder (flashrag.retriever.index_builder, 0.3): the same text of a passage, the
same pooling, cut and length. They are kept in half precision.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from indexes.commands.build import build_index
from indexes.config import IndexConfig
from indexes.encoding.encoders import NONE
from indexes.folder.manifest import INDEX
from indexes.folder.sealing import link, shown
from indexes.rows.passage_store import Titles
from indexes.vectors.index_types import TYPES
from steprag.config.load import load_config, parse_arguments
from steprag.console.progress import say
from steprag.console.terminal import guarded
from steprag.engines.pretrained import HUB_ID
from steprag.errors import ConfigError, quoted
from steprag.records.jsonl import existing
from steprag.records.rows import read_any_rows

FAISS = {"flat": "flat", "sqfp16": "flat-fp16"}
"""FAISS's words for index types, in lower case, and the type here that is the same."""
NEAREST = {"ivf": "ivf-sq8", "hnsw": "hnsw-sq8", "pq": "rabitq", "opq": "rabitq", "sq": "rabitq"}
"""What FAISS's other words begin with, and the type here that is next to it."""
NEEDLESS = {
    "batch_size": "batches are filled by tokens (steprag index build --batch_tokens)",
    "bm25_backend": "BM25 is ours; the formula is bm25s's",
    "save_embedding": "the vectors are always kept (vectors.faiss)",
    "faiss_gpu": "an exact index is the same from either; steprag index build --type gpu-flat searches on a GPU",
}
"""Flags that change nothing in the index, and why."""
REFUSED = {
    **dict.fromkeys(("n_postings", "centroid_fraction", "min_cluster_size", "summary_energy", "nknn",
                     "batched_indexing", "corpus_embedded_path"),
                    "is for SPLADE, which is not read; rank by words with steprag index build --hybrid"),
    "index_modal": "is for pictures, and passages here are text; leave it out",
    "embedding_path": "is a file of bare vectors; steprag index adopt takes the index that FlashRAG made of it",
}  # fmt: skip
"""Flags of what is not built here, and what to do instead."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m indexes.index_builder", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--retrieval_method", required=True, metavar="NAME", help="bge, e5, …; bm25: ranked by words")
    parser.add_argument("--model_path", metavar="MODEL", help="the encoder: a folder or a hub id [the method's]")
    parser.add_argument("--corpus_path", required=True, metavar="FILE", help="JSON Lines or Parquet with contents")
    parser.add_argument("--save_dir", default="indexes/", type=Path, metavar="DIR", help="gets the folder METHOD_TYPE")
    parser.add_argument("--use_fp16", action="store_true", help="encode in half precision")
    parser.add_argument("--max_length", default=180, type=int, metavar="N", help="tokens of a passage [180]")
    parser.add_argument("--pooling_method", metavar="cls|mean", help="how tokens are pooled [as the folder says]")
    parser.add_argument("--instruction", metavar="TEXT", help="words before queries and passages [by the method]")
    parser.add_argument("--faiss_type", default="Flat", metavar="TYPE", help="Flat, SQfp16, or one of index build")
    parser.add_argument("--sentence_transformer", action="store_true", help="pool as the folder's own modules do")
    for flag, why in {**NEEDLESS, **REFUSED}.items():
        parser.add_argument(f"--{flag}", nargs="?", const="", help="not needed" if flag in NEEDLESS else why)
    given = parse_arguments(parser, argv)
    for flag in (flag for flag in {**NEEDLESS, **REFUSED} if getattr(given, flag) is not None):
        if flag in REFUSED:
            raise ConfigError(f"--{flag} {REFUSED[flag]}")
        say(f"index: --{flag} is not needed: {NEEDLESS[flag]}")
    existing(given.corpus_path, "corpus")
    method, out = given.retrieval_method.lower(), given.save_dir
    config = load_config(IndexConfig, None, {"encoder": NONE} if method == "bm25" else _dense(method, given))
    name = method if method == "bm25" else f"{method}_{given.faiss_type}"
    built = build_index(given.corpus_path, out / name, config)
    if config.type == "flat" and config.encoder != NONE:
        link(built.path / INDEX, out / f"{name}.index")
        say(f"index: --index {out / name} here; FlashRAG's index_path is {out / name}.index")
    sys.stdout.write(shown(built, as_json=False))
    return 0


def _dense(method: str, given: argparse.Namespace) -> dict[str, object]:
    """The keys of `IndexConfig` that make FlashRAG's vectors. What it puts before passages goes by the method's name,
    and so does whether vectors have length 1; a folder without pooling of its own is pooled by mean.
    """
    encoder = _encoder(given.model_path or method)
    pooling = given.pooling_method
    if pooling is None and Path(encoder).is_dir() and not (Path(encoder) / "1_Pooling" / "config.json").is_file():
        pooling = "mean"
    words = f"{given.instruction.strip()} " if given.instruction is not None else None
    of_method = "passage: " if "e5" in method else ""
    return {
        "encoder": encoder,
        "type": _type(given.faiss_type),
        "pooling": None if given.sentence_transformer else pooling,
        "normalise": given.sentence_transformer or "dpr" not in method,
        "max_length": given.max_length,
        "passage_prefix": of_method if words is None else words,
        "dtype": "float16" if given.use_fp16 else "float32",
        "titles": _titles(Path(given.corpus_path)),
        **({} if words is None else {"query_prefix": words}),
    }


def _encoder(named: str) -> str:
    """The folder or the hub id; `/OWNER/NAME`, as ReasonRAG's page has it, is one too where no such folder is."""
    hub = named.strip("/")
    return hub if not Path(named).exists() and HUB_ID.fullmatch(hub) else named


def _type(named: str) -> str:
    """The index type by FAISS's word for it, or by our own. Raises ConfigError, with the nearest one of ours."""
    if (word := named.lower()) in FAISS or word in TYPES:
        return FAISS.get(word, word)
    near = next((ours for begins, ours in NEAREST.items() if word.startswith(begins)), "flat")
    raise ConfigError(f"--faiss_type {quoted(named)} has no twin here; give --faiss_type {near}, which is next to it,"
                      f" or one of {', '.join(TYPES)}")  # fmt: skip


def _titles(corpus: Path) -> Titles:
    """How FlashRAG's encoder reads the titles of a corpus, by its first row: `contents` as it stands, else `text`."""
    row = next((row for _, row in read_any_rows(corpus, [])), None)
    contents = row.get("contents") if isinstance(row, dict) else None
    if not isinstance(contents, str):
        return "omitted"
    return "quoted" if contents.lstrip().startswith('"') else "plain"


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
