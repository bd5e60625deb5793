"""What a client of the OpenAI API asks: the question, the exchanges before it, and what is refused by name."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from steprag.engines.reasoning import split
from steprag.web.app import ApiError

TASK = "### Task:"
"""Begins Open WebUI's own requests (titles, tags, follow-up questions), and documents before a question."""
DOCUMENTS, DOCUMENTS_END, HISTORY_END = "<context>", "</context>", "</chat_history>"
TEXTS = ("text", "input_text", "output_text")
"""Kinds of parts that are words; `reasoning_text` and the like are thoughts."""
EARLIER_CHARS = 20_000
"""Characters of an earlier message that count."""
SOURCE_LIST = "\n\nSources:\n\n"
"""What stands between an answer and the links to its sources."""

_ONE, _CALLS = "the agent gives one answer a request", "the agent calls no tools of the client's"
_WORDS, _TEXT = "the agent answers in words, in no format of the client's", "the agent answers in text alone"
_LOGPROBS = "the agent gives no log-probabilities"
ALLOWED: dict[str, tuple[tuple[Any, ...], str]] = {
    "n": ((1,), _ONE),
    "tool_choice": (("auto", "none"), _CALLS),
    "function_call": (("auto", "none"), _CALLS),
    "response_format": (("text",), _WORDS),
    "logprobs": ((False,), _LOGPROBS),
    "top_logprobs": ((0,), _LOGPROBS),
    "modalities": (("text",), _TEXT),
    "audio": ((), _TEXT),
    # vLLM's, SGLang's and llama.cpp's own names for constrained output
    **{name: ((), _WORDS) for name in ("structured_outputs", "guided_json", "guided_regex", "guided_choice",
                                       "guided_grammar", "regex", "ebnf", "json_schema", "grammar")},
}  # fmt: skip
"""Fields that ask for another kind of answer: the values that change nothing, and why others are refused."""


class _LenientRequest(BaseModel):
    """A part of a request. Null and what is empty are as if a field were not given: clients send so what nobody set.
    Unknown fields are kept aside.
    """

    model_config = ConfigDict(extra="allow")

    @model_validator(mode="before")
    @classmethod
    def _as_given(cls, values: Any) -> Any:
        return {key: one for key, one in values.items() if not _is_empty(one)} if isinstance(values, dict) else values


class MessagePart(_LenientRequest):
    """A part of a message; only texts count."""

    type: str = "text"
    text: str = ""


def _in_small_letters(role: Any) -> Any:
    return role.lower() if isinstance(role, str) else role


def _as_content(told: Any) -> Any:
    """A lone part as a list of it; a tool's own value, which is neither text nor part, as JSON."""
    if isinstance(told, dict) and {"type", "text"} & told.keys():
        return [told]
    return told if isinstance(told, str | list) else json.dumps(told)


class ChatMessage(_LenientRequest):
    """A message; fields that the agent has no use for are ignored."""

    role: Annotated[
        Literal["system", "developer", "user", "assistant", "tool", "function"], BeforeValidator(_in_small_letters)
    ]
    content: Annotated[str | list[str | MessagePart], BeforeValidator(_as_content)] = ""

    @property
    def _parts(self) -> list[MessagePart]:
        given = self.content if isinstance(self.content, list) else [self.content]
        return [MessagePart(text=part) if isinstance(part, str) else part for part in given]

    @property
    def text(self) -> str:
        """The message's words; of an assistant's those of its reply, without the thoughts before it."""
        words = "\n".join(part.text for part in self._parts if part.type in TEXTS)
        return split(words)[1] if self.role == "assistant" else words

    @property
    def other_kinds(self) -> set[str]:
        """Kinds of its parts that are no text."""
        return {part.type for part in self._parts if part.type not in TEXTS}


class StreamOptions(_LenientRequest):
    """`stream_options` of a chat completion."""

    include_usage: bool = False


class CompletionBody(_LenientRequest):
    """`POST /v1/chat/completions`. Fields beside these change nothing, and `ignored` names them, or `ALLOWED` says
    which values are refused.

    Tools are ignored: clients offer theirs unasked (Open WebUI 36), and a model need not call any. To ask for a call is
    refused.
    """

    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    stream: bool = False
    stream_options: StreamOptions | None = None

    @property
    def _more(self) -> dict[str, Any]:
        return self.model_extra or {}

    def check(self) -> None:
        """Raises ApiError, with its name, for a field that asks for what the agent cannot do."""
        for name, (values, reason) in ALLOWED.items():
            if name in self._more and not _is_among(self._more[name], values):
                allowed = " or ".join(map(json.dumps, values))
                told = f"{reason}; {name} may be {allowed} alone" if values else f"{reason}; leave out {name}"
                raise ApiError(400, "unsupported", told, param=name)
        if kinds := self.messages[self.asked_at].other_kinds:
            told = f"the agent reads text alone, no {', '.join(sorted(kinds))}"
            raise ApiError(400, "unsupported", told, param="messages")

    @property
    def asked_at(self) -> int:
        """The place of the message that asks: the last one of a user. Raises ApiError where there is none."""
        places = [place for place, message in enumerate(self.messages) if message.role == "user"]
        if not places:
            roles = ", ".join(sorted({message.role for message in self.messages}))
            raise ApiError(400, "no_question", f"no message is a user's; there are {roles}", param="messages")
        return places[-1]

    @property
    def question(self) -> str | None:
        """The question, without the documents that Open WebUI puts before it. None where it is a task for the client's
        own sake: those end in the history that they are about, and ask for JSON. Raises ApiError where it has no words.
        """
        text = self.messages[self.asked_at].text.strip()
        if not text:
            raise ApiError(400, "no_question", "the user's last message has no text", param="messages")
        if not text.startswith(TASK):
            return text
        if text.rfind(HISTORY_END) > text.rfind(DOCUMENTS_END) and "JSON" in text:
            return None
        documents, _, asked = text.rpartition(DOCUMENTS_END)
        asked = asked.strip() if DOCUMENTS in documents else ""
        return asked.removeprefix("<user_query>").removesuffix("</user_query>").strip() or text

    def exchanges(self, most: int) -> tuple[tuple[str, str], ...]:
        """The last `most` earlier questions that an answer followed, with it, each to `EARLIER_CHARS`. System messages
        are left out: the agent's are its own.
        """
        pairs, question = [], None
        for message in self.messages[: self.asked_at]:
            if message.role == "user":
                question = message.text[:EARLIER_CHARS]
            elif message.role == "assistant" and message.text and question is not None:
                pairs.append((question, message.text[:EARLIER_CHARS].partition(SOURCE_LIST)[0]))
                question = None
        return tuple(pairs[-most:]) if most else ()

    @property
    def ignored(self) -> list[str]:
        """Names of the fields that change nothing; "system" where there are system messages, "long messages" where
        earlier ones are cut.
        """
        told = {message.role for message in self.messages} & {"system", "developer"}
        long = any(len(message.text) > EARLIER_CHARS for message in self.messages[: self.asked_at])
        left = (["system"] if told else []) + (["long messages"] if long else [])
        return sorted({*self._more, *left} - {"user", *ALLOWED})


def _is_empty(value: Any, depth: int = 3) -> bool:
    """Whether a value is null or holds nothing, as {"type": ""} does; what is nested deeper than `depth` holds some."""
    if isinstance(value, dict | list):
        parts = value.values() if isinstance(value, dict) else value
        return not value or (depth > 0 and all(_is_empty(part, depth - 1) for part in parts))
    return value is None or value == ""


def _is_among(value: Any, values: tuple[Any, ...]) -> bool:
    """Whether a value, an object's type, or each of a list, is one of these."""
    told = value if isinstance(value, list) else [value.get("type") if isinstance(value, dict) else value]
    return all(one in values for one in told)
