"""The pages' files, without a browser: their imports are there, nothing in them can make markup of text, and those of
others are what their list says, each with its licence.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from apps.chat.http.routes import PAGE
from apps.viewer.export import PAGE as VIEWER
from steprag.web.app import FREE, SHARED, VENDOR, page_app, page_file
from steprag.web.guard import Access

MODULES = sorted([*PAGE.glob("*.js"), *SHARED.glob("*.js")])
IMPORT = re.compile(r'^(?:import|export) (?:\* as \w+|\w+|\{([^}]*)\})(?: from "([^"]+)")?;$', re.MULTILINE)
EXPORT = re.compile(r"^export (?:async )?(?:function\*? ?|const |class )(\w+)", re.MULTILINE)
FORBIDDEN = ("innerHTML", "InnerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "new Function",
             "style=", "http://", "https://")  # fmt: skip


def exported(file: Path) -> set[str]:
    """The names that a module of ours, or of others, exports."""
    text = file.read_text()
    listed = [one for names in re.findall(r"export\s?\{([^}]*)\}", text) for one in names.split(",")]
    return {*EXPORT.findall(text), *(one.split(" as ")[-1].strip() for one in listed)}


@pytest.mark.parametrize("file", MODULES, ids=lambda file: file.name)
def test_every_import_is_there(file: Path) -> None:
    for names, source in IMPORT.findall(file.read_text()):
        if not source:
            continue
        theirs = source.startswith("../vendor/")
        target = VENDOR / source.removeprefix("../vendor/") if theirs else page_file(PAGE, source)
        assert target.is_file(), source
        for name in filter(None, (one.strip() for one in names.split(","))):
            assert name.split(" as ")[0] in exported(target), f"{source}: {name}"


@pytest.mark.parametrize("file", [*MODULES, PAGE / "index.html"], ids=lambda file: file.name)
def test_no_text_becomes_markup_and_nothing_comes_from_elsewhere(file: Path) -> None:
    text = file.read_text()
    assert [one for one in FORBIDDEN if one in text] == []
    assert text.startswith(("//", "<!doctype html>"))  # a module says what it is for
    assert re.findall(r"""["'`]/(?:api|page|vendor|sources|v1)\b""", text) == [], "a proxy may offer it below a path"
    assert len(text.splitlines()) < 300


def test_the_shell_loads_files_that_are_there_and_holds_no_script() -> None:
    shell = (PAGE / "index.html").read_text()
    named = re.findall(r'(?:src|href)="page/([^"]+)"', shell)
    assert {"main.js", "theme.js", "base.css"} <= set(named)
    assert all(page_file(PAGE, name).is_file() for name in named)
    assert re.findall(r"<script[^>]*>[^<]+</script>|<style", shell) == []


@pytest.mark.parametrize("page", [PAGE, VIEWER])
def test_the_shell_names_every_module_at_once(page: Path) -> None:
    access = Access("token", True, FREE, 1024, "cookie", frozenset())
    with TestClient(page_app("page", page, access), base_url="http://127.0.0.1", client=("127.0.0.1", 1)) as client:
        named = re.findall(r'<link rel="modulepreload" href="([^"]+)">', client.get("/").text)
        assert {client.get(f"/{address}").status_code for address in named} == {200}
    scripts = {f"page/{file.name}" for room in (page, SHARED) for file in room.glob("*.js")}
    asked = {address for address in named if address.startswith("page/")}
    assert len(asked) > 20
    assert scripts - asked <= {"page/theme.js"}


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
