"""The table of `scripts/gpu_check.sh`, from what pytest said of tests/test_gpu.py.

    GPU_CHECK_OUT=DIR python -m pytest -p benchmarks.gpu_table tests/test_gpu.py     writes DIR/checks.jsonl
    python -m benchmarks.gpu_table DIR/checks.jsonl --out gpu.md [--into docs/gpu.md]

A check that does not hold is FAILED, one that cannot run here says why. Speed and memory stand beside the figures. The
first line of `checks.jsonl` names the checks; each gets a line when it begins and one when it ends, so that the table
can be made of checks that were cut off too.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from steprag.config.load import parse_arguments
from steprag.console.terminal import guarded
from steprag.errors import ConfigError
from steprag.records.jsonl import read_rows, written_whole

BEGIN, END = "<!-- gpu_check: begin -->", "<!-- gpu_check: end -->"
PACKAGES = ("torch", "transformers", "trl", "bitsandbytes", "deepspeed", "faiss-gpu-cuvs", "faiss-cpu")
WIDTH = 120
STATES = {"passed": "ok", "failed": "**FAILED**", "skipped": "not run"}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="gpu_table", description="The table of scripts/gpu_check.sh.")
    parser.add_argument("report", type=Path, help="the checks.jsonl that pytest wrote with this module as its plugin")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="where the table goes")
    parser.add_argument("--into", type=Path, metavar="FILE", help="put it between this file's marks too")
    given = parse_arguments(parser, argv)
    table = table_of(given.report)
    with written_whole(given.out) as file:
        file.write(table)
    if given.into:
        put_into(given.into, table)
    sys.stdout.write(table)
    return 0


def table_of(report: Path) -> str:
    """The table in Markdown, and a line on each check below it."""
    checks: dict[str, dict[str, Any]] = {}
    for _, row in read_rows(report):
        if "checks" in row:
            checks = dict.fromkeys(row["checks"], {"state": "skipped", "said": "time was up before it began"})
        else:
            checks[row["check"]] = row
    here = list(dict.fromkeys(row["device"] for row in checks.values() if "device" in row))
    lines = [*textwrap.wrap(f"On {'; '.join([*here, ', '.join(versions())])}.", WIDTH), ""]
    lines += ["| check | result | seconds |", "|---|---|---|"]
    told = []
    for name, row in checks.items():
        lines.append(f"| `{name}` | {STATES[row['state']]} | {row.get('seconds', 0):.0f} |")
        told += ["", *textwrap.wrap(f"- `{name}`: {_said(row)}.", WIDTH, subsequent_indent="  ")]
    return "\n".join([*lines, *told]) + "\n"


def versions() -> Iterator[str]:
    """The installed packages that matter, with their versions."""
    for name in PACKAGES:
        try:
            yield f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue


def _said(row: Mapping[str, Any]) -> str:
    """A check's figures, or why it has none."""
    if row["state"] == "skipped":
        return row["said"]
    said = [row.get("compares", ""), row.get("figures", row["said"]), row.get("speed", "")]
    said += [f"MiB of the GPU: {row['memory']}"] if row.get("memory") else []
    return ". ".join(filter(None, said))


def put_into(file: Path, table: str, name: str = "gpu_check") -> None:
    """Puts the table between the marks `name` of a document. Raises ConfigError where it has none."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    begin, end = (mark.replace("gpu_check", name) for mark in (BEGIN, END))
    if begin not in text or end not in text:
        raise ConfigError(f"{file} has no lines {begin} and {end}")
    before, after = text.split(begin)[0], text.split(end)[1]
    with written_whole(file) as stream:
        stream.write(f"{before}{begin}\n{table}{end}{after}")


def pytest_collection_finish(session: pytest.Session) -> None:
    """pytest's hook: the checks of this process, which runs them or is one of several (-n) that do."""
    if session.items:
        _named([item.nodeid for item in session.items])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(ids: list[str]) -> None:
    """pytest-xdist's hook: the checks that a process found, all the same."""
    _named(ids)


def pytest_runtest_logstart(nodeid: str) -> None:
    _told({"check": _name(nodeid), "state": "skipped", "said": "time was up while it ran"})


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """pytest's hook: how a check ended, with its figures."""
    if report.when == "call" or not report.passed:
        properties = {str(key): value for key, value in report.user_properties}
        how = {"check": _name(report.nodeid), "state": report.outcome, "said": _reason(report)}
        _told({**properties, **how, "seconds": round(report.duration, 1)})


def _named(ids: Iterable[str]) -> None:
    _told({"checks": [_name(each) for each in ids]}, only_first=True)


def _name(nodeid: str) -> str:
    return nodeid.rpartition("::")[2].removeprefix("test_").replace("_", "-")


def _reason(report: pytest.TestReport) -> str:
    """Why a check was skipped, or the first line of its error."""
    said = report.longrepr
    if isinstance(said, tuple | list):
        return said[2].removeprefix("Skipped: ")
    crash = getattr(said, "reprcrash", None)
    return str(crash.message if crash else said or "").strip().partition("\n")[0]


def _told(row: dict[str, Any], only_first: bool = False) -> None:
    """Adds a line, from the process that hears of all checks."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    file = Path(os.environ["GPU_CHECK_OUT"], "checks.jsonl")
    if not (only_first and file.exists()):
        with file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
