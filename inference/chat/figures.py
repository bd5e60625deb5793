"""What a service has done, in Prometheus' text format: `GET /metrics`, with the token."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from inference.chat.desk import Desk


class _DeskFigures(Collector):
    """Reads the figures when they are asked for."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def collect(self) -> Iterator[Metric]:
        desk = self._desk
        yield GaugeMetricFamily("steprag_turns_waiting", "Turns accepted and not begun", desk.waiting)
        yield GaugeMetricFamily("steprag_turns_playing", "Turns that are played now", desk.playing)
        yield CounterMetricFamily("steprag_turns_refused", "Questions refused because too many wait", desk.refused)
        ended = CounterMetricFamily("steprag_turns", "Turns that ended since the start, by how", labels=["finish"])
        seconds = CounterMetricFamily("steprag_turn_seconds", "What their play took", labels=["finish"])
        for finish, (count, took) in sorted(desk.ended.items()):
            ended.add_metric([finish], count)
            seconds.add_metric([finish], took)
        yield ended
        yield seconds


def metrics_route(desk: Desk) -> APIRouter:
    """`/metrics`."""
    router, registry = APIRouter(), CollectorRegistry()
    registry.register(_DeskFigures(desk))

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return router
