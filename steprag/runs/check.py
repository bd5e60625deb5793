"""Every byte of a finished run folder against its manifest: what `steprag check` does with runs."""

from __future__ import annotations

from pathlib import Path

from steprag.errors import ConfigError, counted
from steprag.records.jsonl import write_json
from steprag.records.sealed import FILES, check_outputs, outputs, to_facts
from steprag.runs.run import read_manifest


def checked(folder: Path) -> str:
    """What was found. Raises DataError at the first difference."""
    manifest = read_manifest(folder)
    count = check_outputs(folder, manifest, full=True)
    if count is None:
        return f"not checked: its manifest lists no files (status {manifest.get('status')}); --accept lists them"
    return f"ok: {counted(count, 'file')}"


def accepted(folder: Path) -> str:
    """Lists the folder's files again. Raises ConfigError where a run is under way there."""
    manifest = read_manifest(folder)
    if manifest.get("stage") == "index" or manifest.get("status") == "running":
        raise ConfigError(f"{folder} is an index folder, or its run has not ended: nothing was listed")
    files = outputs(folder)
    write_json(folder / "manifest.json", {**manifest, FILES: to_facts(files)})
    return f"accepted: {counted(len(files), 'file')}"
