"""The JSON body of a request for completions, in the dialect of each engine.

Dialects differ in constrained output, in how a begun message is written on, and in how tokens are truncated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from steprag.config.sections import PolicyConfig
from steprag.engines.tokens import writes_on
from steprag.types import Message

MOST_STOPS = 4
"""Stop strings that the API takes: OpenAI's bound, and vLLM's."""


class OutputFormat(Protocol):
    """What completions must look like, in the dialects of constrained output; `allowed` as in `Policy.sample`."""

    @property
    def stop(self) -> tuple[str, ...]:
        """Closing tags at which a completion is stopped; none where it ends by itself."""
        ...

    @property
    def thinks(self) -> bool:
        """Whether reasoning (`steprag.engines.reasoning`) belongs to the format; else it is split off."""
        ...

    def gbnf(self, allowed: tuple[str, ...]) -> str:
        """llama.cpp's grammar, whose start symbol is `root`."""
        ...

    def regex(self, allowed: tuple[str, ...]) -> str:
        """A regular expression that the whole completion matches."""
        ...

    def schema(self, allowed: tuple[str, ...]) -> dict[str, Any] | None:
        """A JSON schema, or None where the format is not JSON."""
        ...


def request_body(
    config: PolicyConfig, model: str, form: OutputFormat, messages: tuple[Message, ...], allowed: tuple[str, ...], *,
    n: int, seed: int,
) -> dict[str, Any]:  # fmt: skip
    """The body of `POST /chat/completions` for `n` completions of one prompt."""
    return {
        "model": model,
        "messages": [dict(message) for message in messages],
        "n": n,
        "seed": seed,
        "temperature": config.temperature,
        "top_p": config.top_p,
        "max_tokens": config.max_tokens,
        **_stop(form, allowed),
        **_constraint(config, form, allowed),
        **_continuation(config, messages),
        **_truncation(config),
        **chat_options(config),
        **config.extra,
    }


def chat_options(config: PolicyConfig) -> Mapping[str, Any]:
    """The options of the model's chat template; vLLM, SGLang and llama.cpp take them."""
    return {"chat_template_kwargs": config.chat_template_kwargs} if config.chat_template_kwargs else {}


def begun(messages: tuple[Message, ...]) -> str:
    """The message that the assistant is to write on; empty where it begins one."""
    return messages[-1]["content"] if messages[-1]["role"] == "assistant" else ""


def _stop(form: OutputFormat, allowed: tuple[str, ...]) -> Mapping[str, Any]:
    """The closing tags at which the engine stops; where they are too many, those of allowed actions."""
    tags = form.stop
    if len(tags) > MOST_STOPS:
        tags = tuple(tag for tag in tags if tag.strip("</>") in allowed)[:MOST_STOPS]
    return {"stop": list(tags)} if tags else {}


_DIALECTS: Mapping[str, Callable[[OutputFormat, tuple[str, ...]], Mapping[str, Any]]] = {
    "llamacpp": lambda form, allowed: {"grammar": form.gbnf(allowed), "cache_prompt": True},
    # not `regex`: vLLM fails a request whose expression takes 5 seconds to compile, a busy machine's fate
    "vllm": lambda form, allowed: {"structured_outputs": {"grammar": form.gbnf(allowed)}},
    "sglang": lambda form, allowed: {"regex": form.regex(allowed)},
}
STEPS_FORCED = tuple(_DIALECTS)
"""Engines that can be held to formats without a JSON schema, such as the steps of a grammar."""


def _constraint(config: PolicyConfig, form: OutputFormat, allowed: tuple[str, ...]) -> Mapping[str, Any]:
    """The allowed steps in the engine's own dialect; nothing where the engine has none or it is switched off."""
    if not config.constrained:
        return {}
    if dialect := _DIALECTS.get(config.engine):
        return dialect(form, allowed)
    reply = {"name": "reply", "strict": True, "schema": form.schema(allowed)}
    return {"response_format": {"type": "json_schema", "json_schema": reply}} if reply["schema"] else {}


def _continuation(config: PolicyConfig, messages: tuple[Message, ...]) -> Mapping[str, Any]:
    """The fields that make an engine continue the assistant's last message; llama.cpp does so unasked, and an endpoint
    of unknown make may begin a new message instead.
    """
    return writes_on(messages) if begun(messages) and config.engine in ("vllm", "sglang") else {}


def _truncation(config: PolicyConfig) -> Mapping[str, float]:
    """Sends every option, because engines have their own defaults: llama.cpp top_k 40 and min_p 0.05, vLLM and SGLang
    what the model's `generation_config.json` says (Qwen2.5: top_k 20, repetition_penalty 1.05, even when greedy).
    """
    match config.engine:
        case "llamacpp":
            return {"top_k": config.top_k, "min_p": config.min_p, "repeat_penalty": 1.0}
        case "vllm" | "sglang":
            return {"top_k": config.top_k or -1, "min_p": config.min_p, "repetition_penalty": 1.0}
        case _:
            return {}
