"""An index's vectors against its encoder: passages are encoded again. What earlier versions did not note of an encoder
is compared so.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from indexes.encoding.embed import Encoder
from indexes.encoding.runtimes import cosines
from indexes.folder.manifest import BUILT, INDEX, IndexManifest
from indexes.rows.passage_store import SPELLINGS, PassageStore
from indexes.rows.vector_file import VECTORS, VectorFile
from steprag.console.progress import say
from steprag.errors import DataError

SAMPLE = 16
ALIKE, ROUNDED = 0.999, 0.99
"""Cosine below which a stored vector is not the passage's: of float32, and of int8 and bfloat16."""


def lowest_cosine(folder: Path, manifest: IndexManifest, encoder: Encoder, sample: int = SAMPLE) -> float | None:
    """The lowest cosine between stored vectors of sampled passages and those that the encoder gives now; None where the
    folder keeps no vectors as they were, or not how their titles were written. Raises DataError below ALIKE or ROUNDED.
    """
    rows, dimension = manifest.corpus.rows, manifest.encoder.dimension
    titles = SPELLINGS.get(manifest.measured.get("titles", ""))  # of an index of another program
    if VECTORS in manifest.files and manifest.origin == BUILT:
        stored = VectorFile(folder / VECTORS, rows, dimension)
    elif manifest.index.type == "flat" and (titles or manifest.origin == BUILT):
        stored = VectorFile(folder / INDEX, rows, dimension, np.float32)
    else:
        return None
    picked = np.sort(np.random.default_rng().permutation(rows)[:sample])
    with PassageStore(folder) as store:
        picked = np.array([row for row in picked.tolist() if store.read(row).text], dtype=np.int64)
        texts = store.texts(picked.tolist(), titles or manifest.config.get("titles", "plain"))
    if not texts:
        return None
    found = cosines(encoder.encode_passages(texts), stored.take(picked))
    worst = int(np.argmin(found))
    if not found[worst] >= (ROUNDED if "dtype" in manifest.index.parameters else ALIKE):
        problem = f"row {picked[worst]} is not its passage's vector (cosine {found[worst]:.3f})"
        raise DataError(stored.path, problem, remedy="restore its encoder, or build the index again")
    return round(float(found[worst]), 5)


def check_known(folder: Path, manifest: IndexManifest, encoder: Encoder) -> None:
    """Where an earlier version did not note what the encoder read beside its weights: raises DataError if its vectors
    are others now, and says where the folder cannot tell.
    """
    if not manifest.encoder.config_hash and lowest_cosine(folder, manifest, encoder) is None:
        say_unknown(folder)


def say_unknown(index: Path | str) -> None:
    """Says that nobody knows whether the encoder reads as it did when the index was built."""
    say(f"index: {index} is of an earlier version, which did not note the encoder's tokenizer: whether it is the same"
        " is not known; build the index again to have it checked")  # fmt: skip
