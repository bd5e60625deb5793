"""Question files by name."""

from __future__ import annotations

from pathlib import Path

from steprag import atlas
from steprag.errors import ConfigError

NAMES = ("atlas", "hotpotqa", "2wikimultihopqa", "popqa", "musique", "bamboogle", "medqa", "nq", "triviaqa")
"""Folder names of the FlashRAG collection, and the embedded one."""


def question_file(name: str, split: str | None, data_dir: str | None) -> Path:
    """The file of a data set: embedded (atlas), or `DATA_DIR/name/split.jsonl` in FlashRAG's layout.

    Without a split: test where there is one, else dev. Raises ConfigError.
    """
    if name not in NAMES:
        raise ConfigError(f"unknown data set {name!r}; known: {', '.join(NAMES)} (or give --questions FILE)")
    if name == "atlas":
        if split not in (None, "train", "dev", "test"):
            raise ConfigError(f"atlas has no split {split!r}; known: train, dev, test")
        return atlas.path(split or "test")
    if data_dir is None:
        raise ConfigError(f"{name} is not embedded: give --data_dir with {name}/SPLIT.jsonl in it, or --questions FILE")
    folder = Path(data_dir) / name
    for candidate in [split] if split else ["test", "dev"]:
        if (folder / f"{candidate}.jsonl").is_file():
            return folder / f"{candidate}.jsonl"
    raise ConfigError(
        f"no {split or 'test or dev'}.jsonl in {folder}; FlashRAG's layout is DATA_DIR/{name}/SPLIT.jsonl"
    )
