"""An endpoint's list of models. It is advice: many lists lack names that are served, or give them other names."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from steprag.console.progress import say
from steprag.errors import PolicyUnavailable, quoted
from steprag.policy.refusals import page_words
from steprag.records.json_text import NotJson, decoded


def served_models(text: str, url: str) -> dict[str, dict[str, str]]:
    """The names in a list of models, and where their weights lie; none, with a warning, where it is no list. The list
    may also stand alone, be null, or hold bare names; what is no model is left out.
    """
    try:
        told = decoded(text.removeprefix("\ufeff"))
    except NotJson:
        told = text
    lists = [told] if isinstance(told, list) else [*_lists(told)]
    if not lists:
        say(
            f"warning: {url} answers, but gives no list of models, as an OpenAI-compatible endpoint does, whose URL "
            f"usually ends in /v1 (it says {quoted(page_words(text.encode()) or text)}); the first request will tell"
        )
    models = [{"id": one} if isinstance(one, str) else one for one in next(filter(None, lists), ())]
    return {
        str(name): {key: str(model[key]) for key in ("root", "parent") if model.get(key)}
        for model in models if isinstance(model, dict) and (name := model.get("id") or model.get("name"))
    }  # fmt: skip


def _lists(told: object) -> Iterator[list[Any]]:
    """The list of an answer, by the keys that hold it."""
    if isinstance(told, dict):
        yield from (told[key] or [] for key in ("models", "data") if isinstance(told.get(key, 0), list | None))


def same_name(model: str, listed: str) -> bool:
    """Whether two names may be one model's: `models/x`, `owner/x`, `x:latest` and `x:nitro` are all called x."""
    return _bare(model) == _bare(listed)


def _bare(name: str) -> str:
    return name.rpartition("/")[2].partition(":")[0].lower()


def compare(model: str, served: Collection[str], url: str) -> None:
    """Warns of a model that the endpoint's list lacks. Raises PolicyUnavailable where its name is a path here."""
    if not served or any(same_name(model, name) for name in served):
        return
    lists = f"{url} serves {', '.join([*served][:5])}, not {quoted(model)}"
    if Path(model).exists():
        raise PolicyUnavailable(f"{lists}, which is a path here; give the name that is served")
    say(f"warning: {lists}; the first request will tell")
