"""What a run learns of the endpoints that it asks, for its manifest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from steprag.batch.journal import Journal
from steprag.errors import ConfigError
from steprag.policy.open import Model
from steprag.policy.protocols import Reporting
from steprag.runs.run import Run

Served = dict[str, dict[str, str]]
"""By role: what its endpoint reports about the model."""


def served_by(**models: Model | None) -> Served:
    """The weights that each role's endpoint reports; roles without a report are omitted."""
    found = {key: each.policy.served for key, each in models.items() if each and isinstance(each.policy, Reporting)}
    return {role: served for role, served in found.items() if served}


@contextmanager
def asking(run: Run, journal: Journal, **models: Model | None) -> Iterator[None]:
    """The block in which the models of these roles are asked: what is known of their endpoints goes into the manifest.

    Raises ConfigError as `note_served`.
    """
    run.set(calls_lost=journal.lost)
    note_served(run, served_by(**models))
    try:
        yield
    finally:
        policies = {role: each.policy for role, each in models.items() if each}
        learnt = {role: one.learnt for role, one in policies.items() if isinstance(one, Reporting) and one.learnt}
        if learnt:
            run.set(refused_fields=learnt)


def note_served(run: Run, models: Served) -> None:
    """Notes the served models. Raises ConfigError if an endpoint reported another one when the run was begun; an
    endpoint without a report is not checked.
    """
    known = dict(run.manifest.get("served", {}))
    for role, served in models.items():
        if known.setdefault(role, served) != served:
            raise ConfigError(
                f"{run.path} was begun with {known[role]} served as the {role}, which is now {served}; serve the same "
                "again, or choose another folder"
            )
    run.save(served=known)
