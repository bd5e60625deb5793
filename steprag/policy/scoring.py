"""Log-probabilities of a given text, in the dialect of each engine.

The text is encoded by itself and follows the prompt's tokens, as a sampled completion would. Engines that cannot give
them are refused before any work (`refusal`).

- llama.cpp: its chat route, with a GBNF grammar of token literals that leaves one continuation; the log-probabilities
  that it reports are those before the grammar (`post_sampling_probs` is off unless asked for).
- vLLM: `/tokenize` for the prompt and for the text, then `/v1/completions` with `prompt_logprobs`. vLLM computes the
  whole prompt again for it, whatever its cache holds (github.com/vllm-project/vllm/pull/23399).
- SGLang: `/generate` with `logprob_start_len`. It renders no chat template outside its chat route, so the prompt is
  rendered here, by the template of the folder or hub id that the endpoint says it serves.
- transformers: its own API leaves log-probabilities out, so the server that is started here has a route for them
  (`steprag.engines.transformers_serve`). A `transformers serve` of others has none; a probe finds out.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pydantic import AliasPath, BaseModel, Field

from steprag.engines.models import resolve_model
from steprag.engines.tokens import prompt_tokens, writes_on
from steprag.engines.weights import load_tokenizer
from steprag.errors import ConfigError
from steprag.policy.replies import usage_of
from steprag.types import Completion, Message, Sample, Usage

SCORED = "scored"
"""`Completion.finish` of a text that was given, not sampled."""
SCORING = ("llamacpp", "vllm", "sglang", "transformers")
"""Engines that can tell the log-probabilities of a given text."""

ROUNDING = 1e-3
"""A log-probability may be so much above 0 by rounding."""

Post = Callable[[str, dict[str, Any]], Awaitable[object]]
"""Sends a request to a path of the endpoint (from its root, such as `/v1/completions`) and returns the JSON reply."""


class _Reported(BaseModel, defer_build=True):
    id: int = -1  # vLLM's are keys
    logprob: float


class _Chat(BaseModel, defer_build=True):
    told: list[_Reported] = Field(validation_alias=AliasPath("choices", 0, "logprobs", "content"))
    usage: object = None


class _Prompted(BaseModel, defer_build=True):
    told: list[dict[int, _Reported] | None] = Field(validation_alias=AliasPath("choices", 0, "prompt_logprobs"))
    usage: object = None


class _Generated(BaseModel, defer_build=True):
    told: list[tuple[float | None, int, str | None]] = Field(
        validation_alias=AliasPath("meta_info", "input_token_logprobs")
    )
    meta_info: dict[str, Any]


class _Told(BaseModel, defer_build=True):
    logprobs: list[float]
    completion_tokens: int


class _Encoded(BaseModel, defer_build=True):
    tokens: list[int]


def refusal(engine: str) -> str | None:
    """Why an engine cannot score, with the remedy; None where it can."""
    if engine in SCORING:
        return None
    return (
        f"engine {engine} cannot score: the chat API of OpenAI and of endpoints of unknown make returns no "
        f"log-probabilities of a given text; use {', '.join(SCORING)}, or label without a model (label.name=cover)"
    )


class EndpointScorer:
    """Scores texts at one endpoint. `root`: the folder or hub id of the served weights, as the endpoint names it.
    `kwargs`: values for the chat template, where prompts are rendered here (sglang).
    """

    def __init__(
        self, engine: str, model: str, root: str | None, post: Post, kwargs: Mapping[str, Any] | None = None
    ) -> None:
        if why := refusal(engine):
            raise ConfigError(why)
        self._engine, self._model, self._root, self._post, self._kwargs = engine, model, root, post, kwargs
        self._encoded: dict[str, list[int]] = {}
        self._tokenizers: dict[str, Any] = {}

    def asking(self, post: Post) -> EndpointScorer:
        """The same scorer, what it has learnt included, that sends its requests by `post`."""
        other = copy.copy(self)
        other._post = post
        return other

    async def score(self, messages: tuple[Message, ...], text: str) -> Sample:
        """As `steprag.policy.protocols.Scorer.score`. Raises ValueError where the endpoint's reply makes no sense."""
        ask = {
            "llamacpp": self._llamacpp, "vllm": self._vllm, "sglang": self._sglang, "transformers": self._transformers,
        }[self._engine]  # fmt: skip
        try:
            logprobs, usage = await ask(messages, text)
        except (IndexError, KeyError) as error:
            raise ValueError(f"a token's log-probability is missing ({error})") from None
        if not logprobs or not all(math.isfinite(one) and one <= ROUNDING for one in logprobs):
            raise ValueError("the log-probabilities are none of the text's")
        return Sample((Completion(text, SCORED, tuple(min(one, 0.0) for one in logprobs)),), usage)

    async def _llamacpp(self, messages: tuple[Message, ...], text: str) -> tuple[list[float], Usage]:
        wanted = await self._tokens(text, {"content": text, "add_special": False, "parse_special": False})
        request = {
            "model": self._model,
            "messages": [dict(message) for message in messages],
            "grammar": f"root ::= {' '.join(f'<[{token}]>' for token in wanted)}",
            "max_tokens": len(wanted),
            "temperature": 0,
            "logprobs": True,
            "top_logprobs": 1,
            "cache_prompt": True,
        }
        reply = _Chat.model_validate(await self._post("/v1/chat/completions", request))
        return _of(wanted, [(one.id, one.logprob) for one in reply.told[: len(wanted)]]), usage_of(reply.usage)

    async def _vllm(self, messages: tuple[Message, ...], text: str) -> tuple[list[float], Usage]:
        wanted = await self._tokens(text, {"model": self._model, "prompt": text, "add_special_tokens": False})
        chat = {"model": self._model, "messages": [dict(message) for message in messages], **writes_on(messages)}
        prompt = _Encoded.model_validate(await self._post("/tokenize", chat)).tokens
        request = {
            "model": self._model,
            "prompt": prompt + wanted,
            "max_tokens": 1,
            "temperature": 0,
            "prompt_logprobs": 0,
        }
        reply = _Prompted.model_validate(await self._post("/v1/completions", request))
        told = reply.told[len(prompt) :]
        if len(told) != len(wanted):
            return [], Usage()
        found = [(token, (one or {})[token].logprob) for one, token in zip(told, wanted, strict=True)]
        return _of(wanted, found), usage_of(reply.usage)

    async def _sglang(self, messages: tuple[Message, ...], text: str) -> tuple[list[float], Usage]:
        tokenizer = self._served_tokenizer()
        prompt = prompt_tokens(messages, tokenizer)
        wanted = tokenizer.encode(text, add_special_tokens=False)
        request = {
            "input_ids": prompt + wanted,
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            "return_logprob": True,
            "logprob_start_len": len(prompt) - 1,  # the first one told has none
        }
        reply = _Generated.model_validate(await self._post("/generate", request))
        found = [(token, math.nan if one is None else one) for one, token, _ in reply.told[-len(wanted) :]]
        return _of(wanted, found), usage_of({**reply.meta_info, "prompt_tokens_details": reply.meta_info})

    async def _transformers(self, messages: tuple[Message, ...], text: str) -> tuple[list[float], Usage]:
        request = {"model": self._model, "messages": [dict(message) for message in messages], "text": text}
        reply = await self._post("/score", request)
        told = _Told.model_validate(reply)
        return told.logprobs if len(told.logprobs) == told.completion_tokens else [], usage_of(reply)

    async def _tokens(self, text: str, request: dict[str, Any]) -> list[int]:
        """The ids of `text` encoded by itself; the same answers are scored in state after state."""
        if text not in self._encoded:
            self._encoded[text] = _Encoded.model_validate(await self._post("/tokenize", request)).tokens
        return self._encoded[text]

    def _served_tokenizer(self) -> Any:
        if self._root is None:
            raise ConfigError(
                f"the endpoint does not say where the weights of {self._model} lie, so its chat template is not "
                "known here; score with vllm or llamacpp, or label without a model (label.name=cover)"
            )
        if self._root not in self._tokenizers:
            self._tokenizers[self._root] = load_tokenizer(resolve_model(self._root), self._kwargs)
        return self._tokenizers[self._root]


def _of(wanted: list[int], told: list[tuple[int, float]]) -> list[float]:
    """The log-probabilities where they are those of the tokens that were asked for; else none."""
    return [logprob for _, logprob in told] if [token for token, _ in told] == wanted else []
