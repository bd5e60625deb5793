"""What one endpoint takes of a request: fields that are left out or renamed, by configuration or by its refusals."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from steprag.config.sections import PolicyConfig
from steprag.policy.refusals import CUT_SHORT, TOO_LONG, ProviderProblem

STATUSES = (0, 400, 404, 422, 501)
"""Of refusals that may name a field."""
UNCAUGHT = "unexpected keyword argument"
"""Of a server that fails at a field, with another status."""
RENAMED = {"max_tokens": "max_completion_tokens", "seed": "random_seed", "stop": "stop_sequences"}
"""Fields that bear other names elsewhere; a refusal may name another one still."""
NEEDLESS = ("stream_options", "cache_prompt", "n", "seed", "response_format")
"""Fields that are left out at any complaint: missing completions are asked for again, and a reply that is not of the
format is refused as usual.
"""
NEUTRAL = {"top_p": 1.0, "top_k": (0, -1), "min_p": 0.0, "repeat_penalty": 1.0, "repetition_penalty": 1.0}
"""Values that change nothing, left out at any complaint too."""
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
"""Fields of a request whose reply comes in pieces."""
SPARED = ("stream", "top_p", "top_k", "min_p", "repeat_penalty", "repetition_penalty", "stop", "temperature")
"""Fields that are left out where the endpoint knows none of that name; completions are cut at stop strings here too.
`max_tokens` is none of them: it bounds what a request costs.
"""
_UNKNOWN = (
    r"un(supported|known|recogni[sz]ed|expected|available)|n[o']t (be )?(support|permit|allow|accept|recogni|available|"
    r"implement|enabled|used|specified|set)|extra (input|field)|extra_forbidden|forbidden|deprecat|no such|removed|"
    r"only the default|only [\d.]+ is allowed|invalid (for|parameter|argument|field|name)|does ?n[o']t (exist|have)"
)
_STREAM_ALONE = (
    r"(only|must|requires?|needs?|please|enable|set)\b.{0,50}\bstream|non-?stream|without stream|"
    r"\bstream(ing)?\b.{0,40}(only|required|mandatory|must|true)"
)
"""A demand for a reply in pieces, of a request that asked for a whole one."""
_CALLED = {
    "n": r"(multiple|several) (candidates|completions|choices|generations)|best of",
    "stop": r"stop[- ](sequence|word|string)s?",
    "response_format": r"structured outputs?|json[- _](mode|schema|object)",
    "top_p": r"nucleus sampling",
    "seed": r"random seed|seeded",
}
"""Fields in other words."""
_OTHER_NAME = r"(?:use|try|mean|favou?r of|replaced (?:by|with)|renamed (?:to|as)) [^'\"`\w]*['\"`]?(\w+_\w+)"


class EndpointDialect:
    """The fields to leave out or rename, kept for all requests to one endpoint. `learnt`: what its refusals taught."""

    def __init__(self, config: PolicyConfig) -> None:
        self._names: dict[str, str | None] = {**config.rename, **dict.fromkeys(config.omit)}
        self._own, self._streams = frozenset(config.extra), False
        self.learnt: dict[str, str | None] = {}

    def spoken(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The request as the endpoint takes it."""
        asked = {**request, **(STREAMED if self._streams and "messages" in request else {})}
        names = {field: self._names.get(field, field) for field in asked}
        return {name: asked[field] for field, name in names.items() if name is not None}

    def learn(self, problem: ProviderProblem, request: Mapping[str, Any]) -> str | None:
        """What is sent otherwise from now on, because the refusal of `request` names it; None where nothing is."""
        whole = "messages" in request and "stream" not in request and not self._streams
        if whole and problem.status in STATUSES and re.search(_STREAM_ALONE, problem.text, re.IGNORECASE):
            self._streams, self.learnt["stream"] = True, "true"
            return "stream: true"
        for field in self.named(problem, request):
            name = self._otherwise(field, request[field], problem)
            if name != field:
                self._names[field] = self.learnt[field] = name
                return f"{name} in place of {field}" if name else f"no {field}"
        return None

    def named(self, problem: ProviderProblem, request: Mapping[str, Any]) -> list[str]:
        """The fields of a request that its refusal names, those first that are needed least."""
        about = problem.status in STATUSES or UNCAUGHT in problem.words
        if not about or re.search(f"{TOO_LONG}|{CUT_SHORT}", problem.text, re.I):
            return []
        fields = [*NEEDLESS, *SPARED, *request.keys() - {*NEEDLESS, *SPARED, "model", "messages"}]
        sent = [(field, self._names.get(field, field)) for field in fields if field in request]
        return [field for field, name in sent if name and any(_names(name, problem))]

    def _otherwise(self, field: str, value: object, problem: ProviderProblem) -> str | None:
        """The field's other name, None where it is left out, or its own name where there is no way round."""
        neutral = NEUTRAL.get(field)
        if field in RENAMED and field not in self._names:
            other = re.search(_OTHER_NAME, problem.words, re.IGNORECASE)
            if other and other[1] != field:
                return other[1]
        if field in self._own:  # who asked for it decides
            return field
        if field in NEEDLESS or value == neutral or (isinstance(neutral, tuple) and value in neutral):
            return None
        if not re.search(_UNKNOWN, problem.text, re.IGNORECASE):
            return field
        if field == "max_tokens" and field not in self._names:
            return RENAMED[field]
        return None if field in SPARED else field


def _names(name: str, problem: ProviderProblem) -> Iterator[bool]:
    """Whether a refusal names a field: among its codes, between quotes, in other words, or by a word that can be
    nothing else where it stands.
    """
    yield any(code.rpartition(".")[2] == name for code in problem.codes)
    word = re.escape(name)
    yield re.search(rf"['\"`‘“.\[]{word}['\"`’”:\]]", problem.words) is not None
    yield ("_" in name or name == "temperature") and re.search(rf"\b{word}\b", problem.words) is not None
    before = rf"\b(parameter|param|field|argument|property|option|key|supplied)s?:? {word}\b"
    after = rf"\b{word} ?(parameter|param|field|argument|option|must|should|is|are|not|isn.t|>|=|<|:)"
    listed = rf"({_UNKNOWN})[^:]{{0,80}}: *([\w.]+(, ?| and | or ))*{word}( *$|[,.;)]| and | or )"
    yield re.search(f"{before}|{after}|(?i:{listed})", problem.words) is not None
    yield name in _CALLED and re.search(_CALLED[name], problem.words, re.IGNORECASE) is not None
