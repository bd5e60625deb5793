"""Dense search in a Milvus collection. Queries are encoded here, in batches; Milvus finds rows and passages."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from cachetools import LRUCache

from indexes.encoding.encoders import EncoderSpec
from indexes.ranking.rankings import ALONE, TextEncoder, named
from indexes.ranking.searchers import DenseSearcher
from indexes.retrieval.folder_retriever import FolderRetriever
from steprag.config.sections import RetrieverConfig
from steprag.errors import ConfigError, RetrieverError
from steprag.extras import remedy
from steprag.net.hosts import is_local
from steprag.records.json_text import NotJson, decoded
from steprag.types import Passage

PREFIXES = ("milvus://", "milvus+tls://")
FACTS_ROW = -1
FORMAT = 1
VECTOR = "vector"
PASSAGE = ("row", "id", "title", "text")
STRONG = "Strong"
"""Every search sees every row that was written before it."""


@dataclass(frozen=True)
class MilvusAddress:
    """Where a collection is: the server as pymilvus wants it, and the collection's name."""

    uri: str
    collection: str


@dataclass(frozen=True)
class CollectionFacts:
    """What a collection holds: the fingerprint of the folder it came from, its rows, the encoder that made its vectors
    (with what the build set against the model's own files), and the type of its index.
    """

    fingerprint: str
    rows: int
    encoder: EncoderSpec
    given: dict[str, Any]
    type: str


def address_of(url: str) -> MilvusAddress:
    """The parts of `milvus://HOST:PORT/COLLECTION`. Raises ConfigError."""
    match = re.fullmatch(r"milvus(\+tls)?://([^/\s]+:\d+)/([A-Za-z_][A-Za-z0-9_]{0,254})", url)
    if not match:
        raise ConfigError(f"{url}: expected milvus://HOST:PORT/COLLECTION (milvus+tls:// with TLS), the collection's "
                          "name of letters, digits and _")  # fmt: skip
    return MilvusAddress(f"http{'s' if match[1] else ''}://{match[2]}", match[3])


def connected(address: MilvusAddress, token: str, seconds: float) -> Any:
    """pymilvus' client. Raises ConfigError where the package is missing or no server answers."""
    if importlib.util.find_spec("pymilvus") is None:
        raise ConfigError(f"milvus:// needs the extra `milvus` (pymilvus is not installed): {remedy('milvus')}")
    from pymilvus import MilvusClient  # pyright: ignore[reportMissingImports]
    from pymilvus.exceptions import MilvusException  # pyright: ignore[reportMissingImports]

    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # what it raises is said by whoever asked
    options: dict[str, Any] = {"grpc_options": {"grpc.enable_http_proxy": 0}} if is_local(address.uri) else {}
    try:
        return MilvusClient(uri=address.uri, token=token, timeout=seconds, **options)
    except MilvusException as error:
        raise ConfigError(f"no Milvus answers at {address.uri}: {reason(error)}") from None


@contextmanager
def told(address: MilvusAddress) -> Iterator[None]:
    """What Milvus refuses within the block, as one line. Raises RetrieverError."""
    from pymilvus.exceptions import MilvusException  # pyright: ignore[reportMissingImports]

    try:
        yield
    except MilvusException as error:
        raise RetrieverError(f"{address.uri}/{address.collection}: {reason(error)}") from None


def reason(error: Any) -> str:
    """What Milvus said, in one line."""
    return " ".join(str(getattr(error, "message", "") or error).split())[:300]


def facts_row(facts: CollectionFacts) -> dict[str, Any]:
    """The row that says what the collection holds."""
    text = json.dumps({"format": FORMAT, **dataclasses.asdict(facts)}, sort_keys=True)
    return {"row": FACTS_ROW, "id": "", "title": "", "text": text, VECTOR: [0.0] * facts.encoder.dimension}


def read_facts(client: Any, address: MilvusAddress) -> CollectionFacts | None:
    """What the collection holds; None where there is no such collection. Raises ConfigError where it is not ours."""
    with told(address):
        if not client.has_collection(address.collection):
            return None
        found = client.get(address.collection, ids=[FACTS_ROW], output_fields=["text"])
    try:
        row = decoded(found[0]["text"])
        if row.pop("format") != FORMAT:
            raise ValueError
        return CollectionFacts(**{**row, "encoder": EncoderSpec(**row["encoder"])})
    except (LookupError, TypeError, ValueError, AttributeError, NotJson):
        raise ConfigError(f"{address.uri}/{address.collection} was not filled by steprag index upload, or by another "
                          "version; upload the index folder into a new collection") from None  # fmt: skip


def rows_in(client: Any, address: MilvusAddress) -> int:
    """How many passages the collection holds."""
    with told(address):
        found = client.query(
            address.collection, filter="row >= 0", output_fields=["count(*)"], consistency_level=STRONG
        )
    return int(found[0]["count(*)"])


KEPT = 20_000
"""Passages that were found last, kept until they are handed on."""
EF = 4
"""An HNSW search looks at so many candidates for each row that is asked of it."""
LEAST_EF = 64


class FoundPassages:
    """Passages of a collection by row: those that a search has just brought, others asked for."""

    def __init__(self, client: Any, address: MilvusAddress, rows: int) -> None:
        self._client, self._address, self._rows = client, address, rows
        self._found: LRUCache[int, Passage] = LRUCache(KEPT)

    def __len__(self) -> int:
        return self._rows

    def keep(self, row: int, values: Any) -> None:
        """Takes over a passage that a search brought."""
        self._found[row] = Passage(values["id"], values["title"], values["text"])

    def read(self, row: int, score: float | None = None) -> Passage:
        """The passage of a row, with the score that a search gave it. Raises RetrieverError where there is none."""
        if row not in self._found:
            with told(self._address):
                found = self._client.get(self._address.collection, ids=[row], output_fields=list(PASSAGE))
            if not found:
                raise RetrieverError(f"{self._address.uri}/{self._address.collection} has no row {row} any more")
            self.keep(row, found[0])
        return replace(self._found[row], score=score)

    def close(self) -> None:
        """Closes the connection."""
        self._client.close()


class CollectionIndex:
    """A collection as what dense search asks of FAISS (`VectorIndex`)."""

    def __init__(self, client: Any, address: MilvusAddress, facts: CollectionFacts, passages: FoundPassages) -> None:
        """`passages` keeps what a search brings."""
        self._client, self._address, self._facts, self._passages = client, address, facts, passages
        self.ntotal = facts.rows

    def search(self, x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """(n, k + 1) scores and rows, -1 where there is none: one request for all. The row of facts is left out."""
        depth = k + 1  # the row of facts may be among them
        params = {"ef": max(LEAST_EF, EF * depth)} if self._facts.type == "HNSW" else {}
        with told(self._address):
            found = self._client.search(
                self._address.collection,
                data=list(x),
                anns_field=VECTOR,
                limit=depth,
                output_fields=list(PASSAGE),
                search_params={"metric_type": "IP", "params": params},
                consistency_level=STRONG,
            )
        scores, rows = np.full((len(x), depth), -np.inf), np.full((len(x), depth), -1)
        try:
            for query, hits in zip(range(len(x)), found, strict=True):
                for place, hit in enumerate(hits):
                    row = int(hit["entity"]["row"])
                    if row != FACTS_ROW:
                        scores[query, place], rows[query, place] = hit["distance"], row
                        self._passages.keep(row, hit["entity"])
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise self._in_part(f"{type(error).__name__} {error}") from None
        if np.isnan(scores).any():
            raise self._in_part("a score is no number")
        return scores, rows

    def _in_part(self, why: str) -> RetrieverError:
        return RetrieverError(f"{self._address.uri}/{self._address.collection}: incomplete reply: {why}")


def open_milvus(
    url: str, config: RetrieverConfig, encoder: Callable[[CollectionFacts], Callable[[], TextEncoder]], batch: int
) -> FolderRetriever:
    """The retriever of a collection that `steprag index upload` has filled; `encoder` finds its encoder here.

    Raises ConfigError where no server answers, the collection is not there, not whole or not ours, or the
    configuration asks for more than dense search.
    """
    address = address_of(url)
    if config.mode not in ("auto", "dense") or config.links or config.reranker:
        raise ConfigError(f"{url}: a Milvus collection is searched by its vectors alone; leave retriever.mode at auto, "
                          "and retriever.links and .reranker out")  # fmt: skip
    client = connected(address, os.environ.get(config.token_env, "").strip(), config.timeout)
    facts = read_facts(client, address)
    if facts is None:
        raise ConfigError(f"{address.uri} has no collection {address.collection}; steprag index upload makes it")
    if (count := rows_in(client, address)) != facts.rows:
        raise ConfigError(f"{url} holds {count} of {facts.rows} passages; run steprag index upload again")
    passages = FoundPassages(client, address, facts.rows)
    exact = facts.type == "FLAT"  # it has the fingerprint of the flat folder that it came from
    name = facts.fingerprint if exact else named("milvus", facts.type, facts.fingerprint, ALONE)
    searcher = DenseSearcher(name, CollectionIndex(client, address, facts, passages), encoder(facts))
    return FolderRetriever(searcher, passages, batch=batch, preload=config.preload)
