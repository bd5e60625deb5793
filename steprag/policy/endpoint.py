"""An endpoint's key, and what its errors mean in our words."""

from __future__ import annotations

import os

import aiohttp
import openai

from steprag.errors import ConfigError, PolicyError, PolicyRefused, PolicyUnavailable, StepragError


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
    """In one line what was said nearest to the wire: openai calls every lost connection a time-out."""
    said = str(error.__cause__ or "") or str(getattr(error, "message", error))
    return " ".join(said.split())[:300]
