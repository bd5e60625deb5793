"""An endpoint's list of models. It is advice: many lists lack names that are served, or give them other names."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from steprag.console.progress import say
from steprag.errors import PolicyUnavailable, quoted
from steprag.records.json_text import NotJson, decoded


def served_models(text: str, url: str) -> dict[str, dict[str, str]]:
    """The names in a list of models, and where their weights lie; the list may also stand alone, or be null.

    Raises PolicyUnavailable where it is no such list.
    """
    try:
        told = decoded(text.removeprefix("\ufeff"))
        models = told if told and isinstance(told, list) else told["models" if "models" in told else "data"] or ()
        return {
            str(model.get("id") or model["name"]): {
                key: str(model[key]) for key in ("root", "parent") if model.get(key)
            }
            for model in models
        }
    except (NotJson, TypeError, KeyError, AttributeError):
        raise PolicyUnavailable(
            f"{url} answers, but not as an OpenAI-compatible endpoint, whose URL usually ends in /v1"
        ) from None


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
