"""The service's figures, in Prometheus' text format."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from indexes.retrieval.folder_retriever import FolderRetriever

ROUTES = frozenset({"/retrieve", "/search", "/batch_search", "/health", "/metrics"})
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Telemetry:
    """Counters of one service; `waiting` is how many queries are accepted and not yet answered."""

    def __init__(self, retriever: FolderRetriever) -> None:
        self.waiting = 0
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "steprag_requests", "Requests answered, by route and status", ["route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "steprag_request_seconds", "Time from request to reply", ["route"], buckets=SECONDS, registry=self._registry
        )
        self._queries = Counter("steprag_queries", "Queries accepted", registry=self._registry)
        Gauge("steprag_queries_waiting", "Queries accepted and not yet answered", registry=self._registry).set_function(
            lambda: self.waiting
        )
        self._registry.register(_IndexCounts(retriever))

    @property
    def content_type(self) -> str:
        """The content type of `text`."""
        return CONTENT_TYPE_LATEST

    def text(self) -> bytes:
        """All counters in Prometheus's text format."""
        return generate_latest(self._registry)

    @contextmanager
    def accepted(self, queries: int) -> Iterator[None]:
        """Counts queries as waiting while the block runs."""
        self.waiting += queries
        self._queries.inc(queries)
        try:
            yield
        finally:
            self.waiting -= queries

    @contextmanager
    def timed(self, path: str) -> Iterator[None]:
        """Adds the seconds that the block takes to the route's histogram, also where it raises."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds.labels(_route(path)).observe(time.perf_counter() - start)

    def answered(self, path: str, status: int) -> None:
        """Counts a reply by route and HTTP status."""
        self._requests.labels(_route(path), str(status)).inc()


def _route(path: str) -> str:
    """One of our routes, or "other": what clients make up must not become labels."""
    return path if path in ROUTES else "other"


class _IndexCounts(Collector):
    """What the retriever counts by itself."""

    def __init__(self, retriever: FolderRetriever) -> None:
        self._retriever = retriever

    def collect(self) -> Iterator[Metric]:
        counts = self._retriever.counts
        yield CounterMetricFamily("steprag_index_searches", "Searches, remembered ones included", counts.searches)
        yield CounterMetricFamily("steprag_index_remembered", "Searches answered from memory", counts.remembered)
        yield CounterMetricFamily("steprag_index_batches", "Batches searched", counts.batches)
        yield CounterMetricFamily("steprag_index_batched", "Queries in those batches", counts.batched)
