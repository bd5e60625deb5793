"""A build's shards to be encoded, and the mark of a finished one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from indexes.encoding.embed import Dtype
from indexes.encoding.encoders import EncoderSpec
from indexes.encoding.runtimes import Backend

MARKS = "vectors.done.jsonl"


@dataclass(frozen=True)
class Work:
    """What a process needs to encode shards of one build: all that decides their bytes, but for the machine."""

    folder: Path
    encoder_folder: Path
    spec: EncoderSpec
    rows: int
    shard_rows: int
    batch_tokens: int | None
    dtype: Dtype
    backend: Backend = "torch"

    def range(self, shard: int) -> tuple[int, int]:
        """The shard's rows: the first, and the one after the last."""
        return shard * self.shard_rows, min(self.rows, (shard + 1) * self.shard_rows)

    @property
    def shards(self) -> int:
        """How many shards there are; the last may be shorter."""
        return -(-self.rows // self.shard_rows)


@dataclass(frozen=True)
class Mark:
    """A finished shard, as a line of `vectors.done.jsonl`."""

    shard: int
    sha256: str
