"""Index types by name, and the parameters of the approximate ones."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from steprag.config.sections import Positive, Section

TypeName = Literal["flat", "flat-fp16", "ivf-sq8", "ivf-pq", "hnsw-sq8", "rabitq", "gpu-flat", "gpu-cagra"]


class AnnConfig(Section):
    """Parameters of the approximate types; none: chosen from the number of passages, then tuned to `recall`."""

    recall: float = Field(default=0.98, gt=0, le=1, description="recall@10 that effort is tuned to on sampled queries")
    nlist: Positive | None = Field(default=None, description="ivf-*, rabitq: cells; none: about 2 √rows")
    nprobe: Positive | None = Field(default=None, description="ivf-*, rabitq: cells that a query visits; none: tuned")
    code_bytes: Positive | None = Field(default=None, description="ivf-pq: bytes a vector; none: dimension / 8")
    bits: int = Field(default=1, ge=1, le=8, description="rabitq: bits a dimension")
    links: Positive = Field(default=32, description="hnsw-sq8: links a node")
    ef: Positive | None = Field(default=None, description="hnsw-sq8: candidates kept in a search; none: tuned")
    rescore: int | None = Field(
        default=None,
        ge=0,
        description="candidates a wanted passage that are scored again; none: tuned",
    )
