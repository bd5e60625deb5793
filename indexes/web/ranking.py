"""How alike a query and texts are: cosines of an encoder of this project, in a worker thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from indexes.encoding.embed import Encoder
from indexes.encoding.encoders import EMBEDDED, EncoderSpec, Overrides, encoder_here, find_encoder, read_spec
from indexes.folder.manifest import IndexManifest
from indexes.ranking.rankings import DECIMALS, named
from steprag.errors import ConfigError


class Ranker(Protocol):
    """Scores texts for a query."""

    @property
    def fingerprint(self) -> str:
        """Names what scores; equal fingerprints give equal scores."""
        ...

    async def ready(self) -> None:
        """Waits until texts can be scored. Raises ConfigError where they never will be."""
        ...

    async def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """A score for each text, from -1 to 1, greater is better, rounded to four decimals."""
        ...

    async def aclose(self) -> None:
        """Releases the weights."""
        ...


class EncoderRanker:
    """The cosine of the query's vector and each text's. Weights load in the thread, once they are waited for."""

    def __init__(self, name: str | None = None, manifest: IndexManifest | None = None) -> None:
        """By an encoder's name, else by that of an index, else by the embedded one. Raises ConfigError."""
        if name is None and manifest is not None and manifest.encoder.dense:
            self._spec, self._folder = manifest.encoder, encoder_here(manifest.encoder, manifest.config)
        else:
            self._folder = find_encoder(name or EMBEDDED)
            self._spec = read_spec(name or EMBEDDED, self._folder, Overrides())
        self.fingerprint = named("cosine", *_facts(self._spec))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ranker")
        self._encoder: Future[Encoder] | None = None

    def _load(self) -> Encoder:
        try:
            return Encoder(self._folder, self._spec, threads=1)
        except (OSError, ValueError) as error:
            said = " ".join(str(error).split())[:300]
            raise ConfigError(f"{self._folder}: the encoder cannot be loaded: {said}") from error

    async def ready(self) -> None:
        """Waits until the weights are loaded; begins it where it was not begun."""
        self._encoder = self._encoder or self._thread.submit(self._load)
        if not self._encoder.done():
            await asyncio.wait([asyncio.wrap_future(self._encoder)])  # who is cancelled does not end the loading
        self._encoder.result()

    async def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """As the protocol says. A text that stands twice is encoded twice; order does not change a score by more than
        float32 rounding, which the rounding hides.
        """
        if not texts:
            return []
        await self.ready()
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._cosines, query, list(texts))

    def _cosines(self, query: str, texts: list[str]) -> list[float]:
        assert self._encoder is not None
        encoder = self._encoder.result()
        vectors = encoder.encode_passages(texts)
        asked = encoder.encode_queries([query])[0]
        return [round(float(score), DECIMALS) for score in vectors @ asked]

    async def aclose(self) -> None:
        """Ends the thread behind what it still does."""
        self._thread.shutdown(wait=False)
        self._encoder = None


def _facts(spec: EncoderSpec) -> list[object]:
    """What decides a vector: all but where the encoder was found."""
    return [value for key, value in vars(spec).items() if key not in ("name", "revision")]
