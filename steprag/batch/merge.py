"""Joins the shards of a run of `steprag generate` or `infer`.

The merged folder equals that of a run without `--shard`: the same commands go on in it, replay, view and score it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steprag.batch.database import Database, absorb, absorb_slots, put_in_order
from steprag.batch.journal import JOURNAL, Journal
from steprag.batch.results import ResultKind, Results, gather
from steprag.batch.shards import Share, shard_of
from steprag.batch.worklist import FAILED, failures_in, note_failures
from steprag.config.sections import JudgeConfig, PolicyConfig
from steprag.console.progress import say
from steprag.errors import ConfigError, quoted
from steprag.policy.budget import Spending, prices_of
from steprag.records.jsonl import drop_torn_line, write_records
from steprag.runs.run import Run, difference, events_of, locked, open_run, read_manifest

KEPT = ("grammar", "tools", "served")
"""What a manifest keeps of how its run was made; equal in all shards."""


@dataclass(frozen=True)
class Merging:
    """A stage's results file, and what it writes once all results are there (counts, scores)."""

    file: str
    kind: ResultKind[Any]
    finish: Callable[[Run, Results[Any]], None]


@dataclass(frozen=True)
class ShardRun:
    """A run of one part."""

    folder: Path
    manifest: dict[str, Any]
    share: Share

    @property
    def whole(self) -> dict[str, Any]:
        """The identity of the run that it is a part of."""
        return {key: value for key, value in self.manifest["identity"].items() if key != "shard"}

    @property
    def ended(self) -> bool:
        return self.manifest.get("status") in ("done", "partial")


def merge(out: Path, folders: Sequence[Path], mergings: Mapping[str, Merging]) -> bool:
    """Writes the run folder `out`; returns whether questions failed or are still to be worked off.

    `mergings` says by stage how its runs are merged. Merged again, the folder takes over what the shards have done
    since. Raises ConfigError where shards are missing, doubled or not of one run.
    """
    with ExitStack() as opened:
        shards = checked([_shard(folder, mergings) for folder in folders])
        for shard in shards:
            opened.enter_context(locked(shard.folder))
        first = shards[0].manifest
        stage = mergings[first["stage"]]
        run = opened.enter_context(open_run(out, first["stage"], identity=shards[0].whole, config=first["config"]))
        return _merge(run, shards, stage)


def _merge(run: Run, shards: Sequence[ShardRun], stage: Merging) -> bool:
    manifests = [shard.manifest for shard in shards]
    run.save(**{key: manifests[0][key] for key in KEPT if key in manifests[0]})
    if all("asked" in manifest for manifest in manifests):
        run.save(asked=sum(manifest["asked"] for manifest in manifests))
    order = _journals(run.path / JOURNAL, shards)
    files = [path for folder in (run.path, *_folders(shards)) if (path := folder / stage.file).exists()]
    gather(run.path / stage.file, stage.kind, files, order)
    _events(run, shards)
    failures = {key: row for folder in (run.path, *_folders(shards)) for key, row in _failures(folder).items()}
    write_records(run.path / FAILED, (failures[key] for key in dict.fromkeys((*order, *failures)) if key in failures))
    results = Results(run.path / stage.file, stage.kind)
    failed, spending = note_failures(run, results), _spending(manifests[0]["config"])
    with closing(Journal(run.path / JOURNAL, spending, reading=True)) as journal:
        run.set(calls_lost=journal.lost)
    if spending.usage.calls:
        run.set(spent=spending.summary())
        say(f"merge: {spending.bill}")
    stage.finish(run, results)
    open_ended = [shard for shard in shards if not shard.ended]
    if open_ended:
        run.set(status="interrupted")
        say(
            f"merge: {', '.join(str(shard.share) for shard in open_ended[:5])} did not come to their end; start them "
            f"again and merge again, or go on with steprag {run.manifest['stage']} --out {run.path} and no --shard"
        )
    return bool(failed or open_ended)


def checked(shards: Sequence[ShardRun]) -> list[ShardRun]:
    """The shards in order. Raises ConfigError where they are not all parts of one run."""
    one, by_place = shards[0], dict[int, ShardRun]()
    for shard in shards:
        if shard.manifest["stage"] != one.manifest["stage"]:
            raise ConfigError(f"{one.folder} is a run of {one.manifest['stage']}, {shard.folder} of "
                              f"{shard.manifest['stage']}; merge shards of one command")  # fmt: skip
        if shard.share.of != one.share.of:
            raise ConfigError(f"{one.folder} is shard {one.share}, {shard.folder} is {shard.share}; give shards of "
                              "one division")  # fmt: skip
        for kind, own, others in (
            ("", one.whole, shard.whole),
            (" served", one.manifest.get("served", {}), shard.manifest.get("served", {})),
        ):
            if own != others:
                key, was, other = difference(own, others)
                raise ConfigError(f"{one.folder} was made with{kind} {key} = {quoted(was)}, {shard.folder} with "
                                  f"{quoted(other)}; they are not parts of one run")  # fmt: skip
        if (double := by_place.setdefault(shard.share.place, shard)) is not shard:
            raise ConfigError(f"{double.folder} and {shard.folder} are both shard {shard.share}; give each once")
    if missing := [str(Share(place, one.share.of)) for place in range(one.share.of) if place not in by_place]:
        raise ConfigError(f"shards are missing: {', '.join(missing[:5])} ({len(missing)} of {one.share.of}); "
                          "give the folders of all")  # fmt: skip
    return [by_place[place] for place in range(one.share.of)]


def _shard(folder: Path, stages: Container[str]) -> ShardRun:
    manifest = read_manifest(folder, "stage", "identity", "config")
    share = shard_of(manifest["identity"].get("shard"))
    if manifest["stage"] not in stages or share is None:
        raise ConfigError(f"{folder} is not a shard: it was not made by steprag generate or infer with --shard")
    return ShardRun(folder, manifest, share)


def _folders(shards: Sequence[ShardRun]) -> list[Path]:
    return [shard.folder for shard in shards]


def _journals(path: Path, shards: Sequence[ShardRun]) -> list[str]:
    """Absorbs the shards' journals; the ids of the questions that were begun, in the order of the question file."""
    places: dict[str, int] = {}
    with closing(Database(path)) as into:
        for shard in shards:
            journal = shard.folder / JOURNAL
            absorb_slots(shard.folder, ())
            if not journal.exists():
                continue
            absorb(into, journal, str(shard.share))
            with closing(Database(journal, reading=True)) as part:
                begun = part.rows("SELECT id FROM questions ORDER BY rowid")
            places |= {key: row * shard.share.of + shard.share.place for row, (key,) in enumerate(begun)}
        order = sorted(places, key=lambda key: places[key])
        put_in_order(into, order)
    return order


def _failures(folder: Path) -> dict[str, dict[str, Any]]:
    drop_torn_line(folder / FAILED)
    return failures_in(folder)


def _events(run: Run, shards: Sequence[ShardRun]) -> None:
    """The shards' events in the order of time, but for those that an earlier merge took over."""
    own = run.path / "metrics.jsonl"
    known = {json.dumps(row) for row in events_of(own)}
    rows: list[dict[str, Any]] = []
    for shard in shards:
        events = shard.folder / "metrics.jsonl"
        drop_torn_line(events)
        rows += [{**row, **shard.share.identity} for row in events_of(events)]
    for row in sorted(rows, key=lambda row: row.get("time", "")):
        if json.dumps(row) not in known:
            run.metrics.append(row)


def _spending(config: dict[str, Any]) -> Spending:
    """Counts at the prices of the run's configuration."""
    policy, judge = PolicyConfig(**config.get("policy", {})), config.get("judge")
    return Spending(prices=prices_of(policy, JudgeConfig(**judge) if isinstance(judge, dict) else None))
