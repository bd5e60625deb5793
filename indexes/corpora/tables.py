"""Parquet files, and hub data sets, which `datasets` streams without its Arrow copy on the disk."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from indexes.corpora.source import HUB, Item, Problem, Source, passage_or_problem
from steprag.engines.hub import asking_the_hub
from steprag.errors import ConfigError, DataError, quoted
from steprag.types import Passage


def parquet_rows(path: Path) -> Iterator[tuple[int, Passage | Problem]]:
    """Every row of a Parquet file, from 1. Columns: id and contents, or id, title and text."""
    import pyarrow
    from pyarrow.parquet import ParquetFile

    number = 0
    try:
        with ParquetFile(path) as file:
            rows = (row for batch in file.iter_batches() for row in batch.to_pylist())
            for number, row in enumerate(rows, 1):
                yield number, passage_or_problem(row, path, number)
    except (pyarrow.ArrowException, OSError) as error:  # OSError: a page or a footer that does not unpack
        problem = f"cannot be read as Parquet: {str(error).splitlines()[0]}"
        raise DataError(path, problem, line=number + 1, remedy="fetch it again") from None


def hub_source(corpus: str) -> Source:
    """`hub:OWNER/NAME[:CONFIG[:SPLIT]]`, streamed from the hub (split train unless it says another).

    The identity is the data set's commit, which is resolved first. Raises ConfigError where the hub does not give it.
    """
    from datasets import load_dataset
    from huggingface_hub import HfApi

    name, config, split, *more = [*corpus.removeprefix(HUB).split(":"), "", ""][:4]
    if not name or (more and more[0]):
        raise ConfigError(f"{corpus}: write hub:OWNER/NAME, hub:OWNER/NAME:CONFIG or hub:OWNER/NAME:CONFIG:SPLIT")
    problem = f"data set {quoted(name)} cannot be had from the hub"
    with asking_the_hub(problem, "download its files and give their folder"):
        commit = HfApi().dataset_info(name).sha
        rows: Any = load_dataset(name, config or None, split=split or "train", streaming=True, revision=commit)

    def items() -> Iterator[Item]:
        for number, row in enumerate(rows, 1):
            yield 0, number, passage_or_problem(row, Path(corpus), number)

    identity = hashlib.sha256(f"{name}:{config}:{split or 'train'}@{commit}".encode()).hexdigest()
    return Source(corpus, (corpus,), lambda: identity, items)
