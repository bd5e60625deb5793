"""`steprag run check`: every byte of finished run folders against their manifests."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from steprag.config.load import parse_arguments
from steprag.console.terminal import guarded
from steprag.errors import ConfigError
from steprag.records.jsonl import existing, write_json
from steprag.records.sealed import FILES, check_outputs, outputs, to_facts
from steprag.runs.run import read_manifest


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="steprag run check", description="Hashes every file that the manifests of run folders list."
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders")
    parser.add_argument("--accept", action="store_true", help="list the files as they are now: you changed them")
    given = parse_arguments(parser, argv)
    for folder in [existing(run, "run folder") for run in given.runs]:
        said = _accepted(folder) if given.accept else _checked(folder)
        sys.stdout.write(f"{folder}: {said}\n")
    return 0


def _checked(folder: Path) -> str:
    """What was found. Raises DataError at the first difference."""
    manifest = read_manifest(folder)
    count = check_outputs(folder, manifest, full=True)
    if count is None:
        return f"not checked: its manifest lists no files (status {manifest.get('status')}); --accept lists them"
    return f"ok: {count} files"


def _accepted(folder: Path) -> str:
    """Lists the folder's files anew. Raises ConfigError where a run goes on there."""
    manifest = read_manifest(folder)
    if manifest.get("stage") == "index" or manifest.get("status") == "running":
        raise ConfigError(f"{folder} is an index folder, or its run has not ended: nothing was listed")
    files = outputs(folder)
    write_json(folder / "manifest.json", {**manifest, FILES: to_facts(files)})
    return f"accepted: {len(files)} files"


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
