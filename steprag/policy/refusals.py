"""What an endpoint's refusal means: whose fault it is, and whether another request can succeed.

Providers agree neither on status codes nor on the form of an error, so its words decide beside its status. The first
row of `KINDS` that fits counts.
"""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import aiohttp

from steprag.engines.templates import SYSTEM_ROLE
from steprag.errors import (
    ConfigError,
    ContentFiltered,
    PolicyError,
    PolicyRefused,
    PolicyUnavailable,
    StepragError,
    shortened,
)

SHOWN = 300
"""Characters of a provider's words in a message, and of a code."""
CODES = 10
"""Codes of a message that are read."""
PASSING = (408, 409, 425, 429)
"""Statuses, beside 500 and above, after which the same request may succeed."""
FAILED_ALIKE = 20
"""Requests that fail alike before any is answered, after which a run ends."""
_SAID = ("message", "msg", "error_message", "error_msg", "error_description", "status_msg", "detail", "details",
         "error", "errors", "reason", "faultstring", "fault", "description", "title", "base_resp")  # fmt: skip
_CODED = ("code", "type", "status", "error_code", "status_code", "param", "loc", "quotaId")


@dataclass(frozen=True)
class ProviderProblem:
    """A refusal. `status`: the HTTP status, or the one that a body sent with 200 names; 0 where it names none.
    `words`: what the provider says, in one line. `codes`: its other short facts, such as the field it complains of.
    `page`: it is a page for people, which no API sends: a proxy or a gateway says it.
    """

    status: int
    words: str
    codes: tuple[str, ...] = ()
    page: bool = False

    @property
    def text(self) -> str:
        """Words and codes, for a search."""
        return " ".join((self.words, *self.codes))

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed a little later."""
        return self.status in PASSING or self.status >= 500

    @property
    def wait(self) -> float:
        """Seconds after which its words ask for the request again, as Gemini's do without a header; 0 where none do."""
        told = re.search(r"(?:retry|again|wait) (?:in |after )?(\d+(?:\.\d+)?) ?s", self.words, re.IGNORECASE)
        return float(told[1]) if told else 0.0

    def __str__(self) -> str:
        return shortened(f"{self.status or 'error'}: {self.words or 'no words'}", SHOWN)


def problem_of(status: int, body: bytes) -> ProviderProblem:
    """The problem that a reply with an error status reports."""
    if page := page_words(body):
        return ProviderProblem(status, _line(page), page=True)
    try:
        told: object = json.loads(body.removeprefix(b"\xef\xbb\xbf"))
    except (ValueError, RecursionError):
        told = body[:10_000].decode(errors="replace")
    words = _words(told) or body[:10_000].decode(errors="replace")
    return ProviderProblem(status, _line(words), _few(told))


def page_words(body: bytes) -> str:
    """The words of a page of HTML; empty where the body is none."""
    text = body[:8_000].decode(errors="replace").lstrip("\ufeff \t\r\n")
    if not re.match(r"<(!doctype html|!--|html|head|body|title|h\d|center|p|div|pre|\?xml)\b", text, re.IGNORECASE):
        return ""
    seen = re.sub(r"(?is)<(script|style)\b.*?(?:</\1>|\Z)|<!--.*?(?:-->|\Z)|<[^<>]*>", " ", text)
    return " ".join(html.unescape(seen).split()) or "a page without words"


def problem_in(reply: object) -> ProviderProblem | None:
    """The problem that a reply with a success status reports in place of an answer; None where it has an answer."""
    if not isinstance(reply, Mapping):
        return None
    choices = reply.get("choices")
    failed = [one["error"] for one in choices if _failed(one)] if isinstance(choices, list) else []
    if choices and not failed and not reply.get("error"):
        return None
    told = failed[0] if failed else {key: value for key, value in reply.items() if key in {*_SAID, *_CODED}}
    words, codes = _line(_words(told)), _few(told)
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


def _codes(told: object, depth: int = 7) -> Iterator[str]:
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


def _few(told: object) -> tuple[str, ...]:
    return tuple(map(_line, islice(_codes(told), CODES)))


def _line(text: str) -> str:
    return shortened(" ".join(text.split()), SHOWN)


@dataclass(frozen=True)
class Kind:
    """A row of the table: which refusals it is, by status (none: any) and words, and what becomes of them. `words` may
    not stand beside `unless`. `pages`: it is of pages alone, else of what an API says; None: of both.
    """

    error: type[StepragError]
    told: str
    statuses: tuple[int, ...] = ()
    words: str = ""
    unless: str = ""
    pages: bool | None = None

    def fits(self, problem: ProviderProblem) -> bool:
        """Whether the problem is of this kind."""
        if self.pages not in (None, problem.page) or (self.statuses and problem.status not in self.statuses):
            return False
        if self.unless and re.search(self.unless, problem.text, re.IGNORECASE):
            return False
        return re.search(self.words, problem.text, re.IGNORECASE) is not None


_CLIENT = (0, 400, 401, 402, 403, 404, 412, 413, 422, 429, 451)
_LATER = r"(retry|try again) (in|after)|per[ _-]?(second|minute)|too many requests|\b[RT]PM\b|throttl|limit_requests"
_NO_PLACE = "not found; does base_url end as the endpoint's, which usually ends in /v1?"
CUT_SHORT = r"could not finish the message|output limit was reached"
"""A model that thinks used up its tokens before it said anything (OpenAI's gpt-5 and o-series)."""
TOO_LONG = (
    r"context[ _-]?(length|window|size|limit)|maximum context|too many (input )?tokens|"
    r"(prompt|input|request|entity|payload|body) (tokens )?(is )?too (long|large)|payload size exceeds|"
    r"reduce the (length|prompt)|max_?(model|seq|input|position)\w*[ _]?len|n_ctx|exceeds? .{0,40}tokens|"
    r"range of input length|max\w* (input|prompt|sequence) length|exceed\w* .{0,20}token limit|max length exceeded|"
    r"(input|prompt|(?<!stop: )sequence) length\b.{0,40}(exceed|longer|larger|greater|too|more than|>)|"
    r"(input|prompt|sequence|model\w*)\b.{0,40}exceed\w* .{0,20}max\w* length|"
    r"inputs\W{1,3}(tokens \+|must have less)|"
    # what the prompt leaves of the context is less than nothing
    r"max_(new_|completion_|output_)?tokens\b.{0,60}(at least|greater|positive|>).{0,40}"
    r"(got|is|was|:|=|\()\W{0,2}(-\d|0\b)"
)
KINDS = (
    Kind(PolicyError, "the reply needs more tokens: raise max_tokens", (0, 400, 422), CUT_SHORT),
    Kind(PolicyError, "the prompt is too long", (0, 400, 413, 422, 500), TOO_LONG),
    Kind(PolicyRefused, "a page answers in the endpoint's place, as a proxy's that lets no request through",
         (400, 401, 403, 407, 451, 511), pages=True),
    Kind(PolicyRefused, "the balance is used up", (402,)),
    Kind(
        PolicyRefused, "the quota is used up", _CLIENT,
        r"insufficient.{0,3}(quota|balance|credit|fund)|balance (is )?insufficient|"
        r"PerDay|ByDay|calls / month|daily free|set inference limit",
    ),
    Kind(
        PolicyRefused, "the quota is used up", _CLIENT, r"(requests|tokens|models)[ -]per[ -]day",
        r"per[ _-]?minute|(retry|try again|wait) (in |after )?[\d.]+ ?s",
    ),
    Kind(
        PolicyRefused, "the quota is used up", _CLIENT,
        r"(no|out of|not enough|negative) (credit|balance)|credit balance|usage limits?\b|"
        r"(quota|limit|credits?|balance) .{0,30}(used up|exhausted|exceeded|reached)|exceeded .{0,30}(quota|limit)|"
        r"(reached|hit) .{0,40}(usage|spend\w*|monthly|weekly|daily|free) .{0,20}(limit|cap|quota)|"
        r"payment[ _]required|billing|arrear|subscription|free (tier|trial) .{0,30}(over|ended|expired|exhausted)|"
        r"overdue .{0,20}(payment|bill|balance)|(account|payment|bill|balance)\w{0,9}\W?.{0,20}overdue|"
        r"out of ([a-z]+ ){0,2}quota|n[o']t have any credits|budget has been exceeded|余额|欠费",
        _LATER + "|rate.?limit|concurren|subscription key",
    ),
    Kind(
        PolicyRefused, "the endpoint does not serve this place", (0, 400, 401, 403, 451),
        r"(country|region|territory|location|\bip\b).{0,60}"
        r"((not|n't) (be |yet |currently )?(support|available|allow|permit|served|eligible)|"
        r"unsupported|unavailable|blocked|restricted|forbidden)|"
        r"(unsupported|unavailable in|blocked) .{0,20}(country|region|location)",
    ),
    Kind(
        PolicyRefused, "the key in ${key} is refused", (0, 400, 401, 403),
        r"(api|secret|access)[ _-]?key|unauthori[sz]ed|authenticat|credentials|log[ -]?in (fail|first|required|error)|"
        r"invalid (bearer |access |auth\w* )?token\b|token (has |is |was )?(expired|invalid|revoked)|"
        r"(account|organi[sz]ation|project|workspace|tenant|user|team)\b.{0,40}"
        r"(suspend|deactivat|disabled|restrict|banned|locked|terminat|inactive|not active|not verified|is blocked)|"
        r"has not been used in project|service[_ ]disabled",
    ),
    Kind(
        ContentFiltered, "the provider's filter refused this prompt", (0, 400, 403, 422, 451),
        r"moderation|flagged|content[ _]?(policy|filter|management|inspection)|content_?violat|safety|"
        r"responsible ?ai|prohibited|inappropriate|harmful|sensitive|"
        r"data_?inspection|guardrail|blocked by|policy violation|usage polic|exists risk|敏感",
    ),
    Kind(
        ConfigError, f"the model takes no system message: {SYSTEM_ROLE}", (0, 400, 422, 500),
        r"system (role|message|prompt|instruction)s?\W{0,2}((is|are|was) ?)?n[o']t (be )?(support|allow|accept|enabled)"
        r"\w*+(?! (after|on|in))|"
        r"developer instruction is not|not support 'system'|only user and assistant roles",
    ),
    Kind(
        ConfigError, "the model does not write on what it has begun: give a prompt profile without `continued`",
        (0, 400, 422, 500),
        r"\bprefill\w*\b.{0,40}(n[o']t (be )?(support|allow)|incompatible)|"
        r"n[o']t (be )?(support|allow)\w* .{0,40}\bprefill|"
        r"must end with a user message|last role user or|last message.{0,40} must (be|have).{0,20}\buser",
    ),
    Kind(
        PolicyUnavailable, "the model is not found", (0, 400, 403, 404, 410, 422),
        r"(model|models/\S{1,99}|deployment|engine)\b.{0,80}(not[ _](be )?(found|exist|available|supported|served|"
        r"loaded)|n[o']t exist|no longer|unknown|decommission|no access|not have access|only supported in v1)|"
        r"模型不存在|access to the model|"
        r"(no such|unknown|invalid|unsupported|not a valid|not found the) model|model_?not_?(found|available)|"
        r"pull .{0,20}model|no endpoints found|no models? .{0,20}(loaded|running|available)|load a model",
        r"parameter|unsupported value",
    ),
    Kind(PolicyRefused, "the key in ${key} is refused", (401, 403)),
    Kind(PolicyUnavailable, _NO_PLACE, (0,), "unexpected endpoint"),  # LM Studio's, with the status of success
    Kind(PolicyUnavailable, _NO_PLACE, (404, 405, 410, 501)),
    Kind(PolicyUnavailable, "redirects, which is not followed; give the final URL as base_url", tuple(range(300, 400))),
    Kind(PolicyError, "overloaded", (503, 529)),
    Kind(PolicyError, ""),
)  # fmt: skip
"""Refusals, from the special to the general."""


def refusal(problem: ProviderProblem, where: str, api_key_env: str) -> StepragError:
    """Our error for a problem. `where`: the model and its endpoint."""
    kind = _kind(problem)
    told = kind.told.replace("{key}", api_key_env)
    return kind.error(f"{where}: {told} ({problem})" if told else f"{where}: {problem}")


def _kind(problem: ProviderProblem) -> Kind:
    return next(kind for kind in KINDS if kind.fits(problem))


class FirstRequests:
    """What became of an endpoint's requests until it answered one. `answered`: it did."""

    def __init__(self) -> None:
        self.answered = False
        self._alike = Counter[str]()

    def weighed(self, error: StepragError, said: ProviderProblem | str) -> StepragError:
        """The error of one request, or one that ends the run: where so many failed alike for a reason that no kind
        knows, the next will too. `said`: what the endpoint says; its numbers and ids may differ.
        """
        known = isinstance(said, ProviderProblem) and (_kind(said) is not KINDS[-1] or said.status in PASSING)
        if self.answered or known:
            return error
        alike = re.sub(r"\b(?=\w*\d)[\w-]+", "#", str(said))
        self._alike[alike] += 1
        if self._alike[alike] < FAILED_ALIKE:
            return error
        return PolicyRefused(
            f"{error}; the first {FAILED_ALIKE} requests failed so and none was answered: mend what it complains of "
            "(policy.omit, rename and extra change what is sent)"
        )


def unreachable(error: Exception, where: str) -> StepragError:
    """Our error where no reply came: this one request failed, or nothing answers at all."""
    if isinstance(error, aiohttp.ClientConnectorError):
        # a lost connection is one request's bad luck; no listener is not
        return PolicyUnavailable(f"{where}: nothing answers ({reason(error)})")
    return PolicyError(f"{where}: {reason(error)}")


def reason(error: Exception | None) -> str:
    """An error in one line."""
    return " ".join((str(error) or type(error).__name__).split())[:300]
