"""The front-end files of others: what their list says they are, each with its licence."""

from __future__ import annotations

import hashlib

import pytest

from steprag.web.app import VENDOR

ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (VENDOR / "SOURCES.md").read_text().splitlines()
    if line.startswith("| ") and "@" in line
]


@pytest.mark.parametrize(("name", "package", "licence", "digest"), ROWS, ids=lambda cell: cell)
def test_a_vendored_file_is_the_one_that_is_listed(name: str, package: str, licence: str, digest: str) -> None:
    file = VENDOR / name
    assert hashlib.sha256(file.read_bytes()).hexdigest() == digest
    assert licence in ("MIT", "ISC", "Apache-2.0")
    assert (file.parent / "LICENSE").stat().st_size > 500
    assert package.partition("@")[2]


def test_every_vendored_file_is_listed() -> None:
    files = {file.relative_to(VENDOR).as_posix() for file in VENDOR.rglob("*.*") if file.name != "SOURCES.md"}
    assert files == {row[0] for row in ROWS}
