"""`Index`: a corpus, searched."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from apps.library.background import run
from steprag.agent.retriever import Retriever
from steprag.config.load import load_config
from steprag.records.jsonl import write_records
from steprag.types import Passage


def dotted(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of the configuration as Python's arguments spell them: `search__rollouts` is `search.rollouts`."""
    return {name.replace("__", "."): str(value) if isinstance(value, Path) else value for name, value in keys.items()}


class Index:
    """Passages to search. It is loaded at the first search, and released by `close` or at the end of a `with` block."""

    def __init__(self, place: str | Path, **keys: Any) -> None:
        """`place`: an index folder, a service's URL, or whatever else `open_retriever` opens. `keys`: those of the
        section `retriever`, such as `mode="sparse"`. Raises ConfigError for an unknown one.
        """
        from indexes.commands.search import SearchStageConfig

        given = {f"retriever.{key}": value for key, value in dotted(keys).items()}
        self.place, self._config = place, load_config(SearchStageConfig, None, given).retriever
        self._lock = threading.Lock()
        self._retriever: Retriever | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @classmethod
    def open(cls, place: str | Path, **keys: Any) -> Index:
        """As `Index(place)`, but raises ConfigError or DataError at once where nothing is there to search."""
        index = cls(place, **keys)
        index.retriever()
        return index

    @classmethod
    def build(
        cls,
        corpus: str | Path | Iterable[str | Passage | Mapping[str, str]],
        out: str | Path | None = None,
        *,
        hybrid: bool = False,
        **keys: Any,
    ) -> Index:
        """Builds an index, or finds it built. `corpus`: what `steprag index build --corpus` takes, or passages, be they
        texts, `Passage`s or mappings with title and text.

        `out`: the index folder; without it a temporary one, which goes with this object. `hybrid`: BM25 beside the
        vectors. `keys`: those of `steprag index build`, such as `encoder="none"`. Raises ConfigError and DataError.
        """
        from indexes.commands.build import build_index
        from indexes.config import IndexConfig

        folder = tempfile.TemporaryDirectory(prefix="steprag-")
        if not isinstance(corpus, str | Path):
            file = Path(folder.name) / "corpus.jsonl"
            write_records(file, [_row(number, passage) for number, passage in enumerate(corpus)])
            corpus = file
        config = load_config(IndexConfig, None, dotted(keys))
        index = cls(build_index(str(corpus), Path(out or Path(folder.name) / "index"), config, hybrid=hybrid).path)
        index._folder = folder
        return index

    def search(self, query: str, k: int = 3) -> list[Passage]:
        """At most `k` passages, best first. Raises RetrieverError for a query without words."""
        return list(run(self.retriever().search(query, k)))

    def retriever(self) -> Retriever:
        """What the agent searches with; for the library's own event loop."""
        with self._lock:
            if self._retriever is None:
                self._retriever = run(self._opened())
            return self._retriever

    def close(self) -> None:
        """Releases what the search holds. A temporary folder stays until this object goes."""
        with self._lock:
            left, self._retriever = self._retriever, None
        if left is not None:
            run(left.aclose())

    async def _opened(self) -> Retriever:
        from indexes import open_retriever

        return open_retriever(self.place, self._config)

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Index({str(self.place)!r})"


def _row(number: int, passage: str | Passage | Mapping[str, str]) -> dict[str, str]:
    """A line of a corpus file; the passage's place is its id where it has none."""
    if isinstance(passage, Passage):
        return {"id": passage.id, "title": passage.title, "text": passage.text}
    row = {"text": passage} if isinstance(passage, str) else passage
    return {"id": str(number), "title": "", **row}
