"""`steprag doctor`: what this machine can do, a line a finding. Exit code 1 where the embedded default cannot run."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from steprag.config.load import parse_arguments
from steprag.console.progress import say_next
from steprag.console.terminal import guarded
from steprag.engines.cache import cache_dir
from steprag.engines.launch import vllm_program
from steprag.engines.models import embedded_encoder, embedded_gguf, verify
from steprag.engines.threads import usable_cores, usable_memory
from steprag.errors import ConfigError
from steprag.extras import EXTRAS, missing_of, remedy, set_up
from steprag.runs.run import code_version

PACKAGES = ("torch", "transformers", "trl", "peft", "sentence-transformers", "faiss-cpu", "xllamacpp")


@dataclass(frozen=True)
class Finding:
    """`state`: ok, missing (the embedded default needs it) or note (good to know)."""

    what: str
    state: str
    detail: str


def main(argv: list[str]) -> int:
    """Prints the findings; 1 where one that the embedded default needs is missing."""
    parser = argparse.ArgumentParser(prog="steprag doctor", description="What this machine can do.")
    parser.add_argument("--json", action="store_true", help="findings as JSON on standard output")
    parser.add_argument("--full", action="store_true", help="also hash the embedded weights")
    given = parse_arguments(parser, argv)
    findings = [*_machine(), *_packages(), *map(_extra, EXTRAS), *_models(given.full), *_keys()]
    if given.json:
        sys.stdout.write(json.dumps([asdict(finding) for finding in findings], indent=2) + "\n")
    else:
        sys.stdout.write("".join(f"{f.state:<8} {f.what:<24} {f.detail}\n" for f in findings))
    say_next("demo")
    return int(any(finding.state == "missing" for finding in findings))


def _machine() -> list[Finding]:
    memory = usable_memory() / 2**30
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    gpu = shutil.which("nvidia-smi")
    return [
        Finding("steprag", "ok", f"{code_version()}, Python {platform.python_version()}"),
        Finding(
            "processor", "ok", f"{usable_cores()} cores, {memory:.0f} GiB of memory, {free:.0f} GiB of disk free here"
        ),
        Finding("GPU", "ok" if gpu else "note", "nvidia-smi is there" if gpu else "none found; the default needs none"),
        Finding("cache", "ok", str(cache_dir())),
    ]


def _packages() -> list[Finding]:
    own = Finding("llamafactory", "note", "not installed here; it wants an environment of its own")
    return [*map(_package, PACKAGES), _vllm(), *([own] if importlib.util.find_spec("llamafactory") is None else [])]


def _vllm() -> Finding:
    try:
        return Finding("vllm", "ok", str(vllm_program()))
    except ConfigError as error:
        return Finding("vllm", "note", str(error))


def _package(name: str) -> Finding:
    try:
        return Finding(name, "ok", metadata.version(name))
    except metadata.PackageNotFoundError:
        return Finding(name, "missing", f"run: {set_up('all')}")


def _extra(name: str) -> Finding:
    """An extra of the install: whole, or what it lacks and the command that brings it."""
    lacking = missing_of(name)
    if not lacking:
        return Finding(f"extra {name}", "ok", "installed")
    return Finding(f"extra {name}", "note", f"without {', '.join(lacking)}; for it: {remedy(name)}")


def _models(full: bool) -> list[Finding]:
    sought: dict[str, Callable[[], object]] = {"embedded model": embedded_gguf, "embedded encoder": embedded_encoder}
    if full:
        sought["hashes of the weights"] = verify
    return [_found(what, find) for what, find in sought.items()]


def _found(what: str, find: Callable[[], object]) -> Finding:
    try:
        return Finding(what, "ok", str(find()))
    except ConfigError as error:
        return Finding(what, "missing", str(error))


def _keys() -> list[Finding]:
    """Whether a key is set; never the key."""
    is_set = bool(os.environ.get("OPENAI_API_KEY"))
    return [Finding("OPENAI_API_KEY", "ok" if is_set else "note", "set" if is_set else "not set; only GPT-4o needs it")]


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
