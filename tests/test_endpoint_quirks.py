"""What endpoints do otherwise than OpenAI's own: one row a quirk, with what becomes of it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.commands import main
from steprag.agent.grammars import GRAMMARS, TRANSCRIPT
from steprag.agent.judge import Judge, VerdictFormat
from steprag.batch.database import JournalReader
from steprag.config.sections import DECIDED, SAMPLED, JudgeConfig, PolicyConfig
from steprag.errors import ConfigError, ContentFiltered, PolicyError, PolicyRefused, PolicyUnavailable, StepragError
from steprag.policy.client import OpenAIPolicy
from steprag.policy.listing import same_name, served_models
from steprag.policy.open import model_identity
from steprag.policy.requests import OutputFormat, request_body
from steprag.policy.streams import Events
from steprag.records.jsonl import read_records, write_records
from steprag.runs.run import read_manifest
from steprag.tree import Failure
from steprag.types import Message, Prediction, Question, Sample, State, Usage
from tests.fakes import QUESTION, WORLD, Endpoint, answer, options, serve
from tests.indexing import words_index

TEXT = answer("lek")
Reply = Callable[[dict[str, Any]], tuple[int, object]]


class Bench:
    """An endpoint that answers as the test at hand says, and policies that ask it in one event loop."""

    def __init__(self, endpoint: Endpoint, runner: asyncio.Runner) -> None:
        self.endpoint, self.runner, self.heard = endpoint, runner, list[str]()
        self._policies: dict[int, OpenAIPolicy] = {}

    def opened(self, form: OutputFormat, role: type[PolicyConfig], **keys: Any) -> OpenAIPolicy:
        given: dict[str, Any] = {"engine": "openai", "model": "double", "base_url": self.endpoint.url, "retries": 0}
        config = role(**{**given, **keys})
        return OpenAIPolicy(config, config.base_url, "double", form)

    def ask(
        self, form: OutputFormat = TRANSCRIPT, *, n: int = 1, streamed: bool = False, fresh: bool = False,
        role: type[PolicyConfig] = PolicyConfig, allowed: tuple[str, ...] = ("query", "answer"), **keys: Any,
    ) -> Any:  # fmt: skip
        """The sample, or the error. `fresh`: by a policy that has asked nothing yet, as are later ones of the form."""
        if fresh or id(form) not in self._policies:
            self._policies[id(form)] = self.opened(form, role, **keys)
        return self.runner.run(self._asked(self._policies[id(form)], allowed, n, streamed))

    async def _asked(
        self, policy: OpenAIPolicy, allowed: tuple[str, ...], n: int, streamed: bool
    ) -> Sample | StepragError:
        messages = (Message(role="user", content="?"),)
        self.heard.clear()
        try:
            if streamed:
                return await policy.stream(messages, allowed, seed=3, listener=self.heard.append)
            return await policy.sample(messages, allowed, n=n, seed=3)
        except StepragError as error:
            return error


Replying = Callable[[Any], Bench]


@pytest.fixture(scope="module")
def replying() -> Iterator[Replying]:
    """Has the endpoint answer so, and gives the bench; requests of earlier tests are forgotten."""
    replies: list[Any] = []

    def switch(reply: Any) -> Bench:
        replies[:] = [reply if callable(reply) else lambda request: (200, reply)]
        endpoint.requests.clear()
        return bench

    with serve(lambda request: replies[0](request)) as endpoint, asyncio.Runner() as runner:
        bench = Bench(endpoint, runner)
        yield switch


def reply_with(**choice: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"content": TEXT}, "finish_reason": "stop", **choice}]}


def said(content: object, finish: str | None = "stop", **more: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"content": content, **more}, "finish_reason": finish}]}


def used(**usage: object) -> dict[str, Any]:
    return {**said(TEXT), "usage": usage}


def events(*values: object, between: str = "\n\n") -> bytes:
    lines = [value if isinstance(value, str) else f"data: {json.dumps(value)}" for value in values]
    return (between.join(lines) + between).encode()


def delta(content: object, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": content, **more}, "finish_reason": finish}]}


HALVES = [TEXT[:9], TEXT[9:]]
STREAMED = events(*map(delta, HALVES), delta(None, "stop"), "data: [DONE]")
READ = {
    **{f"finish {word}": reply_with(finish_reason=word) for word in (
        None, "eos", "STOP", "eos_token", "end_turn", "error", "abort", "tool_calls", 7)},
    "nothing but a text": {"choices": [{"message": {"content": TEXT}}]},
    "of another class": {**said(TEXT), "object": "text_completion", "created": 1.5, "service_tier": "x", "id": 7},
    "usage without a total": used(prompt_tokens=3, completion_tokens=2),
    "usage of nulls": used(prompt_tokens=None, completion_tokens=None, prompt_tokens_details=None),
    "usage of fractions": used(prompt_tokens=3.0, completion_tokens=1.7, total_tokens="x"),
    "usage that was not counted": used(prompt_tokens=-1, completion_tokens=-1, total_tokens=None),
    "usage that is none": {**said(TEXT), "usage": []},
    "parts": said([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": TEXT[:5]}, TEXT[5:]]),
    "one part": said({"type": "text", "text": TEXT}),
    "a part's value": said([{"type": "text", "text": {"value": TEXT, "annotations": []}}]),
    "an envelope": {"code": 0, "message": "success", "data": said(TEXT)},
    "usage in the choice": reply_with(usage={"prompt_tokens": 3, "completion_tokens": 2}),
    "usage by other names": used(input_tokens=3, output_tokens=2),
    "events in envelopes": events(*({"output": delta(half), "usage": {}} for half in HALVES)),
    "the old API": {"choices": [{"text": TEXT}]},
    "a delta": {"choices": [{"delta": {"content": TEXT}, "finish_reason": "stop"}]},
    "a refusal": said(None, refusal=TEXT),
    "plain text": json.dumps(said(TEXT)).encode(),
    "a byte order mark": b"\xef\xbb\xbf" + json.dumps(said(TEXT)).encode(),
    "events": STREAMED,
    "events with the lines of Windows": STREAMED.replace(b"\n", b"\r\n"),
    "events, comments, no end": events(": ping", "event: message", *map(delta, HALVES), delta("", "stop"), ": ping"),
    "events without choices": events({"id": "x"}, {"choices": []}, delta(TEXT, "stop"), {"usage": {}}),
    "events of parts": events(delta([{"type": "text", "text": TEXT}], "stop")),
    "events of whole replies": events(said(TEXT, None), "data: [DONE]"),
    "events without a reason for the end": events(*map(delta, HALVES), "data: [DONE]"),
    "events that end with the connection": events(*map(delta, HALVES)),
    "events that say nothing": events(
        "data: ping", delta(HALVES[0]), "data: null", ": still here", "event: ping\ndata: {\"type\": \"ping\"}",
        'event: note\ndata: "keep-alive"', "ping", "id: 7", delta(HALVES[1]), "retry: 5", "data: [DONE]"),
    "events without empty lines": events(*map(delta, HALVES), delta(None, "stop"), "data: [DONE]", between="\n"),
    "events with the lines of old Macs": STREAMED.replace(b"\n", b"\r"),
    "events of a line each": b"".join(json.dumps(delta(half)).encode() + b"\n" for half in HALVES),
    "events that repeat what came": events(*({"choices": [{
        "index": 0, "message": {"role": "assistant", "content": "".join(HALVES[: n + 1])}, "finish_reason": None,
        "delta": {"content": half}}]} for n, half in enumerate(HALVES)), delta("", "stop")),
    "a whole reply with an empty delta": events({"choices": [{**said(TEXT)["choices"][0], "delta": {"content": ""}}]}),
}  # fmt: skip


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("quirk", READ)
def test_a_reply_needs_its_text_alone(quirk: str, streamed: bool, replying: Replying) -> None:
    reply = READ[quirk]
    sample = replying(reply).ask(streamed=streamed)
    assert isinstance(sample, Sample), sample
    (completion,) = sample.completions
    assert completion.text == TEXT
    assert sample.usage.calls == 1
    assert 0 <= sample.usage.prompt_tokens <= 3
    assert 0 <= sample.usage.completion_tokens <= 2
    assert sample.usage.prompt_tokens == 3 or quirk not in ("usage in the choice", "usage by other names")
    if quirk.startswith("finish") and not quirk.endswith("None"):
        assert f"finish {completion.finish}" == quirk


@pytest.mark.parametrize(("reply", "words"), [
    ({}, "choices: expected a list with one or more, found None"),
    ({"choices": [], "id": "x"}, "found [] among ['choices', 'id']"),
    ({"choices": ["x"]}, "choices: expected an object, found 'x'"),
    ([], "the reply: expected an object, found []"),
    (said(7), "message.content: expected a text, found 7"),
    ({"choices": [{"message": "x"}]}, "message: expected an object, found 'x'"),
    (said("", "error"), "finish_reason: 'error', with a text that breaks off"),
    (said("So the answer is <answer> le", "network_error"), "with a text that breaks off"),
    (b"<html>", "Expecting value"),
    (b"<!DOCTYPE html><title>Log in</title><script>x</script> to go on", "it is a page: 'Log in to go on'"),
    (events(delta("So"), "event: error\ndata: the engine died"), "the engine died"),
    (events(delta("So"), "data: the engine died"), "without a finish_reason, and says 'the engine died'"),
    (used(prompt_tokens=-3), "usage.prompt_tokens: -3 is no count"),
])  # fmt: skip
def test_a_reply_that_cannot_be_read_names_the_field(reply: object, words: str, replying: Replying) -> None:
    error = replying(reply).ask()
    assert type(error) is PolicyError
    assert words in str(error)


@pytest.mark.parametrize("ends", ["\r\n", "\n", "\r"])
def test_a_stream_is_read_the_same_wherever_its_parts_are_cut(ends: str) -> None:
    body = f'event: error{ends}data: {{"code": 1}}{ends}{ends}data: {{{ends}data: }}{ends}{ends}'.encode()
    for place in range(len(body) + 1):
        cut = Events()
        told = [*cut.feed(body[:place]), *cut.feed(body[place:]), *cut.end()]
        assert told == [{"error": {"code": 1}}, {}], body[:place]


def error_of(message: object, **more: object) -> dict[str, Any]:
    return {"error": {"message": message, **more}}


KEY, QUOTA, FILTER = "is refused", "used up", "filter refused this prompt"
PLACE, PAGE = "does not serve this place", "a page answers in the endpoint's place"
REFUSALS: list[tuple[int, object, type[StepragError], str]] = [
    (401, error_of("Incorrect API key"), PolicyRefused, "the key in $OPENAI_API_KEY is refused (401: Incorrect"),
    (400, [error_of("API key not valid. Please pass a valid API key.", status="INVALID_ARGUMENT")], PolicyRefused, KEY),
    (403, error_of("Country, region, or territory not supported"), PolicyRefused, "Country, region"),
    (403, {"detail": "Forbidden"}, PolicyRefused, KEY),
    (402, error_of("Insufficient Balance"), PolicyRefused, "balance is used up (402: Insufficient Balance)"),
    (200, error_of("Insufficient credits", code=402), PolicyRefused, "used up (402: Insufficient credits)"),
    (200, {"base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}}, PolicyRefused, QUOTA),
    (429, error_of("You exceeded your current quota", code="insufficient_quota"), PolicyRefused, QUOTA),
    (429, error_of("Your credit balance is too low to access the API."), PolicyRefused, QUOTA),
    (429, error_of("Quota exceeded for requests. Please retry in 31s."), PolicyError, "429: Quota exceeded"),
    (429, error_of("Rate limit reached for tokens per minute", code="rate_limit_exceeded"), PolicyError, "Rate limit"),
    (429, error_of("Quota exceeded for generate_content_requests_per_minute_per_project"), PolicyError, "429: Quota"),
    (400, error_of("Could not finish the message because max_tokens or model output limit was reached."), PolicyError,
     "raise max_tokens (400: Could not finish"),
    (403, error_of("Your input was flagged by moderation"), ContentFiltered, FILTER),
    (400, error_of("The response was filtered", code="content_filter", param="prompt"), ContentFiltered, FILTER),
    (400, error_of("Input data may contain inappropriate content.", code="data_inspection_failed"), ContentFiltered,
     "inappropriate content"),
    (400, error_of("This model's maximum context length is 8192 tokens, you asked for 9000", param="messages"),
     PolicyError, "too long (400: This model's maximum"),
    (400, error_of("'max_tokens' is too large. This model's maximum context length is 64"), PolicyError, "too long"),
    (413, "Request too large", PolicyError, "too long"),
    (404, error_of("The model `x` does not exist", code="model_not_found"), PolicyUnavailable, "model is not found"),
    (400, error_of("double is not a valid model ID"), PolicyUnavailable, "not a valid model ID"),
    (404, {"error": "model 'double' not found, try pulling it first"}, PolicyUnavailable, "try pulling it"),
    (404, {"detail": "Not Found"}, PolicyUnavailable, "does base_url end"),
    (501, b"<!DOCTYPE HTML><title>Error response</title> Unsupported method", PolicyUnavailable, "usually ends in /v1"),
    (503, error_of("The server is overloaded"), PolicyError, "overloaded (503"),
    (529, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, PolicyError, "overloaded"),
    (200, error_of("upstream is down", code=502), PolicyError, "502: upstream is down"),
    (200, {"choices": [{"error": {"message": "out of credits", "code": 402}, "message": {"content": ""}}]},
     PolicyRefused, "out of credits"),
    (500, b"<html><body>Internal   Server Error</body></html>", PolicyError, "500: Internal Server Error"),
    (400, error_of("Provider returned error", metadata={"raw": "roles must alternate"}), PolicyError, "roles must"),
    (422, {"detail": [{"loc": ["body", "messages", 0], "msg": "field required"}]}, PolicyError,
     "422: body.messages.0: field required"),
    (400, b"x" * 9000, PolicyError, "xxx...xxx"),
    (400, error_of("User location is not supported for the API use.", status="FAILED_PRECONDITION"), PolicyRefused,
     PLACE),
    (403, error_of("Access from your IP address is not allowed"), PolicyRefused, PLACE),
    (400, error_of("You have reached your specified API usage limits. You will regain access on 2026-12-01."),
     PolicyRefused, QUOTA),
    (429, error_of("You hit your monthly spending limit"), PolicyRefused, QUOTA),
    (400, error_of("This organization has been disabled."), PolicyRefused, KEY),
    (400, error_of("Organization has been restricted.", code="organization_restricted"), PolicyRefused, KEY),
    (200, {"base_resp": {"status_code": 1004, "status_msg": "login fail: Please carry the API secret key"}},
     PolicyRefused, KEY),
    (400, error_of("The access token has expired"), PolicyRefused, KEY),
    (404, error_of("No models loaded. Please load a model in the developer page."), PolicyUnavailable, "is not found"),
    (400, error_of("max_tokens must be at least 1, got -1200"), PolicyError, "the prompt is too long"),
    (403, b"<!DOCTYPE html><html><head><style>p{}</style></head><body><h1>Blocked</h1> by policy &amp; rule 7</body>",
     PolicyRefused, f"{PAGE}, as a proxy's that lets no request through (403: Blocked by policy & rule 7)"),
    (407, b"<html><title>Proxy Authentication Required</title></html>", PolicyRefused, PAGE),
    (403, error_of("Blocked by our content policy in this region"), ContentFiltered, FILTER),
    (200, said("", "content_filter"), ContentFiltered, "finish_reason 'content_filter'"),
    (200, said("So the", "SAFETY"), ContentFiltered, "filter took the reply"),
    (200, said("", "content_filter: RECITATION"), ContentFiltered, "filter took the reply"),
    (200, said("", "IMAGE_SAFETY"), ContentFiltered, "filter took the reply"),
    *((status, error_of(words), PolicyError, "the prompt is too long") for status, words in (
        (400, "InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]"),  # DashScope
        (422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193. Given: 9000"),  # TGI
        (422, "Input validation error: `inputs` must have less than 1024 tokens. Given: 1313"),
        (400, "This model's maximum prompt length is 131072 but the request contains 140000 tokens."),  # xAI
        (400, "Invalid request: Your request exceeded model token limit: 262144 (requested: 269030)"),  # Moonshot
        (400, "model max length exceeded, max length:8192"), (400, "Prompt exceeds max length"),  # Z.ai
        (400, "prompt tokens too long"), (400, "Request payload size exceeds the limit: 20971520 bytes."),
        (400, "The provided prompt length is 8999, but the maximum sequence length is 8192"))),  # SambaNova
    (429, error_of("You exceeded your current requests list.", code="limit_requests"), PolicyError, "429: You"),
    *((status, error_of(words, **more), PolicyRefused, QUOTA) for status, words, more in (
        (403, "Sorry, your account balance is insufficient", {"code": 30001}),  # SiliconFlow
        (403, "The free tier of the model has been exhausted.", {"code": "AllocationQuota.FreeTierOnly"}),
        (403, "The request failed because your account has an overdue balance.", {}),  # Volcengine
        (429, "Your account has reached the set inference limit for the model", {"code": "SetLimitExceeded"}),
        (403, "Your newly created team doesn't have any credits or licenses yet.", {}),  # xAI
        (403, "Out of call volume quota. Quota will be replenished in 05:12:33.", {}),
        (412, "Account x is suspended, possibly due to reaching the monthly spending limit. See /account/billing", {}),
        (400, "Budget has been exceeded! Current cost: 1.2, Max budget: 1.0", {"type": "budget_exceeded"}),  # LiteLLM
        (429, "Rate limit exceeded: free-models-per-day. Add 10 credits to unlock 1000", {}),  # OpenRouter
        (429, "Requests per day limit exceeded - too many requests sent.", {}),  # Cerebras
        (429, "Rate limit of 50 per 86400s exceeded for UserByModelByDay. Please wait 3600 seconds", {}),
        (429, "You are using a Trial key, which is limited to 1000 API calls / month.", {}),  # Cohere
        (429, "Please retry in 39.4s.", {"details": [{"violations": [
            {"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]}]}))),  # Gemini
    *((401, {"statusCode": 401, "message": f"Access denied due to {why} subscription key."}, PolicyRefused, KEY)
      for why in ("invalid", "missing")),  # Azure
    (400, error_of("Content Exists Risk"), ContentFiltered, FILTER),  # DeepSeek
    (400, error_of("系统检测到输入或生成内容可能包含不安全或敏感内容", code="1301"), ContentFiltered, FILTER),
    *((status, error_of(words, code=code), PolicyUnavailable, "the model is not found") for status, words, code in (
        (404, "model: claude-9", "not_found_error"), (404, "models/gemini-9 is not found for API version v1main", 404),
        (404, "This model is only supported in v1/responses and not in v1/chat/completions.", None),
        (400, "Unable to access non-serverless model x/y. Please visit /models/x/y", "model_not_available"),
        (403, "You don't have access to the model with the specified model ID.", None),
        (400, "模型不存在,请检查模型代码。", "1211"))),
    (200, {"error": "Unexpected endpoint or method. (POST /chat/completions)"}, PolicyUnavailable, "does base_url end"),
    *((400, error_of(words), ConfigError, "no system message: give a prompt profile with system_role: user")
      for words in ("Developer instruction is not enabled for models/gemma-3-27b-it", "System role not supported",
                    "Unsupported value: 'messages[0].role' does not support 'system' with this model.",
                    "Only user and assistant roles are supported!")),
    *((400, error_of(words), ConfigError, "give a prompt profile without `continued`") for words in (
        "This model does not support assistant message prefill. The conversation must end with a user message.",
        "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant",
        "The last message of deepseek-reasoner must be a user message, or an assistant message with prefix mode on",
        "Assistant response prefill is incompatible with enable_thinking.", "Last message must have role `user`.")),
    (403, {"Message": "User x may not invoke it"}, PolicyRefused, 'is refused (403: {"Message": "User x may not'),
]  # fmt: skip


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("status", "body", "kind", "words"), REFUSALS)
def test_refusals_are_told_apart_and_quoted(
    status: int, body: object, kind: type[StepragError], words: str, streamed: bool, replying: Replying
) -> None:
    bench = replying(lambda request: (status, body))
    error = bench.ask(streamed=streamed)
    assert type(error) is kind, error
    assert words in str(error)
    assert len(str(error)) < 500
    assert len(bench.endpoint.requests) == 1


def without(*fields: str, told: Callable[[str], object]) -> Reply:
    """An endpoint that takes none of these fields."""

    def reply(request: dict[str, Any]) -> tuple[int, object]:
        refused = [name for name in fields if name in request and (name != "n" or request["n"] > 1)]
        return (400, told(refused[0])) if refused else (200, said(TEXT))

    return reply


def unsupported(name: str) -> object:
    return error_of(f"Unsupported parameter: '{name}' is not supported with this model.", param=name)


def renamed(name: str) -> object:
    return error_of(f"Unsupported parameter: '{name}'. Use 'max_completion_tokens' instead.", param=name)


def forbidden(name: str) -> object:
    return {"detail": [{"loc": ["body", name], "msg": "Extra inputs are not permitted", "type": "extra_forbidden"}]}


@pytest.mark.parametrize(("fields", "told", "gone", "new"), [
    (("max_tokens",), renamed, {"max_tokens"}, {"max_completion_tokens": 128}),
    (("max_tokens", "temperature", "top_p", "stop", "seed"), unsupported,
     {"max_tokens", "temperature", "top_p", "stop", "seed"}, {"max_completion_tokens": 128}),
    (("seed",), forbidden, {"seed"}, {}),
    (("seed",), lambda name: error_of(f"Unrecognized request argument supplied: {name}"), {"seed"}, {}),
    (("n",), lambda name: error_of("'n' : number must be at most 1"), {"n"}, {}),
    (("n",), lambda name: error_of("Multiple candidates is not enabled for this model"), {"n"}, {}),
    (("top_p",), lambda name: {"error": "Input validation error: `top_p` must be > 0.0 and < 1.0"}, {"top_p"}, {}),
    (("temperature", "top_p"),
     lambda name: error_of("`temperature` and `top_p` cannot both be specified for this model."), {"top_p"}, {}),
    (("temperature",), lambda name: error_of(
        "Unsupported value: 'temperature' does not support 0.8. Only the default (1) value is supported."),
     {"temperature"}, {}),
    (("temperature",), lambda name: error_of("invalid temperature: only 1 is allowed for this model"), {"temperature"},
     {}),
    (("stop",), lambda name: error_of("'stop' is not supported with this model"), {"stop"}, {}),
    (("stop",), lambda name: error_of("Argument not supported on this model: stop"), {"stop"}, {}),
    (("stop", "seed"), lambda name: error_of("Unsupported parameter(s) for this model: seed, stop"), {"stop", "seed"},
     {}),
    (("seed",), lambda name: error_of(f"create() got an unexpected keyword argument '{name}'", code=500), {"seed"}, {}),
    (("stop",), lambda name: error_of("The presence of stop sequences is invalid for thinking models"), {"stop"}, {}),
    (("stop",), lambda name: error_of("Stop sequences are not supported by this model."), {"stop"}, {}),
    (("seed", "top_p"), lambda name: error_of(f"UnsupportedParamsError: x does not support parameters: ['{name}']"),
     {"seed", "top_p"}, {}),
])  # fmt: skip
def test_fields_that_an_endpoint_refuses_are_left_out_or_renamed(
    fields: tuple[str, ...], told: Callable[[str], object], gone: set[str], new: dict[str, int], replying: Replying,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    both = fields == ("temperature", "top_p")
    reply = without(*fields, told=told)
    bench = replying(
        lambda request: (200, said(TEXT)) if both and len({*fields} & request.keys()) < 2 else reply(request)
    )
    bench.ask(GRAMMARS["direct"], n=3, fresh=True)
    sample = bench.ask(GRAMMARS["direct"], n=3)
    assert isinstance(sample, Sample), sample
    sent = bench.endpoint.requests
    last = sent[-1]
    assert not gone & last.keys()
    assert new.items() <= last.items()
    assert {"model", "messages", "n", "seed", "temperature", "top_p", "max_tokens", "stop"} - gone <= last.keys()
    assert len(sent) == 2 + len(gone), "what was learnt once is not tried again"
    assert capsys.readouterr().err.count("from now on") == len(gone)


@pytest.mark.parametrize(("role", "message", "words"), [
    (PolicyConfig, "max_tokens must be less than 64", "set policy.max_tokens, or leave the field out: policy.omit"),
    (JudgeConfig, "`temperature` must be strictly positive", "temperature = 0.0 is refused (400: `temperature`"),
    (PolicyConfig, "`stop`: at most one", "at most one); leave the field out: policy.omit '[stop]'"),
])  # fmt: skip
def test_a_value_that_is_refused_ends_the_run_and_names_its_key(
    role: type[PolicyConfig], message: str, words: str, replying: Replying
) -> None:
    bench = replying(lambda request: (400, error_of(message)))
    error = bench.ask(GRAMMARS["direct"], role=role, fresh=True)
    assert type(error) is ConfigError
    assert words in str(error)
    assert len(bench.endpoint.requests) == 1


def test_words_that_ask_to_wait_are_heeded(replying: Replying) -> None:
    asked: list[float] = []

    def reply(request: dict[str, Any]) -> tuple[int, object]:
        asked.append(time.monotonic())
        return (200, said("85")) if len(asked) > 1 else (429, error_of("Quota exceeded. Please retry in 0.8s."))

    replying(reply).ask(VerdictFormat(), allowed=("score",), fresh=True, retries=1)
    assert asked[1] - asked[0] >= 0.8


def test_a_judge_does_without_a_schema(replying: Replying) -> None:
    told = error_of("response_format.type: must be text or json_object", param="response_format")
    bench = replying(lambda request: (400, told) if "response_format" in request else (200, said("85")))
    sample = bench.ask(VerdictFormat(), allowed=("score",), role=JudgeConfig, fresh=True)
    assert [one.text for one in sample.completions] == ["85"]


@pytest.mark.parametrize("message", [
    "This model only supports streaming.", "Stream must be set to true",
    "parameter.enable_thinking must be set to false for non-streaming calls",
    "This model only support stream mode, please enable the stream parameter to access the model.",
])  # fmt: skip
def test_an_endpoint_that_only_streams_is_asked_so(
    message: str, replying: Replying, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = replying(lambda request: (200, STREAMED) if request.get("stream") else (400, error_of(message)))
    for fresh in (True, False):
        assert bench.ask(fresh=fresh).completions[0].text == TEXT
    assert len(bench.endpoint.requests) == 3
    assert capsys.readouterr().err.count("from now on stream: true is sent") == 1


@pytest.mark.parametrize(("engine", "given", "why"), [
    *(("vllm", {field: 1}, f"extra: '{field}' is decided by ") for field in (
        "model", "messages", "n", "seed", "stream", "stream_options", "temperature", "top_p", "max_tokens", "stop",
        "top_k", "structured_outputs", "chat_template_kwargs", "max_completion_tokens")),
    ("openai", {"response_format": {}}, "extra: 'response_format' is decided by the stage; leave it out of extra"),
])  # fmt: skip
def test_a_field_that_is_decided_here_is_no_extra(
    engine: Any, given: dict[str, Any], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for section in ("policy", "judge"):
        assert main(["generate", "--questions", "q", "--index", "i", "--out", "o", f"--{section}.engine", engine,
                     f"--{section}.extra", json.dumps(given)]) == 2  # fmt: skip
        told = capsys.readouterr().err
        assert f"{section}: {why}" in told
        assert told.count("\n") == 1


@pytest.mark.parametrize("engine", ["openai", "vllm", "sglang", "llamacpp"])
def test_all_that_a_request_holds_is_decided_here(engine: Any) -> None:
    config = PolicyConfig(engine=engine, base_url="http://x/v1", chat_template_kwargs={"a": 1})
    for form, action in ((TRANSCRIPT, "answer"), (VerdictFormat(), "score")):
        body = request_body(config, "m", form, (Message(role="assistant", content="So"),), (action,), n=1, seed=0)
        assert body.keys() <= {*DECIDED, *SAMPLED}


def test_an_extra_that_is_refused_ends_the_run_and_is_named(replying: Replying) -> None:
    bench = replying(lambda request: (400, unsupported("reasoning_effort")))
    error = bench.ask(fresh=True, extra={"reasoning_effort": "low"})
    assert type(error) is ConfigError
    assert "reasoning_effort = 'low' is refused" in str(error)
    assert "change it in policy.extra" in str(error)


def test_keys_say_what_is_sent(replying: Replying) -> None:
    bench = replying(said(TEXT))
    bench.ask(fresh=True, omit=("temperature", "seed"), rename={"max_tokens": "max_completion_tokens"},
              chat_template_kwargs={"enable_thinking": False}, extra={"thinking": {"a": 1}, "top_k": 5})  # fmt: skip
    (request,) = bench.endpoint.requests
    assert not {"temperature", "seed", "max_tokens"} & request.keys()
    assert request["max_completion_tokens"] == 128
    assert request["chat_template_kwargs"] == {"enable_thinking": False}
    assert (request["thinking"], request["top_k"]) == ({"a": 1}, 5)
    given = PolicyConfig(engine="openai", extra={"top_k": 5})
    assert model_identity(given)["extra"] == {"top_k": 5}, "other fields make another run"


@pytest.mark.parametrize(("content", "finish", "text", "end"), [
    ("<answer> Tirana </answ", "stop", "<answer> Tirana </answer>", "stop"),
    ("<answer> Tirana <", "eos", "<answer> Tirana </answer>", "eos"),
    ("<answer> Tirana", None, "<answer> Tirana</answer>", "unknown"),
    ("<answer> Tirana </answer> Then <answer> Lima", "length", "<answer> Tirana </answer>", "stop"),
    ("<answer> Tirana </answ", "length", "<answer> Tirana </answ", "length"),
    ("<answer> Tirana", "MAX_TOKENS", "<answer> Tirana", "length"),
    ("Tirana <", "stop", "Tirana <", "stop"),
    *((f"<answer> Tirana{end}", "stop", "<answer> Tirana</answer>", "stop") for end in (
        "<|im_end|>", "<|eot_id|>", "</s>", "<end_of_turn>", "<|return|>", "<turn|>", "<eos>", "<｜end▁of▁sentence｜>",
        "<|im_end|>\n<|endoftext|>\n", "<|im_end|>\n<|im_start|>user\nWhich?<|im_end|>", "<|user|>\nWhich?",
        "<|eot|><|header_start|>user<|header_end|>\n\nWhich?", "<seed:eos>", "[|endofturn|]\n[|user|]Which?",
        "<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>Which?", "<｜hy_User｜>Which?")),
    ("<answer> </s> Tirana", "stop", "<answer> </s> Tirana</answer>", "stop"),
])  # fmt: skip
def test_completions_end_at_their_stop_string(
    content: str, finish: str | None, text: str, end: str, replying: Replying
) -> None:
    (completion,) = replying(said(content, finish)).ask(GRAMMARS["cot"]).completions
    assert (completion.text, completion.finish) == (text, end)


@pytest.mark.parametrize(("engine", "told", "closed"), [
    ("vllm", {"stop_reason": "</answer>"}, True), ("sglang", {"matched_stop": "</answer>"}, True),
    ("vllm", {"stop_reason": None}, False), ("sglang", {"matched_stop": 2}, False),
    ("vllm", {}, True), ("openai", {"stop_reason": None}, True),
])  # fmt: skip
@pytest.mark.parametrize("streamed", [False, True])
def test_no_tag_is_closed_for_a_model_that_ended_by_itself(
    engine: str, told: dict[str, Any], closed: bool, streamed: bool, replying: Replying
) -> None:
    """Where the engine says so; one that says nothing is taken to have stopped at the tag."""
    choice = {"message": {"content": "<answer> lek"}, "finish_reason": "stop", **told}
    bench = replying({"choices": [choice]})
    sample = bench.ask(GRAMMARS["direct"], streamed=streamed, fresh=True, engine=engine, allowed=("answer",))
    assert sample.completions[0].text == "<answer> lek" + "</answer>" * closed


THOUGHT = "I could <answer> now.\n<query>"


@pytest.mark.parametrize(("message", "text", "reasoning"), [
    ({"content": f"<think>\n{THOUGHT}\n</think>\n\n{TEXT}"}, TEXT, f"<think>\n{THOUGHT}"),
    ({"content": f"{THOUGHT}\n</think>\n\n{TEXT}"}, TEXT, THOUGHT),
    ({"content": f"<seed:think>{THOUGHT}</seed:think>{TEXT}"}, TEXT, f"<seed:think>{THOUGHT}"),
    ({"content": f"[THINK]{THOUGHT}[/THINK]{TEXT}"}, TEXT, f"[THINK]{THOUGHT}"),
    ({"content": f"<think>{THOUGHT}"}, "", f"<think>{THOUGHT}"),
    *(({"content": f"{opening}{THOUGHT}{closing}{TEXT}"}, TEXT, f"{opening}{THOUGHT}") for opening, closing in (
        ("<mm:think>", "</mm:think>"), ("<longcat_think>", "</longcat_think>"), ("<think:fast>", "</think:fast>"),
        ("<THINK>", "</THINK>"), ("<|channel>thought\n", "<channel|>"), ("analysis", "assistantfinal"),
        ("<|channel|>analysis<|message|>", "<|channel|>final <|constrain|>json<|message|>"))),
    ({"content": f"<think>{THOUGHT}</think>\n<think>More</think>\n\n{TEXT}"}, TEXT,
     f"<think>{THOUGHT}\n<think>More"),
    ({"content": f"{THOUGHT}</think>More</think>{TEXT}"}, TEXT, f"{THOUGHT}\nMore"),
    ({"content": f"<think>{THOUGHT}</think>{TEXT[:9]}<think>More</think>{TEXT[9:]}"}, TEXT,
     f"<think>{THOUGHT}\n<think>More"),
    ({"content": "analysis of money: lek"}, "analysis of money: lek", ""),
    ({"content": TEXT, "reasoning_content": THOUGHT}, TEXT, THOUGHT),
    ({"content": None, "reasoning": THOUGHT}, "", THOUGHT),
    ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": THOUGHT}]}, TEXT]}, TEXT, THOUGHT),
    ({"content": f"<reasoning> {THOUGHT} </reasoning>"}, f"<reasoning> {THOUGHT} </reasoning>", ""),
])  # fmt: skip
@pytest.mark.parametrize("streamed", [False, True])
def test_reasoning_is_split_off(
    message: dict[str, Any], text: str, reasoning: str, streamed: bool, replying: Replying
) -> None:
    (completion,) = replying(said(**message)).ask(streamed=streamed).completions
    assert (completion.text, completion.reasoning) == (text, reasoning)


def test_reasoning_is_not_heard(replying: Replying) -> None:
    pieces = ["<th", "ink>hm", " hm</th", "ink>\n<think:", "x>hm</think:x>", "\n\nSo the", " answer", "<|im_end|>"]
    bench = replying(events(*map(delta, pieces), delta(None, "stop")))
    assert isinstance(bench.ask(streamed=True), Sample)
    assert bench.heard == ["So the", " answer"]


def test_reasoning_that_belongs_to_the_grammar_stays(replying: Replying) -> None:
    text = "<think> I know. </think><answer> lek </answer>"
    (completion,) = replying(said(text)).ask(GRAMMARS["search-r1"]).completions
    assert (completion.text, completion.reasoning) == (text, "")


@pytest.mark.parametrize(("told", "usage"), [
    ({"prompt_tokens": 32, "completion_tokens": 9, "total_tokens": 135}, Usage(1, 32, 103)),  # xAI, Gemini
    ({"prompt_tokens": 5, "total_tokens": 133}, Usage(1, 5, 128)),
    ({"prompt_tokens": 19, "completion_tokens": 21, "total_tokens": 40, "cached_tokens": 10}, Usage(1, 19, 21, 10)),
    ({"prompt_tokens": 19, "completion_tokens": 21, "total_tokens": 21}, Usage(1, 19, 21)),
    ({"prompt_tokens": 19, "completion_tokens": 3, "completion_tokens_details": {"reasoning_tokens": 40}},
     Usage(1, 19, 43)),
    ({"prompt_tokens": 19, "completion_tokens": 43, "completion_tokens_details": {"reasoning_tokens": 40}},
     Usage(1, 19, 43)),
    ({"completion_tokens": 21, "total_tokens": 40}, Usage(1, 19, 21)),
    ({"prompt_tokens": "19", "completion_tokens": "21", "total_tokens": "40"}, Usage(1, 19, 21)),
    ({"prompt_tokens": True, "completion_tokens": "many"}, Usage(1)),
    ({"input_tokens": 9, "cache_read_input_tokens": 8, "cache_creation_input_tokens": 2, "output_tokens": 21},
     Usage(1, 19, 21, 8)),
    ({"input_tokens": 19, "input_tokens_details": {"cached_tokens": 8}, "output_tokens": 21}, Usage(1, 19, 21, 8)),
    ({"prompt_tokens": 19, "completion_tokens": 21, "cost": 0.0015, "is_byok": False,
      "cost_details": {"upstream_inference_cost": 0.03}}, Usage(1, 19, 21, charged=1_500_000)),
    ({"prompt_tokens": 19, "completion_tokens": 21, "cost": 0, "is_byok": True,
      "cost_details": {"upstream_inference_cost": 0.03}}, Usage(1, 19, 21, charged=30_000_000)),
    ({"prompt_tokens": 19, "completion_tokens": 21, "cost": {"total_cost": 0.006}},
     Usage(1, 19, 21, charged=6_000_000)),
    ({"prompt_tokens": 19, "completion_tokens": 21, "cost": "free"}, Usage(1, 19, 21)),
])  # fmt: skip
def test_what_a_reply_used_is_read_whatever_its_names(told: dict[str, Any], usage: Usage, replying: Replying) -> None:
    assert replying(used(**told)).ask().usage == usage


def test_of_several_completions_the_filtered_ones_are_left_out(replying: Replying) -> None:
    two = {"choices": [said("", "content_filter")["choices"][0], said(TEXT)["choices"][0]]}
    sample = replying(two).ask(n=2)
    assert [one.text for one in sample.completions] == [TEXT]
    assert sample.usage == Usage(1)


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    write_records(tmp_path / "q.jsonl", [Question(f"q{i}", f"{QUESTION} ({i})", ("lek",)) for i in range(3)])
    return tmp_path / "q.jsonl"


@pytest.fixture(scope="module")
def word_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return words_index(tmp_path_factory.mktemp("words"), WORLD)


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(
    replying: Replying, questions: Path, word_index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Run:
    def run(stage: str, reply: Reply | object, *more: str) -> tuple[int, str]:
        endpoint = replying(reply).endpoint
        code = main([stage, *options(endpoint, questions, word_index, tmp_path / stage, *more)])
        return code, capsys.readouterr().err

    return run


PRICED = ("--policy.price.prompt", "1000", "--policy.price.completion", "1000")


@pytest.mark.parametrize(("usage", "keys", "usd"), [
    (None, ("--budget.tokens", "430"), None),
    (None, (*PRICED, "--budget.usd", "0.43"), "estimated"),
    ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, (*PRICED, "--budget.usd", "0.43"), "estimated"),
    ({"completion_tokens": 9}, (*PRICED, "--budget.usd", "0.43"), "estimated"),
    ({"completion_tokens": "9", "prompt_tokens": "700"}, (*PRICED, "--budget.usd", "0.43"), "known"),
])  # fmt: skip
def test_tokens_that_replies_do_not_report_are_estimated_and_budgets_hold(
    usage: object, keys: tuple[str, ...], usd: str | None, run: Run, tmp_path: Path
) -> None:
    code, told = run("infer", {**said(TEXT), "usage": usage}, *keys)
    spent = read_manifest(tmp_path / "infer")["spent"]
    assert (code, 0 < spent["calls"] < 3) == (4, True), told
    assert told.count("estimated from the text") == (usd != "known")
    assert (spent["usd"] is None, "usd_estimated" in spent) == (usd != "known", usd == "estimated")
    assert spent.get("estimated") == (None if usd == "known" else spent["calls"])
    code, told = run("infer", {**said(TEXT), "usage": usage}, "--budget.calls", "9", *keys[:-2])
    assert (code, read_manifest(tmp_path / "infer")["spent"]["calls"]) == (0, 3)
    assert (read_manifest(tmp_path / "infer")["spent"]["usd"] is None) == (usd != "known"), "also from the journal"


def test_dollars_that_replies_report_stand_in_for_a_price(run: Run, tmp_path: Path) -> None:
    usage = {"prompt_tokens": 700, "completion_tokens": 9, "cost": 0.0015}
    assert run("infer", {**said(TEXT), "usage": usage})[0] == 0
    assert read_manifest(tmp_path / "infer")["spent"]["usd"] == pytest.approx(0.0045)


@pytest.mark.parametrize("last", [{"prompt_tokens": 3, "completion_tokens": 2}, {"completion_tokens": 2}])
def test_usage_is_gathered_from_all_chunks(last: dict[str, int], replying: Replying) -> None:
    begun = {**delta(HALVES[0]), "usage": {"prompt_tokens": 3, "completion_tokens": 1}}
    reply = events(begun, delta(HALVES[1], "stop"), {"choices": [], "usage": {**last, "total_tokens": None}})
    assert replying(reply).ask(streamed=True).usage == Usage(1, 3, 2)


@pytest.mark.parametrize(("reply", "words"), [
    (said("So the", "length"), "(truncated 3); first: truncated: 'So the'; raise policy.max_tokens"),
    (said("", "length", reasoning="x" * 400), "(truncated 3); first: truncated: ''; 1,200 characters of reasoning"),
    (said("", reasoning_content="x" * 400), "(empty 3); first: empty: ''; 1,200 characters of reasoning"),
])  # fmt: skip
def test_a_run_whose_completions_are_all_refused_says_so(
    reply: dict[str, Any], words: str, run: Run, tmp_path: Path
) -> None:
    code, told = run("infer", reply)
    assert f"infer: 3 of 3 completions were refused {words}" in told
    assert (code, read_manifest(tmp_path / "infer")["status"]) == (3, "partial")
    assert run("infer", reply)[0] == 3, "started again, it still is"


def test_trees_and_pairs_of_nothing_say_so(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = run("generate", said("I do not know."), "--search.preset", "fast")
    why = "6 of 6 completions were refused (no_action 6); first: no_action: 'I do not know.'; take a model that was"
    assert code == 3
    assert f"generate: {why}" in told
    assert main(["pairs", "--trees", str(tmp_path / "generate")]) == 3
    assert f"pairs: {why}" in capsys.readouterr().err


def test_it_is_said_early_too(run: Run) -> None:
    _, told = run("generate", said("I do not know."), "--search.preset", "reasonrag", "--search.children", "8",
                  "--reward.name", "spre")  # fmt: skip
    assert told.count("24 of 24 completions were refused") == 2


def test_what_a_filter_took_is_a_failed_question_and_no_wrong_answer(run: Run, tmp_path: Path) -> None:
    code, _ = run("infer", lambda request: (200, said("", "content_filter") if "(1)" in str(request) else said(TEXT)))
    assert code == 3
    (failure,) = read_records(tmp_path / "infer/failures.jsonl", Failure)
    assert (failure.id, failure.reason) == ("q1", "ContentFiltered")
    assert json.loads((tmp_path / "infer/metrics.json").read_text())["em"] == 1.0


def test_what_was_learnt_stands_in_the_manifest_and_reasoning_in_the_journal(run: Run, tmp_path: Path) -> None:
    refusing = without("seed", "max_tokens", told=unsupported)

    def reply(request: dict[str, Any]) -> tuple[int, object]:
        status, body = refusing(request)
        return (status, body) if status == 400 else (200, said(f"<think>{THOUGHT}</think>{TEXT}"))

    assert run("infer", reply)[0] == 0
    manifest = read_manifest(tmp_path / "infer")
    assert manifest["refused_fields"] == {"policy": {"seed": None, "max_tokens": "max_completion_tokens"}}
    assert manifest["reasoning_chars"] == 3 * len(f"<think>{THOUGHT}")
    kept = JournalReader.reading(tmp_path / "infer/calls.sqlite")
    ((_, sample),) = kept.calls_of("q1")
    kept.close()
    assert (sample.completions[0].text, sample.completions[0].reasoning) == (TEXT, f"<think>{THOUGHT}")


def test_a_folder_is_not_bound_to_a_model_that_never_answered(run: Run) -> None:
    def reply(request: dict[str, Any]) -> tuple[int, object]:
        named = request["model"] == "double"
        return (200, said(TEXT)) if named else (404, error_of(f"The model `{request['model']}` does not exist"))

    code, told = run("infer", reply, "--policy.model", "duoble")
    assert code == 2
    assert "serves double, not 'duoble'" in told
    assert "the model is not found (404: The model `duoble` does not exist)" in told
    assert run("infer", reply)[0] == 0
    code, told = run("infer", reply, "--policy.model", "duoble")
    assert code == 2
    assert "choose another folder" in told


@pytest.mark.parametrize(("listing", "warned"), [
    ((403, error_of("no access to models")), "gives no list of models (403: no access to models)"),
    ((401, b"<html><h1>Sign in</h1></html>"), "gives no list of models (401: Sign in)"),
    ((405, {"detail": "Method Not Allowed"}), ""), ((404, b"no"), ""),
    ((500, b"oh"), "gives no list of models (500: oh)"),
    ((200, b"<!doctype html><title>Welcome</title>"), "an OpenAI-compatible endpoint does, whose URL usually ends in"),
    ((200, {"status": "ok"}), "gives no list of models"),
    ((200, {"data": [None, 7, {}, "double", {"id": None}]}), ""),
])  # fmt: skip
def test_a_list_of_models_is_advice(
    listing: tuple[int, object], warned: str, questions: Path, word_index: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    with serve(lambda request: (200, said(TEXT)), listing) as endpoint:
        given = options(endpoint, questions, word_index, tmp_path / "run", "--policy.retries", "0")
        assert main(["infer", *given]) == 0
    told = capsys.readouterr().err
    assert warned in told
    assert told.count("warning") == bool(warned)
    assert not warned or "the first request will tell" in told


def test_a_wrong_key_shows_at_the_first_request(questions: Path, word_index: Path, tmp_path: Path) -> None:
    refused = 401, error_of("Incorrect API key")
    with serve(lambda request: refused, refused) as endpoint:
        assert main(["infer", *options(endpoint, questions, word_index, tmp_path / "run")]) == 5
        assert len(endpoint.requests) <= 4


@pytest.mark.parametrize(("reply", "why", "code", "asked"), [
    (lambda n: (400, error_of(f"request {n}a7 lacks a header")), "request 20a7 lacks a header", 5, 20),
    (lambda n: (500, b"the disk is full"), "the disk is full", 5, 20),
    (lambda n: (200, b"<title>Welcome</title>"), "it is a page: 'Welcome'", 5, 20),
    (lambda n: (200, said(TEXT)) if n == 3 else (400, error_of("no")), "", 3, 25),
    (lambda n: (400, error_of("n" + "o" * n)), "", 3, 25),
    (lambda n: (429, error_of("slow down")), "", 3, 25),
    (lambda n: (400, error_of("the prompt is too long")), "", 3, 25),
])  # fmt: skip
def test_a_run_ends_where_all_requests_are_refused_alike(
    reply: Callable[[int], tuple[int, object]], why: str, code: int, asked: int, replying: Replying, word_index: Path,
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    write_records(tmp_path / "q.jsonl", [Question(f"q{i}", f"{QUESTION} ({i})", ("lek",)) for i in range(25)])
    endpoint = replying(lambda request: reply(len(endpoint.requests))).endpoint
    given = options(endpoint, tmp_path / "q.jsonl", word_index, tmp_path / "run", "--policy.concurrency", "1",
                    "--policy.retries", "0", "--prompt.profile", "direct")  # fmt: skip
    assert main(["infer", *given]) == code
    assert len(endpoint.requests) == asked
    told = capsys.readouterr().err
    assert why in told
    assert ("the first 20 requests failed so and none was answered" in told) == (code == 5)
    assert not list(read_records(tmp_path / "run/predictions.jsonl", Prediction)) or code == 3


@pytest.mark.parametrize(("model", "listed", "same"), [
    ("gemini-2.5-flash", "models/gemini-2.5-flash", True), ("llama3", "llama3:latest", True),
    ("openai/gpt-4o:nitro", "openai/gpt-4o", True), ("my-deployment", "gpt-4o", False),
])  # fmt: skip
def test_names_of_one_model(model: str, listed: str, same: bool) -> None:
    assert same_name(model, listed) == same


@pytest.mark.parametrize("text", [
    '{"data": [{"id": "a"}]}', '[{"id": "a"}]', '{"models": [{"name": "a"}]}', '\ufeff{"data": [{"id": "a"}]}',
])  # fmt: skip
def test_lists_of_models_have_several_forms(text: str) -> None:
    assert served_models(text, "") == {"a": {}}
    assert served_models('{"data": null}', "") == {}


def test_a_judge_that_only_thinks_fails_the_question(replying: Replying) -> None:
    bench = replying(said(None, "length", reasoning="x" * 1200))
    judge = Judge(bench.opened(VerdictFormat(), JudgeConfig), gold=True)
    with pytest.raises(PolicyError, match=r"1,200 characters of reasoning and no reply: raise judge\.max_tokens"):
        bench.runner.run(judge.score(Question("q", QUESTION, ("lek",)), State(QUESTION), seed=0))
