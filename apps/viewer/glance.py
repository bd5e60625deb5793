"""What the table of runs shows of each one: stage, model, state and why, size, score, cost, time, and progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from apps.viewer.folders import FILES, SCORES, RunFolder
from apps.viewer.series import number
from steprag.runs.run import PROGRESS

SIZES = {
    "generate": ("counts", "trees", "tree"),
    "pairs": ("counts", "pairs.train", "pair"),
    "train": ("", "rows", "row"),
    "infer": ("counts", "questions", "question"),
    "readings": ("counts", "readings", "reading"),
}
"""By stage: the object of the manifest and the key that say how many there are, and of what."""
FAR = ("done", "total", "calls", "usd", "seconds", "left_seconds")
"""The numbers of a run under way (`progress.json`)."""


def run_told(run: RunFolder) -> dict[str, Any]:
    """All of a run that the page shows beside its records; numbers that nobody wrote down are None."""
    manifest, fault = run.manifest()
    scores, spent, identity = run.facts(SCORES), _in(manifest, "spent"), _in(manifest, "identity")
    group, key, what = SIZES.get(str(manifest.get("stage")), ("", "asked", "question"))
    ends = scores.get("em_interval")
    progress = run.facts(PROGRESS)
    far = {name: number(progress.get(name)) for name in FAR}
    told = ("stage", "status", "started", "ended", "version", "counts", "asked", "error")
    return {
        "key": run.key,
        **{name: manifest.get(name) for name in told},
        "model": _in(identity, "policy").get("model") or identity.get("model"),
        "n": number((_in(manifest, group) if group else manifest).get(key)),
        "what": what,
        "em": number(scores.get("em")),
        "em_interval": ends if isinstance(ends, list) and [*map(number, ends)] == ends and len(ends) == 2 else None,
        **{name: number((spent or _in(manifest, "usage")).get(name)) for name in ("calls", "usd")},
        "seconds": number(manifest.get("seconds")),
        "progress": None if far["done"] is None else far,
        "changed": run.changed(),
        "fault": fault,
        "kinds": run.kinds(),
        "files": {kind: [listing.path.name for listing in run.listings(kind)] for kind in FILES},
        "stamp": run.stamp(),
    }


def _in(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The object at a key; an empty one where none stands there."""
    found = value.get(key)
    return found if isinstance(found, Mapping) else {}
