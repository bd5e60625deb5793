"""What one endpoint takes of a request: fields that are left out or renamed, by configuration or by its refusals."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from steprag.config.sections import PolicyConfig
from steprag.policy.refusals import CUT_SHORT, TOO_LONG, ProviderProblem

STATUSES = (0, 400, 404, 422, 501)
"""Of refusals that may name a field."""
RENAMED = {"max_tokens": "max_completion_tokens", "seed": "random_seed", "stop": "stop_sequences"}
"""Fields that bear other names elsewhere; a refusal may name another one still."""
NEEDLESS = ("stream_options", "cache_prompt", "n", "seed", "response_format")
"""Fields that are left out at any complaint: missing completions are asked for again, and a reply that is not of the
format is refused as ever.
"""
NEUTRAL = {"top_p": 1.0, "top_k": (0, -1), "min_p": 0.0, "repeat_penalty": 1.0, "repetition_penalty": 1.0}
"""Values that change nothing, left out at any complaint too."""
SPARED = ("stream", "top_p", "top_k", "min_p", "repeat_penalty", "repetition_penalty", "stop", "temperature")
"""Fields that are left out where the endpoint knows none of that name; completions are cut at stop strings here too.
`max_tokens` is none of them: it bounds what a request costs.
"""
_UNKNOWN = (
    r"un(supported|known|recogni[sz]ed|expected|available)|n[o']t (be )?(support|permit|allow|accept|recogni|available|"
    r"implement|enabled|used|specified|set)|extra (input|field)|extra_forbidden|forbidden|deprecat|no such|removed|"
    r"only the default|invalid (parameter|argument|field|name)|does ?n[o']t (exist|have)"
)
_OTHER_NAME = r"(?:use|try|mean|favou?r of|replaced (?:by|with)|renamed (?:to|as)) [^'\"`\w]*['\"`]?(\w+_\w+)"


class EndpointDialect:
    """The fields to leave out or rename, kept for all requests to one endpoint. `learnt`: what its refusals taught."""

    def __init__(self, config: PolicyConfig) -> None:
        self._names: dict[str, str | None] = {**config.rename, **dict.fromkeys(config.omit)}
        self.learnt: dict[str, str | None] = {}

    def spoken(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The request as the endpoint takes it."""
        names = {field: self._names.get(field, field) for field in request}
        return {name: request[field] for field, name in names.items() if name is not None}

    def learn(self, problem: ProviderProblem, request: Mapping[str, Any]) -> str | None:
        """What is sent otherwise from now on, because the refusal of `request` names it; None where nothing is."""
        for field in self.named(problem, request):
            name = self._otherwise(field, request[field], problem)
            if name != field:
                self._names[field] = self.learnt[field] = name
                return f"{name} in place of {field}" if name else f"no {field}"
        return None

    def named(self, problem: ProviderProblem, request: Mapping[str, Any]) -> list[str]:
        """The fields of a request that its refusal names, those first that are needed least."""
        if problem.status not in STATUSES or re.search(f"{TOO_LONG}|{CUT_SHORT}", problem.text, re.I):
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
        if field in NEEDLESS or value == neutral or (isinstance(neutral, tuple) and value in neutral):
            return None
        if not re.search(_UNKNOWN, problem.text, re.IGNORECASE):
            return field
        if field == "max_tokens" and field not in self._names:
            return RENAMED[field]
        return None if field in SPARED else field


def _names(name: str, problem: ProviderProblem) -> Iterator[bool]:
    """Whether a refusal names a field: among its codes, between quotes, or by a word that can be nothing else."""
    yield any(code.rpartition(".")[2] == name for code in problem.codes)
    word = re.escape(name)
    yield re.search(rf"['\"`‘“.\[]{word}['\"`’”:\]]", problem.words) is not None
    yield ("_" in name or name == "temperature") and re.search(rf"\b{word}\b", problem.words) is not None
    before = rf"\b(parameter|param|field|argument|property|option|key|supplied)s?:? {word}\b"
    yield re.search(rf"{before}|\b{word} ?(parameter|must|should|is|>|=|<|:)", problem.words) is not None
    yield name == "n" and re.search(r"multiple (candidates|completions|choices)", problem.words, re.I) is not None
