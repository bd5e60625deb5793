"""The keys of a web file (YAML), which commands take where they take an index.

web:
  provider: searxng
  base_url: "http://127.0.0.1:8888"
  snapshot: runs/web
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from steprag.config.load import StageConfig
from steprag.config.sections import Positive, Section

ProviderName = Literal["searxng", "brave", "tavily", "serper", "ddgs"]
Source = Literal["web", "local", "both", "auto"]
THRESHOLD = 0.61
"""Measured on Atlas with all-MiniLM-L6-v2 (docs/web.md)."""


class WebConfig(Section):
    """How the web is searched, and what comes of it."""

    provider: ProviderName = Field(default="ddgs", description="searxng, brave, tavily, serper, or ddgs without a key")
    base_url: str | None = Field(default=None, description="where it is reached; searxng needs it, others have one")
    key_env: str | None = Field(
        default=None, description="environment variable that holds the key; none: BRAVE_API_KEY and the like"
    )
    params: dict[str, str | int | bool | list[str]] = Field(
        default={}, description="further parameters of the provider's own, such as a language"
    )
    backends: list[str] = Field(default=["duckduckgo", "brave", "mojeek"], description="engines that ddgs asks")
    results: Annotated[int, Field(ge=1, le=50)] = Field(default=20, description="results of the search engine")
    pages: Annotated[int, Field(ge=0, le=20)] = Field(
        default=8, description="results whose pages are fetched, the first ones; of others the snippet is read"
    )
    page_seconds: float = Field(default=6.0, gt=0, description="seconds until a page counts as lost")
    extract_mb: Positive = Field(default=512, description="memory of the process that reads pages, in MiB")
    seconds: float = Field(
        default=20.0,
        gt=0,
        description="seconds that a search may take; at half the engine, at three quarters pages are lost",
    )
    chunk_words: Positive = Field(default=200, description="words in a passage")
    chunks: Annotated[int, Field(ge=1, le=400)] = Field(
        default=24, description="passages of pages that are ranked; of each page those that share words with the query"
    )
    encoder: str | None = Field(default=None, description="ranks passages; none: the local index's, or minilm")
    concurrency: Positive = Field(default=4, description="searches at once; more wait")
    searches: Positive | None = Field(default=None, description="searches sent to the provider at most; none: no bound")
    allow: list[str] = Field(default=[], description="exact host:port that pages may be fetched from though private")
    snapshot: str | None = Field(default=None, description="folder that keeps results and pages; none: memory only")
    frozen: bool = Field(default=False, description="answer from the snapshot alone, without a request")
    local: str | None = Field(default=None, description="index folder, or a service's URL, for local, both and auto")
    source: Source = Field(default="web", description="where passages come from: web, local, both fused, or auto")
    threshold: float = Field(
        default=THRESHOLD, description="auto: the web is asked where the best local passage is less alike"
    )

    @property
    def key_variable(self) -> str | None:
        return self.key_env or f"{self.provider.upper()}_API_KEY"

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.provider == "searxng" and self.base_url is None:
            raise ValueError("searxng has no public address of its own; give the base_url of yours")
        if self.provider == "ddgs" and (self.base_url is not None or self.key_env is not None):
            raise ValueError("ddgs has neither base_url nor key; name the provider that has")
        if self.frozen and self.snapshot is None:
            raise ValueError("frozen answers from a snapshot; name its folder")
        if self.source != "web" and self.local is None:
            raise ValueError(f"source {self.source} needs the key local: an index folder or a service's URL")
        return self


class WebFileConfig(StageConfig):
    """A web file."""

    web: WebConfig = Field(default_factory=WebConfig)
