"""What an endpoint's refusal means: whose fault it is, and whether another request can succeed.

Providers agree neither on status codes nor on the form of an error, so its words decide beside its status. The first
row of `KINDS` that fits counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import aiohttp
import openai

from steprag.errors import (
    ContentFiltered,
    PolicyError,
    PolicyRefused,
    PolicyUnavailable,
    StepragError,
    shortened,
)

SHOWN = 300
"""Characters of a provider's words in a message."""
PASSING = (408, 409, 425, 429)
"""Statuses, beside 500 and above, after which the same request may succeed."""
_SAID = ("message", "msg", "error_message", "error_msg", "error_description", "status_msg", "detail", "details",
         "error", "errors", "reason", "faultstring", "fault", "description", "title", "base_resp")  # fmt: skip
_CODED = ("code", "type", "status", "error_code", "status_code", "param", "loc")


@dataclass(frozen=True)
class ProviderProblem:
    """A refusal. `status`: the HTTP status, or the one that a body sent with 200 names; 0 where it names none.
    `words`: what the provider says, in one line. `codes`: its other short facts, such as the field it complains of.
    """

    status: int
    words: str
    codes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Words and codes, for a search."""
        return " ".join((self.words, *self.codes))

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed a little later."""
        return self.status in PASSING or self.status >= 500

    def __str__(self) -> str:
        return shortened(f"{self.status or 'error'}: {self.words or 'no words'}", SHOWN)


def problem_of(status: int, body: bytes) -> ProviderProblem:
    """The problem that a reply with an error's status tells."""
    try:
        told: object = json.loads(body)
    except (ValueError, RecursionError):
        told = re.sub(r"<[^>]*>", " ", body[:10_000].decode(errors="replace"))
    return ProviderProblem(status, _line(_words(told)), tuple(map(_line, _codes(told))))


def problem_in(reply: object) -> ProviderProblem | None:
    """The problem that a reply with the status of success tells in place of an answer; None where it has an answer."""
    if not isinstance(reply, Mapping):
        return None
    choices = reply.get("choices")
    failed = [one["error"] for one in choices if _failed(one)] if isinstance(choices, list) else []
    if choices and not failed and not reply.get("error"):
        return None
    told = failed[0] if failed else {key: value for key, value in reply.items() if key in {*_SAID, *_CODED}}
    words, codes = _line(_words(told)), tuple(map(_line, _codes(told)))
    numbers = (int(code) for code in codes if re.fullmatch("[45][0-9][0-9]", code))
    return ProviderProblem(next(numbers, 0), words, codes) if words else None


def _failed(choice: object) -> bool:
    """Whether a choice holds an error and no text."""
    if not isinstance(choice, Mapping) or not choice.get("error"):
        return False
    message = choice.get("message")
    return not (isinstance(message, Mapping) and message.get("content"))


def _words(told: object, depth: int = 4) -> str:
    """The first text under the keys that hold words; of a list of complaints up to three, each with its place."""
    if isinstance(told, str):
        return told
    if isinstance(told, Mapping) and depth:
        found = (_words(told[key], depth - 1) for key in _SAID if told.get(key))
        words, place, more = next((text for text in found if text), ""), told.get("loc"), told.get("metadata")
        raw = more.get("raw") if isinstance(more, Mapping) else None  # of the provider behind OpenRouter
        before = f"{'.'.join(map(str, place))}: " if isinstance(place, list) else ""
        return f"{before}{words}{f': {raw}' if raw else ''}"
    if isinstance(told, Sequence) and depth:
        return "; ".join(filter(None, (_words(one, depth - 1) for one in told[:3])))
    return ""


def _codes(told: object, depth: int = 4) -> Iterator[str]:
    """The texts and numbers under the keys that hold codes, at any place."""
    if isinstance(told, Mapping) and depth:
        for key, value in told.items():
            if key in _CODED and isinstance(value, str | int):
                yield str(value)
            else:
                yield from _codes(value, depth - 1)
    elif isinstance(told, list) and depth:
        for one in told[:3]:
            yield from [one] if isinstance(one, str) else _codes(one, depth - 1)


def _line(text: str) -> str:
    return shortened(" ".join(text.split()), SHOWN)


@dataclass(frozen=True)
class Kind:
    """A row of the table: which refusals it is, by status (none: any) and words, and what becomes of them. `words` may
    not stand beside `unless`.
    """

    error: type[StepragError]
    told: str
    statuses: tuple[int, ...] = ()
    words: str = ""
    unless: str = ""

    def fits(self, problem: ProviderProblem) -> bool:
        """Whether the problem is of this kind."""
        if self.statuses and problem.status not in self.statuses:
            return False
        if self.unless and re.search(self.unless, problem.text, re.IGNORECASE):
            return False
        return re.search(self.words, problem.text, re.IGNORECASE) is not None


_CLIENT = (0, 400, 401, 402, 403, 404, 413, 422, 429, 451)
_LATER = r"(retry|try again) (in|after)|per[ _-]?(second|minute)|too many requests|\b[RT]PM\b|throttl"
CUT_SHORT = r"could not finish the message|output limit was reached"
"""A model that thinks used up its tokens before it said anything (OpenAI's gpt-5 and o-series)."""
TOO_LONG = (
    r"context[ _-]?(length|window|size|limit)|maximum context|too many (input )?tokens|"
    r"(prompt|input|request) (is )?too (long|large)|"
    r"reduce the (length|prompt)|max_?(model|seq|input|position)\w*[ _]?len|n_ctx|exceeds? .{0,40}tokens"
)
KINDS = (
    Kind(PolicyError, "the reply needs more tokens: raise max_tokens", (0, 400, 422), CUT_SHORT),
    Kind(PolicyError, "the prompt is too long", (0, 400, 413, 422, 500), TOO_LONG),
    Kind(PolicyRefused, "the balance is used up", (402,)),
    Kind(PolicyRefused, "the quota is used up", _CLIENT, r"insufficient.{0,3}(quota|balance|credit|fund)"),
    Kind(
        PolicyRefused, "the quota is used up", _CLIENT,
        r"(no|out of|not enough|negative) (credit|balance)|credit balance|"
        r"(quota|limit|credits?|balance) .{0,30}(used up|exhausted|exceeded|reached)|exceeded .{0,30}(quota|limit)|"
        r"payment[ _]required|billing|arrear|余额|欠费",
        _LATER + "|rate.?limit|concurren",
    ),
    Kind(
        PolicyRefused, "the key in ${key} is refused", (0, 400, 401, 403),
        r"api[ _-]?key|unauthori[sz]ed|authenticat|account .{0,40}(suspend|deactivat|disabled)|(country|region) ",
    ),
    Kind(
        ContentFiltered, "the provider's filter refused this prompt", (0, 400, 403, 422, 451),
        r"moderation|flagged|content[ _]?(policy|filter|management|inspection)|content_?violat|safety|"
        r"responsible ?ai|prohibited|inappropriate|harmful|sensitive|"
        r"data_?inspection|guardrail|blocked by|policy violation|usage polic",
    ),
    Kind(
        PolicyUnavailable, "the model is not found", (0, 400, 403, 404, 410, 422),
        r"(model|deployment|engine)\b.{0,80}(not (be )?(found|exist|available|supported|served|loaded)|n[o']t exist|"
        r"no longer|unknown|decommission|no access|not have access)|"
        r"(no such|unknown|invalid|unsupported|not a valid|not found the) model|model_?not_?found|"
        r"pull .{0,20}model|no endpoints found",
        r"parameter|unsupported value",
    ),
    Kind(PolicyRefused, "the key in ${key} is refused", (401, 403)),
    Kind(PolicyUnavailable, "not found; does base_url end as the endpoint's, mostly in /v1?", (404, 405, 410)),
    Kind(PolicyUnavailable, "redirects, which is not followed; give the final URL as base_url", tuple(range(300, 400))),
    Kind(PolicyError, "overloaded", (503, 529)),
    Kind(PolicyError, ""),
)  # fmt: skip
"""Refusals, from the special to the general."""


def refusal(problem: ProviderProblem, where: str, api_key_env: str) -> StepragError:
    """Our error for a problem. `where`: the model and its endpoint."""
    kind = next(kind for kind in KINDS if kind.fits(problem))
    told = kind.told.replace("{key}", api_key_env)
    return kind.error(f"{where}: {told} ({problem})" if told else f"{where}: {problem}")


def unreachable(error: openai.APIError, where: str) -> StepragError:
    """Our error where no reply came: this one request failed, or nothing answers at all."""
    if any(isinstance(cause, aiohttp.ClientConnectorError) for cause in causes_of(error)):
        # a lost connection is one request's bad luck; no listener is not
        return PolicyUnavailable(f"{where}: nothing answers ({reason(error)})")
    return PolicyError(f"{where}: {reason(error)}")


def causes_of(error: BaseException) -> list[BaseException]:
    """The error and all that it was raised from, the outermost first: openai's own, the transport's, aiohttp's."""
    return [error, *(causes_of(error.__cause__) if error.__cause__ else ())]


def reason(error: Exception | None) -> str:
    """The innermost error in one line: openai calls every lost connection a time-out."""
    said = str(getattr(error, "__cause__", None) or "") or str(getattr(error, "message", error))
    return " ".join(said.split())[:300]
