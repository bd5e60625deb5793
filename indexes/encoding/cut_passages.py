"""Passages of which an encoder reads only the beginning: counted, said, and kept in the manifest."""

from __future__ import annotations

from typing import Any

import numpy as np

from indexes.encoding.embed import Encoder
from indexes.encoding.encoders import EncoderSpec
from indexes.folder.manifest import IndexManifest
from indexes.rows.passage_store import PassageStore, Titles
from steprag.console.progress import say

_KIND = "passages longer than the encoder's"
_WORDS = "the rest of them cannot be found by vectors"
_BLOCK = 4096
"""Passages that are tokenised at once."""


def said_cut(cut: int, rows: int, spec: EncoderSpec, place: str) -> list[dict[str, Any]]:
    """Says how many passages were cut; what the manifest keeps of it. Nothing where none was."""
    if not cut:
        return []
    tokens = f"{spec.max_length} tokens"
    say(f"index: {cut:,} of {rows:,} {_KIND.replace('longer', 'are longer')} {tokens}; {_WORDS}: --hybrid finds it by"
        " its words, or cut them shorter, or give an encoder that reads more")  # fmt: skip
    share = round(cut / rows, 4)
    return [{"kind": f"{_KIND} {tokens}", "place": place, "words": _WORDS, "count": cut, "share": share}]


def unknown_cut(place: str) -> dict[str, Any]:
    """What the manifest keeps where an earlier version encoded the passages, and did not count."""
    return {"kind": f"{_KIND} limit", "place": place, "words": "not counted", "count": None, "share": None}


def none_cut(manifest: IndexManifest) -> bool:
    """Whether an index is known to hold no passage that is longer than what its encoder reads."""
    kinds = [str(one.get("kind")) for one in manifest.corpus.left_out]
    return bool(manifest.encoder.config_hash) and not any(kind.startswith(_KIND) for kind in kinds)


def counted_cut(encoder: Encoder, store: PassageStore, rows: np.ndarray, titles: Titles) -> int:
    """How many of these rows are longer than what the encoder reads."""
    blocks = (rows[start : start + _BLOCK].tolist() for start in range(0, len(rows), _BLOCK))
    return sum(encoder.tokenise(store.texts(block, titles)).cut for block in blocks)
