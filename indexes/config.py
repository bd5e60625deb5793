"""The keys of `steprag index build` and `steprag index serve`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator, model_validator

from indexes.addons.bm25 import Bm25Config
from indexes.corpora.documents import DocumentsConfig
from indexes.encoding.embed import Dtype
from indexes.encoding.encoders import EMBEDDED, NO_ENCODER, NONE, EncoderSpec, Overrides, find_encoder, read_spec
from indexes.encoding.runtimes import Backend, QueryBackend
from indexes.retrieval.folder_retriever import MAX_BATCH
from indexes.rows.passage_store import Titles
from indexes.vectors.index_types import AnnConfig, TypeName
from steprag.config.load import StageConfig
from steprag.config.sections import Positive, RetrieverConfig, Section


class IndexConfig(StageConfig):
    encoder: str = Field(
        EMBEDDED, description="minilm, bge-base, …, a sentence-transformers folder, a hub id, or none: BM25 alone"
    )
    type: TypeName = Field("flat", description="flat and flat-fp16 are exact; steprag plan index compares them all")
    ann: AnnConfig = Field(default_factory=AnnConfig)
    bm25: Bm25Config = Field(default_factory=Bm25Config)
    documents: DocumentsConfig = Field(default_factory=DocumentsConfig)
    max_skipped: float = Field(
        0.001, ge=0, lt=1, description="share of the corpus's lines that may be no passages and are left out"
    )
    max_length: Positive | None = Field(
        default=None, description="tokens read of each text; none: the model's own limit"
    )
    query_prefix: str | None = Field(None, description="words before every query; none: the model's own")
    passage_prefix: str | None = Field(None, description="words before every passage; none: the model's own")
    pooling: str | None = Field(None, description="cls, mean, lasttoken, …; none: the model's own")
    titles: Titles = Field("plain", description="how the encoder reads a passage's title; quoted: as FlashRAG has it")
    normalise: bool | None = Field(None, description="vectors of length 1; none: the model's own setting")
    device: str = Field("auto", description="where passages are encoded: cpu, cuda, cuda:0,cuda:1 (one process each)")
    processes: Positive = Field(1, description="processes that encode on each of these devices")
    ray: int = Field(0, ge=0, description="encode with so many processes of the Ray cluster at $RAY_ADDRESS")
    dtype: Dtype = Field("float32", description="the encoder's arithmetic: bfloat16, float16 for a GPU, int8 for a CPU")
    backend: Backend = Field("torch", description="what runs the encoder: torch, or on a CPU onnx or openvino")
    batch_tokens: Positive | None = Field(
        default=None, description="tokens at once; none: 512 a CPU thread, 65536 on a GPU"
    )
    shard_rows: Positive = Field(4096, description="passages encoded between two points from which a build can resume")
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


class LimitsConfig(Section):
    """What one request, and all that wait together, may ask for."""

    body_bytes: Positive = Field(default=8 * 2**20, description="longest request body; more is 413")
    queries: Positive = Field(default=4096, description="queries in one request; more is 422")
    query_chars: Positive = Field(default=8192, description="characters in one query; more is 422")
    top_k: Positive = Field(default=100, description="passages a query; more is 422")
    waiting: Positive = Field(default=8192, description="queries accepted and not yet answered; more is 429")
    seconds: float = Field(
        default=60.0, gt=0, description="time for a request, from when weights are loaded; more is 504"
    )


class ServeConfig(StageConfig):
    host: str = Field(default="127.0.0.1", description="address to listen on; beyond this machine only with a token")
    port: int = Field(default=8000, ge=0, le=65535, description="0 takes a free one")
    threads: Positive | None = Field(default=None, description="cores that a batch uses; none: all")
    device: str = Field(default="cpu", description="where queries are encoded: cpu, cuda, or auto")
    backend: QueryBackend = Field(
        default="auto",
        description="what encodes queries: torch, onnx, openvino; auto, on a CPU: openvino, else onnx, whichever is "
        "installed, if it gives torch's vectors; else torch",
    )
    batch: Positive = Field(default=MAX_BATCH, description="queries searched at once; 256 suits a GPU")
    top_k: Positive = Field(default=3, description="passages a query brings where a request names no number")
    retriever: RetrieverConfig = Field(default_factory=RetrieverConfig)
    limits: LimitsConfig = Field(default_factory=LimitsConfig)

    @model_validator(mode="after")
    def _every_request_fits(self) -> ServeConfig:
        if self.limits.waiting < self.limits.queries:
            raise ValueError("limits.waiting must be at least limits.queries, or a full request could never be taken")
        if self.top_k > self.limits.top_k:
            raise ValueError(f"top_k {self.top_k} is more than limits.top_k {self.limits.top_k}: a request that names"
                             " no number would be refused")  # fmt: skip
        return self
