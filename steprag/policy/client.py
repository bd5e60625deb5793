"""The one client: language models are reached over HTTP, by the OpenAI chat API, whatever serves them.

GPT-4o, vLLM, SGLang, llama.cpp and a test double all look the same here; their dialects are `steprag.policy.requests`.
"""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import quote

import aiohttp
import openai

from steprag.config.sections import PolicyConfig
from steprag.engines.launch import EngineSpec
from steprag.engines.models import resolve_model, sha256_of, weights_hash
from steprag.engines.server import serving_us
from steprag.errors import ConfigError, PolicyError, PolicyRefused, PolicyUnavailable, StepragError, quoted
from steprag.net.bounded_http import BoundedClient
from steprag.policy.gate import Gate
from steprag.policy.protocols import Listener, Policy
from steprag.policy.replies import sample_of, served_models, whole_reply
from steprag.policy.requests import OutputFormat, begun, request_body
from steprag.policy.scoring import EndpointScorer
from steprag.types import Message, Sample


class _AioClient(BoundedClient, openai.DefaultAioHttpClient):
    """Uses aiohttp: httpx2's own pool checks every connection on every request, half as much work again at 64."""


class OpenAIPolicy:
    """A policy behind an OpenAI-compatible endpoint. Use as an async context manager.

    The caller bounds the requests in flight (`steprag.policy.gate`). The `openai` package retries 408, 409, 429, 5xx
    and lost connections, honouring Retry-After; malformed replies are asked for again as often. A failure that remains
    is a PolicyError.
    """

    def __init__(
        self, config: PolicyConfig, base_url: str | None, model: str, grammar: OutputFormat, key: str | None = None
    ) -> None:
        """`key`: what the endpoint wants; None: what `policy.api_key_env` holds."""
        self._config, self._base_url, self._model, self._grammar = config, base_url, model, grammar
        self.served: dict[str, str] = {}
        """The endpoint's report of a model that this program did not start: vLLM names its files (`root`, `parent`)."""
        self._key = key = key or api_key(config.api_key_env, base_url)
        asked = base_url or os.environ.get("OPENAI_BASE_URL", "")  # where the package asks, too
        self._client = openai.AsyncOpenAI(
            api_key=key,
            base_url=base_url,
            timeout=config.timeout,
            max_retries=config.retries,
            http_client=_AioClient(asked, seconds=config.timeout, secret=key),
        )
        self._headers: dict[str, str] = {}
        self._scorers: list[EndpointScorer] = []
        self._where = f"{model} at {self._client.base_url}"

    async def __aenter__(self) -> OpenAIPolicy:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()

    def beside(self, config: PolicyConfig, grammar: OutputFormat) -> OpenAIPolicy:
        """Another policy of the same model at the same endpoint, with its own sampling and format."""
        other = OpenAIPolicy(config, self._base_url, self._model, grammar, self._key)
        other.served = self.served
        return other

    def in_session(self, name: str) -> OpenAIPolicy:
        """The same policy over the same connections; its requests carry the session's name in the header
        `policy.session_header`, percent-encoded as in a URL. Itself where no header is set.
        """
        if self._config.session_header is None:
            return self
        other = copy.copy(self)
        other._headers = {self._config.session_header: quote(name, safe="/")}
        return other

    def repeats(self, messages: tuple[Message, ...], allowed: tuple[str, ...]) -> bool:
        """As `Repeating.repeats`: where it is greedy."""
        return self._config.temperature == 0

    async def check(self) -> None:
        """Asks the endpoint which models it serves. Raises PolicyUnavailable or PolicyRefused before any work is
        done.
        """
        try:
            served = served_models(
                (await self._client.models.with_raw_response.list()).text, str(self._client.base_url)
            )
        except openai.APIStatusError as error:
            if error.status_code == 404:  # an endpoint without a model list; the first request will tell
                return
            raise translated(error, self._where, self._config.api_key_env) from None
        except (openai.APIError, aiohttp.ClientError) as error:
            raise PolicyUnavailable(f"no model answers at {self._client.base_url}: {reason(error)}") from None
        if served and self._model not in served:
            raise PolicyUnavailable(
                f"{self._client.base_url} serves {', '.join([*served][:5])}, not {quoted(self._model)}"
            )
        if self._config.remote:
            self.served = served.get(self._model, {})

    async def sample(self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, n: int, seed: int) -> Sample:
        """As `Policy.sample`.

        A reply that makes no sense is asked for again, `policy.retries` times at most and 0.5 to 8 seconds apart.
        """
        request, stop = self._request(messages, allowed, n, seed), self._grammar.stop

        async def ask() -> Sample | None:
            # as `chat.completions.create`, whose walk through every field takes a fifth of the time
            reply = await self._client.post("/chat/completions", cast_to=object, body=request, options=self._options)
            return sample_of(reply, stop, begun(messages), self._config.engine)

        return await self._until_sane(ask)

    async def stream(
        self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, seed: int, listener: Listener
    ) -> Sample:
        """As `Streaming.stream`. A reply that breaks off is not asked for again: part of it was heard already."""
        request = self._request(messages, allowed, 1, seed)
        request |= {"stream": True, "stream_options": {"include_usage": True}}
        try:
            chunks = await self._client.post(
                "/chat/completions", cast_to=object, body=request, options=self._options, stream=True,
                stream_cls=openai.AsyncStream[object],
            )  # fmt: skip
            async with chunks:
                reply = await whole_reply(chunks, begun(messages), listener)
        except openai.APIError as error:
            raise translated(error, self._where, self._config.api_key_env) from None
        except (ValueError, RecursionError, aiohttp.ClientError) as error:
            raise PolicyError(f"{self._where}: the reply broke off ({reason(error)})") from None
        sample = sample_of(reply, self._grammar.stop, begun(messages), self._config.engine)
        if sample is None:
            raise PolicyError(f"{self._where}: the reply broke off")
        return sample

    async def score(self, messages: tuple[Message, ...], text: str) -> Sample:
        """As `Scorer.score`; asked for again as `sample` is."""
        if not self._scorers:  # sessions of this policy share it
            root = self.served.get("root")
            self._scorers.append(EndpointScorer(self._config.engine, self._model, root, self._post))
        scorer = self._scorers[0].asking(self._post)
        return await self._until_sane(lambda: scorer.score(messages, text))

    async def _post(self, path: str, body: dict[str, Any]) -> object:
        """A request to a path below the endpoint's root, which lies above `/v1`."""
        root = str(self._client.base_url).rstrip("/").removesuffix("/v1")
        return await self._client.post(f"{root}{path}", cast_to=object, body=body, options=self._options)

    @property
    def _options(self) -> openai.RequestOptions:
        """What each request is sent with."""
        return {"headers": self._headers} if self._headers else {}

    def _request(self, messages: tuple[Message, ...], allowed: tuple[str, ...], n: int, seed: int) -> dict[str, Any]:
        return request_body(self._config, self._model, self._grammar, messages, allowed, n=n, seed=seed)

    async def _until_sane(self, ask: Callable[[], Awaitable[Sample | None]]) -> Sample:
        """The first reply that makes sense, of `policy.retries` + 1. Raises PolicyError."""
        for attempt in range(self._config.retries + 1):
            if attempt:
                await asyncio.sleep(min(0.5 * 2 ** (attempt - 1), 8))  # as the package waits before its own retries
            try:
                sample = await ask()
            except openai.APIError as error:
                raise translated(error, self._where, self._config.api_key_env) from None
            except (ValueError, RecursionError, aiohttp.ClientError):
                continue  # no JSON, no UTF-8, no HTTP, no end of nesting: the package translates none of them
            if sample is not None:
                return sample
        raise PolicyError(f"{self._where}: every reply was broken")


@asynccontextmanager
async def open_policy(config: PolicyConfig, grammar: OutputFormat) -> AsyncIterator[OpenAIPolicy]:
    """The policy that `config` describes, checked and ready; an engine that is not running yet is started for the
    block.
    """
    with ExitStack() as stack:
        base_url, model, key = config.base_url, config.model, None
        if not config.remote:
            spec = EngineSpec(
                config.engine, config.model, config.adapter, parallel=config.concurrency, context=config.context,
                args=config.engine_args, devices=config.devices,
            )  # fmt: skip
            endpoint = stack.enter_context(serving_us(spec))
            base_url, model, key = endpoint.base_url, endpoint.model, endpoint.key or "none"
        async with OpenAIPolicy(config, base_url, model, grammar, key) as policy:
            await policy.check()
            yield policy


@dataclass(frozen=True)
class Model:
    """A model behind an endpoint, and the gate through which that endpoint is asked."""

    policy: Policy
    gate: Gate


@asynccontextmanager
async def open_model(config: PolicyConfig, grammar: OutputFormat) -> AsyncIterator[Model]:
    """`open_policy` with a gate of its own."""
    async with open_policy(config, grammar) as policy:
        yield Model(policy, Gate(config))


def model_identity(config: PolicyConfig) -> dict[str, str]:
    """What names the policy's weights in a run's identity: the model, the adapter, and hashes of local files."""
    if config.remote:
        return {"model": config.model}
    files = resolve_model(config.model, config.adapter)
    identity = {"model": files.name}
    if files.hf or (files.gguf and not files.embedded):  # a folder's name tells little: many are called "merged"
        identity["weights"] = weights_hash(files)[:16]
    if files.adapter is not None:
        weights = files.adapter if files.adapter.is_file() else files.adapter / "adapter_model.safetensors"
        identity["adapter"] = sha256_of(weights)[:16]
    return identity


def api_key(variable: str, base_url: str | None) -> str:
    """The key in the environment; "none" for a local server without one. Raises ConfigError."""
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"the key in ${variable} holds what cannot be sent, such as a line break; set it anew")
    if key:
        return key
    if base_url is None:
        raise ConfigError(f"no key: set ${variable}, or policy.base_url for a local server that needs none")
    return "none"


def translated(error: openai.APIError, where: str, api_key_env: str) -> StepragError:
    """Our error for theirs: refused, unavailable, or this one request failed. `where`: the model and its endpoint."""
    if isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError):
        return PolicyRefused(f"{where}: the key in ${api_key_env} is refused")
    if isinstance(error, openai.RateLimitError) and error.code == "insufficient_quota":
        return PolicyRefused(f"{where}: the quota is used up")
    if isinstance(error, openai.NotFoundError):
        return PolicyUnavailable(f"{where}: not found ({reason(error)})")
    if isinstance(error, openai.APIStatusError) and 300 <= error.status_code < 400:
        status = error.status_code
        return PolicyUnavailable(
            f"{where}: redirects ({status}), which is not followed; give the final URL as base_url"
        )
    if any(isinstance(cause, aiohttp.ClientConnectorError) for cause in causes_of(error)):
        # a lost connection is one request's bad luck; no listener is not
        return PolicyUnavailable(f"{where}: nothing answers ({reason(error)})")
    return PolicyError(f"{where}: {reason(error)}")


def causes_of(error: BaseException) -> list[BaseException]:
    """The error and all that it was raised from, the outermost first: openai's own, the transport's, aiohttp's."""
    return [error, *(causes_of(error.__cause__) if error.__cause__ else ())]


def reason(error: Exception) -> str:
    """The innermost error in one line: openai calls every lost connection a time-out."""
    said = str(error.__cause__ or "") or str(getattr(error, "message", error))
    return " ".join(said.split())[:300]
