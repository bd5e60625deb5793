"""The sparse ranking of an index folder: BM25, or a BGE-M3's weights of tokens in its place. One at most."""

from __future__ import annotations

from pathlib import Path

from indexes.addons.bge_m3 import FOLDER as LEXICAL
from indexes.addons.bge_m3 import LexicalConfig, LexicalSearcher, add_lexical, lexical_config
from indexes.addons.bm25 import FOLDER as BM25
from indexes.addons.bm25 import Bm25Searcher, add_bm25
from indexes.config import IndexConfig
from indexes.manifest import IndexManifest
from indexes.retrieval.searchers import Searcher
from steprag.errors import ConfigError


def sparse_folder(folder: Path) -> str | None:
    """The name of the sparse ranking that an index folder has: bm25, lexical, or none."""
    return next((name for name in (BM25, LEXICAL) if (folder / name).exists()), None)


def learned_weights(config: IndexConfig, out: Path) -> LexicalConfig | None:
    """The model that is to rank in BM25's place, found before anything is built; None where BM25 ranks.

    Raises ConfigError where it is not found, or where `out` has the other ranking.
    """
    wanted, there = BM25 if config.sparse == BM25 else LEXICAL, sparse_folder(out.expanduser())
    if there not in (None, wanted):
        raise ConfigError(f"{out} has its sparse ranking in {there}/, and an index has one;"
                          f" delete that folder to have {wanted}/ by --sparse {config.sparse}")  # fmt: skip
    return None if wanted == BM25 else lexical_config(config.sparse, config.max_length)


def add_sparse(folder: Path, index: IndexManifest, config: IndexConfig, learned: LexicalConfig | None) -> bool:
    """Adds the ranking to a finished index folder, as `sidecar.add_sidecar` says; False where it is there."""
    if learned is None:
        return add_bm25(folder, index, config.bm25)
    return add_lexical(folder, index, learned, config.device.split(",")[0])


def open_sparse(folder: Path, index: IndexManifest, *, device: str, threads: int) -> Searcher:
    """Raises ConfigError or DataError where there is none, or it is not as it was built."""
    if sparse_folder(folder) == LEXICAL:
        return LexicalSearcher(folder, index, device=device, threads=threads)
    return Bm25Searcher(folder, index)
