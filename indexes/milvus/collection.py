"""The collection: its address, the client that reaches it, and the row that says what it holds.

A row of the folder is a row of the collection (`row`, the primary key), with `id`, `title`, `text` and `vector`. Row -1
holds no passage but the facts of the index as JSON; its vector is zero, so it is never near a query.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from indexes.encoding.encoders import EncoderSpec
from steprag.errors import ConfigError, RetrieverError
from steprag.extras import remedy
from steprag.json_text import NotJson, decoded

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
class Facts:
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
    try:
        return MilvusClient(uri=address.uri, token=token, timeout=seconds)
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


def facts_row(facts: Facts) -> dict[str, Any]:
    """The row that says what the collection holds."""
    text = json.dumps({"format": FORMAT, **dataclasses.asdict(facts)}, sort_keys=True)
    return {"row": FACTS_ROW, "id": "", "title": "", "text": text, VECTOR: [0.0] * facts.encoder.dimension}


def read_facts(client: Any, address: MilvusAddress) -> Facts | None:
    """What the collection holds; None where there is no such collection. Raises ConfigError where it is not ours."""
    with told(address):
        if not client.has_collection(address.collection):
            return None
        found = client.get(address.collection, ids=[FACTS_ROW], output_fields=["text"])
    try:
        row = decoded(found[0]["text"])
        if row.pop("format") != FORMAT:
            raise ValueError
        return Facts(**{**row, "encoder": EncoderSpec(**row["encoder"])})
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
