"""What the tests of indexes share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import indexes.commands.build
import indexes.commands.search
from indexes import open_retriever
from indexes.commands.build import IndexConfig
from steprag.config.load import load_config
from steprag.config.sections import RetrieverConfig
from steprag.console.terminal import guarded
from steprag.types import Passage

PASSAGES = [
    ("sea", "Aral Sea", "The Aral Sea lay between Kazakhstan and Uzbekistan and has largely dried up."),
    ("violin", "Violin", "The violin has four strings, tuned in fifths, and is played with a bow."),
    ("iron", "Iron", "Iron is a chemical element with the symbol Fe and atomic number 26."),
    ("kepler", "Johannes Kepler", "Kepler, born in Weil der Stadt, found the laws of planetary motion."),
    ("bread", "Sourdough", "Sourdough bread rises by wild yeast and lactic acid bacteria."),
    ("quoted", '"Heroes"', "“Heroes” is a studio album by David Bowie, recorded in Berlin. 日本語"),
]


def write_corpus(path: Path, passages: Sequence[tuple[str, str, str]] = PASSAGES) -> Path:
    rows = [json.dumps({"id": i, "title": title, "text": text}) for i, title, text in passages]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def small(encoder: Path, **values: object) -> IndexConfig:
    return load_config(IndexConfig, None, {"encoder": str(encoder), **values})


def hybrid_index(folder: Path, passages: Sequence[Passage], encoder: Path) -> Path:
    """By the command, with BM25; the corpus lies beside it."""
    return _by_command(folder, passages, "--encoder", str(encoder), "--hybrid")


def words_index(folder: Path, passages: Sequence[Passage]) -> Path:
    """By the command, of words alone: no weights are loaded."""
    return _by_command(folder, passages, "--encoder", "none")


def _by_command(folder: Path, passages: Sequence[Passage], *options: str) -> Path:
    corpus = write_corpus(folder / "corpus.jsonl", [(p.id, p.title, p.text) for p in passages])
    argv = ["--corpus", str(corpus), "--out", str(folder / "index"), *options]
    assert guarded(indexes.commands.build.main, argv) == 0
    return folder / "index"


def ask(
    path: str | Path, *queries: str, top_k: int = 3, config: RetrieverConfig | None = None
) -> list[tuple[Passage, ...]]:
    """What the queries bring, all asked at once."""
    return asyncio.run(indexes.commands.search.search_all(open_retriever(path, config), queries, top_k))


def edit_manifest(folder: Path, *keys: str, value: object) -> None:
    path = folder / "manifest.json"
    manifest = row = json.loads(path.read_text(encoding="utf-8"))
    for key in keys[:-1]:
        row = row[key]
    row[keys[-1]] = value
    path.write_text(json.dumps(manifest), encoding="utf-8")


def fingerprint(path: str | Path, **values: Any) -> str:
    """Of the retriever that these options of `retriever.` give; loads no weights."""
    return open_retriever(path, RetrieverConfig(preload=False, **values)).fingerprint
