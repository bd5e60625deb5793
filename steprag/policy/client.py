"""The one client: language models are reached over HTTP, by the OpenAI chat API, whatever serves them.

GPT-4o, vLLM, SGLang, llama.cpp and a test double all look the same here; their dialects are `steprag.policy.requests`.
"""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp

from steprag.config.sections import JudgeConfig, PolicyConfig
from steprag.console.progress import say
from steprag.engines.launch import Switch
from steprag.errors import ConfigError, PolicyError, PolicyUnavailable, quoted
from steprag.net.bounded_http import BoundedClient, HttpReply, pause
from steprag.policy.dialect import STREAMED, EndpointDialect
from steprag.policy.listing import compare, served_models
from steprag.policy.protocols import Listener
from steprag.policy.refusals import (
    FirstRequests,
    ProviderProblem,
    problem_in,
    problem_of,
    reason,
    refusal,
    unreachable,
)
from steprag.policy.replies import sample_of
from steprag.policy.requests import OutputFormat, begun, chat_options, request_body
from steprag.policy.scoring import EndpointScorer
from steprag.policy.streams import reply_in, whole_reply
from steprag.policy.traces import model_call
from steprag.types import Message, Sample

OPENAI = "https://api.openai.com/v1"
"""What is asked where neither `policy.base_url` nor OPENAI_BASE_URL names an endpoint."""
ACCOUNTS = {"OpenAI-Organization": "OPENAI_ORG_ID", "OpenAI-Project": "OPENAI_PROJECT_ID"}
"""Headers of OpenAI's accounts, by the variables that the `openai` package reads, too."""
LISTLESS = (404, 405, 501)
"""What endpoints without a list of models answer."""
NOBODY = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
"""What a request ends in where nobody listens."""
LIST_SECONDS = 30
"""Until a list of models counts as lost."""
Given = TypeVar("Given")


class _Refused(Exception):
    """A reply whose status is no success."""

    def __init__(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
        self.headers, self.problem = headers, problem_of(status, content)
        super().__init__(str(self.problem))

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed a little later, as the endpoint says, or else its status."""
        said = self.headers.get("x-should-retry")
        return said == "true" if said in ("true", "false") else self.problem.passing


class OpenAIPolicy:
    """A policy behind an OpenAI-compatible endpoint. Use as an async context manager.

    The caller bounds the requests in flight (`steprag.policy.gate`). A passing refusal (`steprag.policy.refusals`) and
    a lost connection are asked again, `policy.retries` times, as Retry-After says; malformed replies as often. A
    failure that remains is a PolicyError.
    """

    def __init__(
        self, config: PolicyConfig, base_url: str | None, model: str, grammar: OutputFormat, key: str | None = None,
        switch: Switch | None = None,
    ) -> None:  # fmt: skip
        """`key`: what the endpoint wants; None: what `policy.api_key_env` holds. `switch`: as in `EngineCommand`."""
        self._switch, self._selected = switch or {}, dict[str, Any]()
        self._listed: dict[str, dict[str, str]] = {}
        self._config, self._base_url, self._model, self._grammar = config, base_url, model, grammar
        self.served: dict[str, str] = {}
        """The endpoint's report of a model that this program did not start: vLLM names its files (`root`, `parent`)."""
        self._dialect, self._key_env = EndpointDialect(config), config.api_key_env
        self._first = FirstRequests()
        self._key = key = key or api_key(config.api_key_env, base_url)
        self._url = (base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI).rstrip("/")
        accounts = {} if base_url else {name: os.environ.get(variable) for name, variable in ACCOUNTS.items()}
        headers = {"Authorization": f"Bearer {key}", **{name: value for name, value in accounts.items() if value}}
        self._client = BoundedClient(self._url, seconds=config.timeout, secret=key, headers=headers)
        self._headers: dict[str, str] = {}
        self._scorers: list[EndpointScorer] = []
        self._where = f"{model} at {self._url}"

    async def __aenter__(self) -> OpenAIPolicy:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    @property
    def learnt(self) -> dict[str, str | None]:
        """The fields that the endpoint refused: their other names, None where they are left out."""
        return self._dialect.learnt

    def beside(self, config: PolicyConfig, grammar: OutputFormat) -> OpenAIPolicy:
        """Another policy of the same model at the same endpoint, with its own sampling and format."""
        other = OpenAIPolicy(config, self._base_url, self._model, grammar, self._key, self._switch)
        other.served, other._listed = self.served, self._listed
        return other

    async def switched(self, adapter: str | None) -> OpenAIPolicy:
        """The same policy over the same connections, answered by another adapter; None: by the base alone, where the
        engine can. At an endpoint that runs already: the adapter's name there; of llama.cpp its file's, or its number.

        Raises ConfigError for an adapter that the endpoint lacks, PolicyUnavailable where nothing answers.
        """
        fields = self._switch.get(adapter, {})
        if adapter is not None and not fields:
            fields = await self._served_as(adapter)
        other = copy.copy(self)
        other._selected = dict(fields)
        return other

    async def _served_as(self, adapter: str) -> Mapping[str, Any]:
        """The fields that ask an endpoint which runs already for an adapter."""
        root = self._url
        if self._config.engine == "transformers":
            raise ConfigError(f"{root} has one model for all modes (engine transformers), not {quoted(adapter)}")
        if self._config.engine != "llamacpp":  # vLLM and SGLang serve an adapter as a model of that name
            compare(adapter, self._listed, root)
            return {"model": adapter}
        try:
            reply = await self._client.get(f"{root.removesuffix('/v1')}/lora-adapters")
            told = reply_in(_success(reply).content)
        except (_Refused, aiohttp.ClientError, ValueError, RecursionError) as error:
            raise PolicyUnavailable(f"{root} does not list its adapters (/lora-adapters): {reason(error)}") from None
        rows = [one for one in told if isinstance(one, Mapping)] if isinstance(told, list) else []
        files = {id: Path(str(one.get("path"))) for one in rows if isinstance(id := one.get("id"), int)}
        found = [id for id, path in files.items() if adapter in (str(id), str(path), path.name, path.stem)]
        if len(found) != 1:
            has = ", ".join(path.name for path in files.values()) or "none"
            raise ConfigError(f"llama.cpp at {root} has loaded {has} (--lora), not {quoted(adapter)} once")
        return {"lora": [{"id": found[0], "scale": 1.0}]}

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
        """Asks the endpoint which models it serves. Its list is advice: a name that it lacks is warned of, and so is an
        endpoint that gives none.

        Raises PolicyUnavailable before any work is done, where nothing answers or all is redirected.
        """
        url, served = self._url, {}
        try:
            reply = await self._retried(self._list)
            served = served_models(reply.content.decode(errors="replace"), url)
        except _Refused as error:
            if 300 <= error.problem.status < 400:
                raise refusal(error.problem, self._where, self._key_env) from None
            if error.problem.status not in LISTLESS:
                say(f"warning: {url} gives no list of models ({error.problem}); the first request will tell")
        except (aiohttp.ClientError, ValueError) as error:
            if isinstance(error, NOBODY):
                raise PolicyUnavailable(f"no model answers at {url}: {reason(error)}") from None
            say(f"warning: {url} gives no list of models ({reason(error)}); the first request will tell")
        self._listed = served
        compare(self._model, served, url)
        if self._config.remote:
            self.served = served.get(self._model, {})

    @model_call
    async def sample(self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, n: int, seed: int) -> Sample:
        """As `Policy.sample`.

        A reply that makes no sense is asked for again, `policy.retries` times at most and 0.5 to 8 seconds apart.
        """
        request = self._request(messages, allowed, n, seed)

        async def ask() -> Sample:
            return self._sample(await self._told(request, partial(self._posted, self._chat)), messages)

        return await self._until_sane(ask)

    @model_call
    async def stream(
        self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, seed: int, listener: Listener
    ) -> Sample:
        """As `Streaming.stream`. A reply that breaks off is not asked for again: part of it was heard already."""
        request = self._request(messages, allowed, 1, seed)
        request |= STREAMED

        async def heard(body: dict[str, Any]) -> object:
            async with AsyncExitStack() as stack:

                async def begin() -> AsyncIterator[bytes]:
                    sent = self._client.posted(self._chat, body, self._headers)
                    status, headers, parts = await stack.enter_async_context(sent)
                    if not 200 <= status < 300:
                        raise _Refused(status, headers, b"".join([part async for part in parts]))
                    return parts

                try:
                    parts = await self._retried(begin)
                except aiohttp.ClientError as error:
                    raise unreachable(error, self._where) from None
                return await whole_reply(parts, begun(messages), listener, thinks=self._grammar.thinks)

        try:
            return self._sample(await self._told(request, heard), messages)
        except (ValueError, RecursionError, aiohttp.ClientError) as error:
            raise PolicyError(f"{self._where}: the reply broke off ({reason(error)})") from None

    @model_call
    async def score(self, messages: tuple[Message, ...], text: str) -> Sample:
        """As `Scorer.score`; asked for again as `sample` is."""
        if not self._scorers:  # sessions of this policy share it
            root = self.served.get("root")
            told = self._config.chat_template_kwargs
            self._scorers.append(EndpointScorer(self._config.engine, self._model, root, self._post, told))
        scorer = self._scorers[0].asking(self._post)
        return await self._until_sane(lambda: scorer.score(messages, text))

    async def _post(self, path: str, body: dict[str, Any]) -> object:
        """A request to a path below the endpoint's root, which lies above `/v1`."""
        root = self._url.removesuffix("/v1")
        options = chat_options(self._config) if "messages" in body else {}
        return await self._told({**body, **options}, partial(self._posted, f"{root}{path}"))

    async def _posted(self, url: str, body: dict[str, Any]) -> object:
        """The JSON reply to a request. Raises ValueError where it is none, or says that the endpoint is busy."""

        async def ask() -> HttpReply:
            return _success(await self._client.post(url, body, self._headers))

        reply = reply_in((await self._retried(ask)).content)
        problem = problem_in(reply)
        if problem is not None and problem.passing:
            raise ValueError(str(problem))
        return reply

    async def _told(self, request: dict[str, Any], send: Callable[[dict[str, Any]], Awaitable[object]]) -> object:
        """The reply to a request, sent again without a field that the endpoint refuses, or with it renamed.

        Raises StepragError for any other refusal, and what `send` raises.
        """
        request = {**request, **self._selected}
        while True:
            body = self._dialect.spoken(request)
            try:
                reply = await send(body)
                problem = problem_in(reply)
            except _Refused as error:
                reply, problem = None, error.problem
            if problem is None:
                self._first.answered = True
                return reply
            if self._dialect.spoken(request) == body:  # else another request has learnt it meanwhile
                self._heed(problem, request)

    def _heed(self, problem: ProviderProblem, request: dict[str, Any]) -> None:
        """Learns from a refusal what to send otherwise. Raises StepragError where it teaches nothing."""
        if learnt := self._dialect.learn(problem, request):
            say(f"{self._where}: from now on {learnt} is sent ({problem})")
        elif fields := self._dialect.named(problem, request):
            section = "judge" if isinstance(self._config, JudgeConfig) else "policy"
            field, is_key = fields[0], fields[0] in type(self._config).model_fields
            change = f"set {section}.{field}, or leave" if is_key else "leave"
            remedy = f"{change} the field out: {section}.omit '[{field}]'"
            if field in self._config.extra:
                remedy = f"change it in {section}.extra, or leave it out there"
            raise ConfigError(f"{self._where}: {field} = {quoted(request[field])} is refused ({problem}); {remedy}")
        else:
            raise self._first.weighed(refusal(problem, self._where, self._key_env), problem)

    def _sample(self, reply: object, messages: tuple[Message, ...]) -> Sample:
        """The reply as a sample. Raises ValueError where it makes no sense."""
        form, engine = self._grammar, self._config.engine
        return sample_of(reply, form.stop, begun(messages), engine, thinks=form.thinks)

    def _request(self, messages: tuple[Message, ...], allowed: tuple[str, ...], n: int, seed: int) -> dict[str, Any]:
        return request_body(self._config, self._model, self._grammar, messages, allowed, n=n, seed=seed)

    @property
    def _chat(self) -> str:
        return f"{self._url}/chat/completions"

    async def _list(self) -> HttpReply:
        return _success(await self._client.get(f"{self._url}/models", min(self._config.timeout, LIST_SECONDS)))

    async def _retried(self, ask: Callable[[], Awaitable[Given]]) -> Given:
        """What `ask` gives, asked `policy.retries` times more where it is refused for a while or nothing comes. Raises
        what it raises the last time.
        """
        for attempt in range(self._config.retries):
            headers: Mapping[str, str] = {}
            said = 0.0
            try:
                return await ask()
            except _Refused as error:
                if not error.passing:
                    raise
                headers, said = error.headers, error.problem.wait
            except aiohttp.InvalidURL:
                raise
            except aiohttp.ClientError:  # asked again, and told if it is the last
                pass
            await asyncio.sleep(pause(attempt, headers, said))
        return await ask()

    async def _until_sane(self, ask: Callable[[], Awaitable[Sample]]) -> Sample:
        """The first reply that makes sense, of `policy.retries` + 1. Raises PolicyError."""
        last: Exception | None = None
        for attempt in range(self._config.retries + 1):
            if attempt:
                await asyncio.sleep(pause(attempt - 1, {}))
            try:
                return await ask()
            except aiohttp.ClientError as error:
                raise unreachable(error, self._where) from None
            except (ValueError, RecursionError) as error:
                last = error  # no JSON, no UTF-8, no end of nesting
        error = PolicyError(f"{self._where}: every reply was broken; the last: {reason(last)}")
        raise self._first.weighed(error, reason(last))


def _success(reply: HttpReply) -> HttpReply:
    if not 200 <= reply.status < 300:
        raise _Refused(reply.status, reply.headers, reply.content)
    return reply


def api_key(variable: str, base_url: str | None) -> str:
    """The key in the environment; "none" for a local server without one. Raises ConfigError."""
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"the key in ${variable} holds what cannot be sent, such as a line break; set it again")
    if key:
        return key
    if base_url is None:
        raise ConfigError(f"no key: set ${variable}, or policy.base_url for a local server that needs none")
    return "none"
