"""The configuration of `steprag index build`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator

from indexes.addons.bm25 import Bm25Config
from indexes.encoding.embed import Dtype
from indexes.encoding.encoders import EMBEDDED, NO_ENCODER, NONE, EncoderSpec, Overrides, find_encoder, read_spec
from indexes.encoding.runtimes import Backend
from indexes.vectors.config import AnnConfig, TypeName
from steprag.config.load import StageConfig
from steprag.config.sections import Positive


class IndexConfig(StageConfig):
    encoder: str = Field(
        EMBEDDED, description="minilm, bge-base, …, a sentence-transformers folder, a hub id, or none: BM25 alone"
    )
    type: TypeName = Field("flat", description="flat and flat-fp16 are exact; steprag plan index compares them all")
    ann: AnnConfig = AnnConfig()
    bm25: Bm25Config = Bm25Config()
    max_skipped: float = Field(
        0.001, ge=0, lt=1, description="share of the corpus's lines that may be no passages and are left out"
    )
    max_length: Positive | None = Field(
        default=None, description="tokens of a text that are read; none: as the model says"
    )
    query_prefix: str | None = Field(None, description="words before every query; none: as the model says")
    passage_prefix: str | None = Field(None, description="words before every passage; none: as the model says")
    pooling: str | None = Field(None, description="cls, mean, lasttoken, …; none: as the model says")
    normalise: bool | None = Field(None, description="vectors of length 1; none: yes")
    device: str = Field("auto", description="where passages are encoded: cpu, cuda, cuda:0,cuda:1 (one process each)")
    processes: Positive = Field(1, description="processes that encode on each of these devices")
    ray: int = Field(0, ge=0, description="encode with so many processes of the Ray cluster at $RAY_ADDRESS")
    dtype: Dtype = Field("float32", description="the encoder's arithmetic: bfloat16, float16 for a GPU, int8 for a CPU")
    backend: Backend = Field("torch", description="what runs the encoder: torch, or on a CPU onnx or openvino")
    batch_tokens: Positive | None = Field(
        default=None, description="tokens at once; none: 512 a CPU thread, 65536 on a GPU"
    )
    shard_rows: Positive = Field(4096, description="passages encoded between two marks from which a build goes on")
    queries: str | None = Field(
        default=None, description="questions whose searches are measured; none: sampled passages"
    )

    @field_validator("encoder", mode="before")
    @classmethod
    def _no_encoder(cls, value: object) -> object:
        """On a command line `none` is no value; here it is a name."""
        return NONE if value is None else value


def chosen_encoder(config: IndexConfig) -> tuple[Path, EncoderSpec]:
    """The folder and the spec of the configured encoder; no folder where it is none."""
    if config.encoder == NONE:
        return Path(), NO_ENCODER
    folder = find_encoder(config.encoder)
    given = Overrides(**{key: getattr(config, key) for key in Overrides.__dataclass_fields__})
    return folder, read_spec(config.encoder, folder, given)
