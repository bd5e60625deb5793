"""Run folders: what a stage writes, with a manifest that says how it came to be.

A folder belongs to one configuration. Started again with the same one, the run resumes; with another, it is refused
and nothing is touched, unless an earlier start left nothing in it. A second process on the same folder is refused too.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import re
import shlex
import sqlite3
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import filelock

import steprag
from steprag.console.progress import say, say_next
from steprag.errors import BudgetReached, ConfigError, DataError, StepragError, quoted
from steprag.records.jsonl import PARTIAL, LineJournal, read_json, read_rows, write_json
from steprag.records.sealed import FILES, REMEDY, Listed, check_outputs, names_of, outputs, to_facts
from steprag.types import COUNTABLE

FORMAT = 1
NUMBERED = "*"
"""At the end of a folder's name: without it, or with -2, -3, … in its place, the first that the run may have."""
CALLS = "calls.sqlite"
PROGRESS = "progress.json"
"""How far a batch of questions is, while it runs."""
FAILED = "failures.jsonl"
"""Questions that failed, and why."""
_OWN = ("manifest.json", "metrics.jsonl", PROGRESS, FAILED, ".lock")
"""Files of a run that hold no result; a journal without replies holds none either."""
_LATE = ("configuration",)
"""Keys of identities that those of earlier versions lack."""
_HASH = re.compile("[0-9a-f]{16}")


@dataclass(frozen=True)
class Run:
    """An open run folder. `manifest` is written at the start, by `save` and at the end."""

    path: Path
    manifest: dict[str, Any]
    metrics: LineJournal

    def note(self, **values: Any) -> None:
        """Appends a line to `metrics.jsonl`."""
        self.metrics.append({"time": now(), **values})

    def set(self, **values: Any) -> None:
        """Sets fields of the manifest (counts, usage, fingerprints); they reach the disk when the run closes."""
        self.manifest.update(values)

    def save(self, **values: Any) -> None:
        """Sets fields of the manifest that must outlive a kill."""
        self.set(**values)
        write_json(self.path / "manifest.json", self.manifest)

    @property
    def finished(self) -> bool:
        """Whether an earlier run with this very configuration ended well here."""
        return self.manifest.get("previous_status") == "done"


@contextmanager
def open_run(
    path: Path | str, stage: str, *, identity: dict[str, Any], config: dict[str, Any], overwrite: bool | None = None
) -> Iterator[Run]:
    """The run folder at `path` (which may be `NUMBERED`), made or continued, locked while the block runs.

    `identity` is what decides the results (configuration without such things as concurrency, hashes of inputs); a
    folder whose identity differs raises ConfigError. `overwrite`: what that run made is deleted instead; None where the
    command has no such option. The manifest's status ends as done, partial (the block set it), budget, interrupted or
    failed.
    """
    path, identity = Path(path), json.loads(json.dumps(identity))
    if path.name.endswith(NUMBERED):
        path = _first_free(path, stage, identity)
        say(f"{stage}: run folder {path}")
    with locked(path):
        for leftover in path.glob(f".*{PARTIAL}"):  # a kill came while the file was being written
            leftover.unlink()
        manifest = _manifest(path, stage, identity, config, overwrite)
        before = manifest.pop(FILES, None)
        listed = Listed(path, before)  # what is listed may change from here on
        write_json(path / "manifest.json", manifest)
        with LineJournal(path / "metrics.jsonl", synced=False) as metrics:
            run = Run(path, manifest, metrics)
            say_next("view", path)  # unless the command knows better
            yield from _closing(run, listed, before)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """The folder, made if need be, for this process alone."""
    lock = filelock.FileLock(path / ".lock", timeout=0)
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except filelock.Timeout:
        raise ConfigError(f"{path} is in use by another process; wait for it or choose another folder") from None
    except OSError as error:
        raise ConfigError(f"cannot write into the run folder {path}: {error.strerror or error}") from None
    try:
        yield
    finally:
        lock.release()


def _closing(run: Run, listed: Listed, before: object) -> Iterator[Run]:
    """`before`: the list of files of an earlier start. Where it is done and they are the same, its end stays."""
    status, ended = "failed", run.manifest["ended"] if run.finished else None
    try:
        yield run
        status = run.manifest["status"] if run.manifest["status"] != "running" else "done"
    except BudgetReached:
        status = "budget"
        raise
    except (KeyboardInterrupt, asyncio.CancelledError):  # asyncio makes the second of Ctrl-C
        status = "interrupted"
        raise
    except StepragError as error:
        run.set(error=str(error))
        raise
    finally:
        run.manifest.pop("previous_status", None)
        if status not in ("failed", "interrupted"):
            run.set(**{FILES: to_facts(outputs(run.path, listed))})
        run.set(status=status, ended=(run.manifest.get(FILES) == before and ended) or now())
        write_json(run.path / "manifest.json", run.manifest)


def checked_manifest(path: Path | str, *needed: str) -> dict[str, Any]:
    """As `read_manifest`, for a run whose results are about to be read: compares its files with the list."""
    manifest = read_manifest(path, *needed)
    check_outputs(Path(path), manifest)
    return manifest


def run_of(file: Path, *needed: str) -> dict[str, Any]:
    """The manifest of the run that a file of results lies in, as `checked_manifest`; empty where it lies in none."""
    return checked_manifest(file.parent, *needed) if (file.parent / "manifest.json").exists() else {}


def read_manifest(path: Path | str, *needed: str) -> dict[str, Any]:
    """The manifest of a run folder. It has the `needed` keys; its `identity` and `config` are objects. Where they
    stand there, `prompt` (also of the identity) is an object and `asked` a count.

    Raises ConfigError where there is none, DataError where it is damaged or another program's.
    """
    file = Path(path) / "manifest.json"
    if not file.is_file():
        raise ConfigError(f"{path} is not a run folder: it has no manifest.json")
    manifest = read_json(file, REMEDY)
    for key in needed:
        if key not in manifest:
            raise DataError(file, f"{key} is missing", remedy=REMEDY)
    for key in ("identity", "config"):
        if not isinstance(manifest.get(key, {}), dict):
            raise DataError(file, f"{key}: expected an object, found {type(manifest[key]).__name__}", remedy=REMEDY)
    for place in (manifest, manifest.get("identity", {})):
        if isinstance(place.get("prompt"), str) and _HASH.fullmatch(place["prompt"]):
            place["prompt"] = {"hash": place["prompt"]}  # as `judge` and `readings` wrote it up to version 0.1
        if not isinstance(place.get("prompt"), dict | None):
            raise DataError(file, f"prompt: expected an object, found {quoted(place['prompt'])}", remedy=REMEDY)
    asked = manifest.get("asked", 0)
    if isinstance(asked, bool) or not isinstance(asked, int) or asked < 0:
        raise DataError(file, f"asked: expected a count of questions, found {quoted(asked)}", remedy=REMEDY)
    return manifest


def events_of(file: Path) -> Iterator[dict[str, Any]]:
    """The lines of a run's `metrics.jsonl`; none where it is missing. NaN and Infinity are taken.

    Raises DataError for a line that is no object, whose `time` is no time with its zone, or whose `step`
    or `seconds` is no amount.
    """
    for line, row in read_rows(file, finite=False) if file.exists() else ():
        if not isinstance(row, dict):
            raise DataError(file, f"expected a JSON object, found {type(row).__name__}", line=line, remedy=REMEDY)
        odd = [key for key, fits in _EVENT.items() if key in row and not fits(row[key])]
        if odd:
            raise DataError(file, f"{odd[0]} makes no sense", line=line, remedy=REMEDY)
        yield row


def _is_time(value: object) -> bool:
    try:
        return datetime.datetime.fromisoformat(str(value)).tzinfo is not None
    except ValueError:
        return False


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < COUNTABLE


_EVENT = {
    "time": _is_time,
    "step": _is_amount,
    "seconds": _is_amount,
    "event": lambda value: isinstance(value, str),
}


def has_ended(manifest: dict[str, Any], outcomes: int) -> bool:
    """Whether each question that the run was `asked` has one of its `outcomes`, a result or a failure. For runs without
    that count, the status decides.
    """
    if "asked" in manifest:
        return outcomes >= manifest["asked"]
    return manifest.get("status") in ("done", "partial")


def is_done(path: Path, *also: str) -> bool:
    """Whether a run folder is there and its run has ended well, or with a status that is `also` good enough."""
    return (path / "manifest.json").is_file() and read_manifest(path).get("status") in ("done", *also)


def add_overwrite_option(parser: argparse.ArgumentParser) -> None:
    """`--overwrite`, for stages that take seconds."""
    text = "where --out holds a run of other options or inputs, delete what it made and start over"
    parser.add_argument("--overwrite", action="store_true", help=text)


def _first_free(path: Path, stage: str, identity: dict[str, Any]) -> Path:
    """Of the folders that a `NUMBERED` path stands for, the first that is new or empty, or is this run's."""
    stem = path.name.removesuffix(NUMBERED)
    for number in count(1):
        folder = path.with_name(stem if number == 1 else f"{stem}-{number}")
        if not (folder / "manifest.json").exists():
            if not folder.exists() or all(entry.name == ".lock" for entry in folder.iterdir()):
                return folder
            continue
        old = read_manifest(folder, "stage", "identity")
        if (old["stage"], old["identity"]) == (stage, as_noted(identity, old["identity"])) or _left_nothing(
            folder, old
        ):
            return folder
    raise AssertionError("numbers do not end")


def as_noted(identity: Any, old: Any, late: Sequence[str] = _LATE) -> Any:
    """An identity without the keys of `late` that the other, of an earlier version, does not say and so cannot
    contradict.
    """
    if not isinstance(identity, dict):
        return identity
    old = old if isinstance(old, dict) else {}
    return {
        key: as_noted(value, old.get(key), late) for key, value in identity.items() if key not in late or key in old
    }


def _left_nothing(path: Path, old: dict[str, Any]) -> bool:
    """Whether a run that did not end well holds no result and no reply, so that any other may have its folder."""
    own = {path / name for name in _OWN}
    return old.get("status") != "done" and not any(
        _has_replies(file) if file.name == CALLS else file.lstat().st_size and not file.name.startswith(CALLS)
        for file in path.rglob("*")
        if not file.is_dir() and file not in own
    )


def _has_replies(journal: Path) -> bool:
    """Whether a journal holds the reply to a call; one that cannot be read may."""
    try:
        with closing(sqlite3.connect(f"{journal.absolute().as_uri()}?mode=ro", uri=True)) as database:
            return database.execute("SELECT 1 FROM calls WHERE reply IS NOT NULL LIMIT 1").fetchone() is not None
    except sqlite3.Error:
        return True


def _manifest(
    path: Path, stage: str, identity: dict[str, Any], config: dict[str, Any], overwrite: bool | None
) -> dict[str, Any]:
    fresh = {
        "format": FORMAT,
        "stage": stage,
        "status": "running",
        "version": code_version(),
        "identity": identity,
        "config": config,
        "started": now(),
        "ended": None,
    }
    if not (path / "manifest.json").exists():
        strangers = [entry.name for entry in path.iterdir() if entry.name != ".lock"]
        if strangers:
            raise ConfigError(f"{path} holds other files ({strangers[0]}, …) and no manifest; choose an empty folder")
        return fresh
    old = read_manifest(path, "stage", "identity", "config")
    same_stage = old.get("stage") == stage
    known = as_noted(identity, old["identity"])
    if not same_stage or old["identity"] != known:
        mine = same_stage and overwrite and not ((path / CALLS).exists() and _has_replies(path / CALLS))
        if mine or _left_nothing(path, old):
            for name in {*names_of(path, old.get(FILES)), *_OWN} - {".lock"}:
                (path / name).unlink(missing_ok=True)
            say(f"{stage}: {path} is started over; {'what it held is deleted' if mine else 'nothing was in it'}")
            return fresh
        if not same_stage:
            raise ConfigError(f"{path} is a run of {quoted(old.get('stage'))}, not of {stage!r}; choose another folder")
        key, was, now_asked = difference(old["identity"], known)
        told = f"{path} was made with {key} = {quoted(was)}, and is now asked for {quoted(now_asked)}{_meaning(key)}"
        is_option = key in dict(_flat(config))  # a recipe or a default may have set it, too
        same = f"give --{key} {shlex.quote(str(was))} to continue it, or " if is_option else ""
        more = ", or give --overwrite" if overwrite is False else ""
        raise ConfigError(f"{told}; {same}choose another folder{more}")
    kept = {key: value for key, value in old.items() if key not in fresh and key != "error"}
    kept["ended"] = old.get("ended") if old.get("status") == "done" else None
    return {**fresh, "started": old.get("started", fresh["started"]), **kept, "previous_status": old.get("status")}


def _meaning(key: str) -> str:
    """What a hash that differs stands for."""
    told = {"grammar": "the tools of the index, or the profile's actions", "index": "the index, or what its tools are",
            "configuration": "the model's config.json, tokenizer or template"}  # fmt: skip
    name = key.rpartition(".")[2]
    return f" ({told[name]} changed)" if name in told else ""


def difference(one: dict[str, Any], other: dict[str, Any]) -> tuple[str, Any, Any]:
    """The first key on which two identities that are not equal differ, with both values."""
    flat, flat_other = dict(_flat(one)), dict(_flat(other))
    keys = sorted(flat.keys() | flat_other.keys())
    differ = (key for key in keys if flat.get(key) != flat_other.get(key))
    key = next(differ, "configuration")  # an empty section is a difference that has no key
    return key, flat.get(key), flat_other.get(key)


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{prefix}.{key}" if prefix else key)
    else:
        yield prefix, value


def code_version() -> str:
    """The package's version; from a git checkout with its commit (`0.1.0+2c98575`), and `.dirty` behind that where a
    file of git's differs from it.
    """
    folder = Path(__file__).parents[2]
    if not (folder / ".git").exists():
        return steprag.__version__
    described = ["git", "-C", str(folder), "describe", "--always", "--exclude=*", "--dirty=.dirty"]
    try:
        git = subprocess.run(described, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):  # no git on this machine: the version alone has to do
        return steprag.__version__
    return f"{steprag.__version__}+{git.stdout.strip()}" if git.returncode == 0 else steprag.__version__


def now() -> str:
    """The time in UTC, ISO 8601, to the millisecond."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
