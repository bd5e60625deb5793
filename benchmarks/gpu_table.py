"""The table of `scripts/gpu_check.sh`, from the report that pytest wrote of tests/test_gpu.py.

    python -m benchmarks.gpu_table JUNIT.xml --out gpu.md [--into docs/gpu.md]

A check that does not hold is FAILED, one that cannot run here says why. Speed and memory stand beside the figures.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from steprag.config.load import parse_arguments
from steprag.console.terminal import guarded
from steprag.errors import ConfigError
from steprag.records.jsonl import written_whole

BEGIN, END = "<!-- gpu_check: begin -->", "<!-- gpu_check: end -->"
PACKAGES = ("torch", "trl", "bitsandbytes", "liger-kernel", "faiss-gpu-cuvs", "faiss-cpu")
WIDTH = 120


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="gpu_table", description="The table of scripts/gpu_check.sh.")
    parser.add_argument("report", type=Path, help="what pytest wrote by --junitxml")
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
    suite = ElementTree.parse(report).getroot()
    here = [said for each in suite.iter("property") if each.get("name") == "device" and (said := each.get("value"))]
    lines = [*textwrap.wrap(f"On {'; '.join([*here, ', '.join(versions())])}.", WIDTH), ""]
    lines += ["| check | result | seconds |", "|---|---|---|"]
    told = []
    for case in suite.iter("testcase"):
        name = str(case.get("name")).removeprefix("test_").replace("_", "-")
        state, said = outcome(case)
        lines.append(f"| `{name}` | {state} | {float(case.get('time', 0)):.0f} |")
        told += ["", *textwrap.wrap(f"- `{name}`: {said}.", WIDTH, subsequent_indent="  ")]
    return "\n".join([*lines, *told]) + "\n"


def versions() -> Iterator[str]:
    """The installed packages that matter, with their versions."""
    for name in PACKAGES:
        try:
            yield f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue


def outcome(case: ElementTree.Element) -> tuple[str, str]:
    """How a check ended, and what it says: its figures, or why it has none."""
    found = {str(each.get("name")): str(each.get("value")) for each in case.iter("property")}
    if (skipped := case.find("skipped")) is not None:
        return "not run", str(skipped.get("message"))
    wrong = next((each for each in case if each.tag in ("failure", "error")), None)
    reason = "" if wrong is None else str(wrong.get("message")).strip().splitlines()[0]
    said = [found.get("compares", ""), found.get("figures", reason), found.get("speed", "")]
    said += [f"MiB of the GPU: {found['memory']}"] if found.get("memory") else []
    return "ok" if wrong is None else "**FAILED**", ". ".join(filter(None, said))


def put_into(file: Path, table: str) -> None:
    """Puts the table between the marks of a document. Raises ConfigError where it has none."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    if BEGIN not in text or END not in text:
        raise ConfigError(f"{file} has no lines {BEGIN} and {END}")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    with written_whole(file) as stream:
        stream.write(f"{before}{BEGIN}\n{table}{END}{after}")


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
