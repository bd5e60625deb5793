"""Runs as OpenTelemetry spans with OpenInference's names (extra `otel`), as Phoenix and other collectors read them.

OTEL_TRACES_EXPORTER=otlp asks for them; OpenTelemetry's other variables say where they go. Without it nothing is
imported. A collector that is slow or gone costs a run spans, never time or an error.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import asyncio
import atexit
import json
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from functools import cache, wraps
from typing import Any, TypeVar

from steprag.config.sections import JudgeConfig, PolicyConfig
from steprag.console.progress import say
from steprag.errors import DataError, shortened
from steprag.extras import remedy
from steprag.policy.budget import dollars
from steprag.records.turns import Verdict
from steprag.runs.run import Run, events_of
from steprag.tree import Failure, Tree
from steprag.types import Episode, Message, Prediction, Question, Sample

Given = TypeVar("Given")
Call = TypeVar("Call", bound=Callable[..., Awaitable[Sample]])
DEFAULTS = {"OTEL_SERVICE_NAME": "steprag", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "10000"}
"""Variables, where nobody has set them. OpenTelemetry keeps 128 attributes; a message is two, a passage four."""
GRACE = 3.0
"""Seconds at a process's end for the spans that are not sent yet."""
SAMPLED = {"temperature", "top_p", "top_k", "min_p", "max_tokens"}
"""Keys of a policy that a span shows."""
NOTED = "traced"
"""The event of a run's `metrics.jsonl` that keeps a question's trace, as W3C's `traceparent`."""
PARENT = "traceparent"


def traced(
    work: Awaitable[Given], kind: str, name: str, seen: str = "", links: Any = (), **facts: Any
) -> Awaitable[Given]:
    """What `work` gives; where traces are asked for, as a span of OpenInference's `kind` with `seen` as its input and
    `facts` as attributes. Its status is what `work` raises, or why the result is none.
    """
    return work if (tracer := _tracer()) is None else _in_span(tracer, work, kind, name, seen, links, facts)


async def _in_span(
    tracer: Any, work: Awaitable[Given], kind: str, name: str, seen: str, links: Any, facts: Mapping[str, Any]
) -> Given:
    from opentelemetry.trace import StatusCode

    # What an exception was raised from may quote what nobody cleaned of keys: its own words are the status.
    told = {"links": links, "attributes": facts, "record_exception": False}
    with tracer.start_as_current_span(name, openinference_span_kind=kind, **told) as span:
        if seen:
            span.set_input(seen)
        try:
            result = await work
        except asyncio.CancelledError:
            span.set_status(StatusCode.ERROR, "cancelled")
            raise
        output, fault, more = _outcome(result)
        if output is not None:
            span.set_output(output)
        span.set_attributes(more)
        span.set_status(StatusCode.ERROR if fault else StatusCode.OK, fault)
        return result


async def traced_question(
    work: Awaitable[Given], name: str, question: Question, run: Run, before: Mapping[str, str]
) -> Given:
    """`traced`, for a question of a run, which notes its trace; linked to the one of an earlier start."""
    if _tracer() is None:
        return await work
    from opentelemetry.trace import Link, get_current_span

    async def noted() -> Given:
        run.note(event=NOTED, id=question.id, **carried())
        return await work

    old = get_current_span(_w3c().extract({PARENT: before.get(question.id, "")})).get_span_context()
    told = json.dumps({"run": run.path.name, "question": question.id, "dataset": question.dataset})
    return await traced(noted(), "chain", name, question.question, [Link(old)] * old.is_valid, metadata=told)


async def traced_search(work: Awaitable[Given], query: str, tools: Collection[str]) -> Given:
    """`traced`, for a search; of a tool, where there are `tools`: a single one's name may be left out."""
    if not tools:
        return await traced(work, "retriever", "search", query)
    name = query.partition(":")[0].strip()
    if name not in tools:
        name = next(iter(tools)) if len(tools) == 1 else "tool"
    return await traced(work, "tool", name, query, **{"tool.name": name})


def earlier_traces(run: Run) -> dict[str, str]:
    """The last trace of each question that earlier starts of a run noted; none where no traces are asked for."""
    try:
        rows = list(events_of(run.path / "metrics.jsonl")) if _tracer() else []
    except DataError as error:  # no reason to end a run
        say(f"traces: no links to earlier ones: {error}")
        rows = []
    return {str(row.get("id")): str(row.get(PARENT)) for row in rows if row.get("event") == NOTED}


def model_call(call: Call) -> Call:
    """A method that asks a model, `(self, messages, …)`, as a span: of an LLM, within an evaluator's where it judges.
    `self` has `_model`, a name, and `_config`.
    """

    @wraps(call)
    async def spanned(self: Any, messages: tuple[Message, ...], *args: Any, **more: Any) -> Sample:
        work, config = call(self, messages, *args, **more), self._config
        if _tracer() is None:
            return await work
        from openinference.instrumentation import get_llm_attributes

        numbers = {key: value for key, value in more.items() if key in ("n", "seed")}
        said = {**config.model_dump(include=SAMPLED, exclude_none=True), **numbers}
        told: Any = messages  # their type has further keys, none of which has to be there
        facts = get_llm_attributes(model_name=self._model, invocation_parameters=said, input_messages=told)
        asked = traced(_priced(work, config), "llm", self._model, messages[-1]["content"], **facts)
        return await (traced(asked, "evaluator", "judge") if isinstance(config, JudgeConfig) else asked)

    return spanned  # pyright: ignore[reportReturnType] (the same method)


async def _priced(work: Awaitable[Sample], config: PolicyConfig) -> Sample:
    """The sample; the span holds what it cost, where prices are known."""
    from opentelemetry.trace import get_current_span

    used = (sample := await work).usage
    if config.cost.known:
        whole, prompt = dollars(used, config.cost), dollars(replace(used, completion_tokens=0), config.cost)
        costs = {"total": whole, "prompt": prompt, "completion": whole - prompt}
        get_current_span().set_attributes({f"llm.cost.{part}": cost for part, cost in costs.items()})
    return sample


def _outcome(result: Any) -> tuple[str | None, str, dict[str, Any]]:
    """What a span gives out, why it failed (empty: it did not), and what OpenInference has further names for."""
    from openinference.instrumentation import get_llm_attributes, get_retriever_attributes

    match result:
        case Failure():
            return None, f"{result.reason}: {result.detail}", {}
        case Episode() | Prediction():
            fault = "" if result.prediction is not None else f"no answer: {result.finish}"
            return result.prediction, getattr(result, "error", None) or fault, {}
        case Tree():
            best = max(result.nodes, key=lambda one: -1.0 if one.prediction_f1 is None else one.prediction_f1)
            return best.content, "", {}
        case Verdict():
            return result.text, "", {}
        case Sample(completions=(first, *_), usage=used):
            said: Any = [{"role": "assistant", "content": one.text} for one in result.completions]
            for one, reply in zip(result.completions, said, strict=True):
                reply["contents"] = [{"type": "reasoning", "text": one.reasoning}] if one.reasoning else []
            count: Any = {"prompt": used.prompt_tokens, "completion": used.completion_tokens,
                          "total": used.prompt_tokens + used.completion_tokens,
                          "prompt_details": {"cache_read": used.cached_tokens}}  # fmt: skip
            told = get_llm_attributes(output_messages=said, token_count=count)
            return first.text, "", {**told, "llm.finish_reason": first.finish}
        case tuple():
            found: Any = [{"id": one.id, "content": one.text, "metadata": {"title": one.title}, "score": one.score}
                          for one in result]  # fmt: skip
            return None, "", get_retriever_attributes(documents=found)
    return None, "", {}


def carried() -> dict[str, str]:
    """What names the present span to another process; nothing where no traces are asked for."""
    carrier: dict[str, str] = {}
    if _tracer():
        _w3c().inject(carrier)
    return carrier


async def beneath(carrier: Mapping[str, str], work: Awaitable[Given]) -> Given:
    """What `work` gives, its spans below another process's (`carried`)."""
    if not carrier or _tracer() is None:
        return await work
    from opentelemetry import context

    token = context.attach(_w3c().extract(carrier))
    try:
        return await work
    finally:
        context.detach(token)


def _w3c() -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()


@cache
def _tracer() -> Any:
    """The tracer; None where nobody asks for one, or the extra is missing, which is said. Made once a process."""
    if "otlp" not in os.environ.get("OTEL_TRACES_EXPORTER", "").split(","):
        return None
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    try:
        from openinference.instrumentation import OITracer, TraceConfig
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        provider: Any = trace.get_tracer_provider()
        if isinstance(provider, trace.ProxyTracerProvider):  # else the program around us has its own
            provider = TracerProvider(shutdown_on_exit=False)  # ours alone: FastAPI would write spans to a global one
            _senders.append(_Sender(provider))
            provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return OITracer(provider.get_tracer("steprag"), TraceConfig())
    except ModuleNotFoundError as error:
        say(f"no traces: OTEL_TRACES_EXPORTER asks for them, but {error.name} is not installed: {remedy('otel')}")
    except ValueError as error:  # a variable's number that is none
        say(f"no traces: a variable OTEL_… cannot be read: {error}")
    return None


class _Sender(logging.Handler):
    """Says a collector's first fault alone, and bounds the wait for the last spans."""

    def __init__(self, provider: Any) -> None:
        super().__init__(logging.WARNING)
        self.provider, self._told, self._over, self._sent = provider, False, threading.Event(), threading.Event()
        threading.Thread(target=lambda: (self._over.wait(), provider.shutdown(), self._sent.set()), daemon=True).start()
        log = logging.getLogger("opentelemetry")
        log.addHandler(self)
        log.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        if not self._told:
            say(f"traces: {shortened(record.getMessage(), 200)}; the run continues without (said once)")
        self._told = True
        if self._over.is_set():
            self._sent.set()  # nobody waits for a collector that fails

    def finish(self) -> None:
        """Waits for the last spans, `GRACE` at most."""
        self._over.set()
        self._sent.wait(GRACE)


_senders: list[_Sender] = []


@atexit.register
def finish_traces() -> None:
    """Sends what is left, where a process ends."""
    for sender in _senders:
        sender.finish()
