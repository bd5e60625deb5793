"""The keys of `steprag index serve`."""

from __future__ import annotations

from pydantic import Field, model_validator

from indexes.encoding.runtimes import Backend
from indexes.retrieval.folder_retriever import MAX_BATCH
from steprag.config.load import StageConfig
from steprag.config.sections import Positive, RetrieverConfig, Section


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
    backend: Backend = Field(
        default="torch", description="what encodes queries: torch, or on a CPU onnx or openvino, about twice as fast"
    )
    batch: Positive = Field(default=MAX_BATCH, description="queries searched at once; 256 suits a GPU")
    top_k: Positive = Field(default=3, description="passages a query brings where a request names no number")
    retriever: RetrieverConfig = RetrieverConfig()
    limits: LimitsConfig = LimitsConfig()

    @model_validator(mode="after")
    def _every_request_fits(self) -> ServeConfig:
        if self.limits.waiting < self.limits.queries:
            raise ValueError("limits.waiting must be at least limits.queries, or a full request could never be taken")
        if self.top_k > self.limits.top_k:
            raise ValueError(f"top_k {self.top_k} is more than limits.top_k {self.limits.top_k}: a request that names"
                             " no number would be refused")  # fmt: skip
        return self
