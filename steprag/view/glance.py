"""What the table of runs tells of each one: stage, model, state and why, size, score, cost, time; and how far it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steprag.view.folders import FILES, PROGRESS, SCORES, RunFolder
from steprag.view.series import number

SIZES = {
    "generate": ("counts.trees", "tree"),
    "pairs": ("counts.pairs.train", "pair"),
    "train": ("rows", "row"),
    "infer": ("counts.questions", "question"),
    "readings": ("counts.readings", "reading"),
}
"""By stage: where the manifest says how many there are, and of what."""
FAR = ("done", "total", "calls", "usd", "seconds", "left_seconds")
"""The numbers of a run under way (`progress.json`)."""


def run_told(run: RunFolder) -> dict[str, Any]:
    """All of a run that the page shows beside its records; numbers that nobody wrote down are None."""
    manifest, fault = run.manifest()
    scores, spent = run.facts(SCORES), manifest.get("spent") or manifest.get("usage")
    where, what = SIZES.get(str(manifest.get("stage")), ("asked", "question"))
    told = {
        "key": run.key,
        **{name: manifest.get(name) for name in ("stage", "status", "started", "ended", "version", "counts", "asked")},
        "error": _words(manifest.get("error")),
        "model": _model(manifest),
        "n": number(_at(manifest, where)),
        "what": what,
        "em": number(scores.get("em")),
        "em_interval": _interval(scores.get("em_interval")),
        "calls": number(_at(spent, "calls")),
        "usd": number(_at(spent, "usd")),
        "seconds": number(manifest.get("seconds")),
        "progress": _progress(run.facts(PROGRESS)),
        "changed": run.changed(),
        "fault": fault,
        "kinds": run.kinds(),
        "files": {kind: [listing.path.name for listing in run.listings(kind)] for kind in FILES},
        "stamp": run.stamp(),
    }
    return told


def _at(value: Any, place: str) -> Any:
    """The value at a place like `counts.pairs.train`, whose last part may hold dots itself; None where none is."""
    if not isinstance(value, Mapping):
        return None
    head, _, rest = place.partition(".")
    return value[place] if place in value else _at(value.get(head), rest) if rest else None


def _words(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _model(manifest: Mapping[str, Any]) -> str | None:
    """The model that was asked, or that was trained."""
    identity = manifest.get("identity")
    return _words(_at(identity, "policy.model")) or _words(_at(identity, "model"))


def _interval(value: object) -> list[float] | None:
    ends = [number(one) for one in value] if isinstance(value, list) else []
    return [end for end in ends if end is not None] if len(ends) == 2 and None not in ends else None


def _progress(told: Mapping[str, Any]) -> dict[str, Any] | None:
    """How far a run is, by its own word; None where it says nothing that can be read."""
    far = {name: number(told.get(name)) for name in FAR}
    return None if far["done"] is None else {**far, "at": _words(told.get("at"))}
