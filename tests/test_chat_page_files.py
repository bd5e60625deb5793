"""The pages' files, without a browser: their imports are there, and nothing in them can make markup of text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from inference.chat.http.routes import PAGE
from steprag.web.app import SHARED, VENDOR, page_file

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
        target = VENDOR / source.removeprefix("/vendor/") if source.startswith("/vendor/") else page_file(PAGE, source)
        assert target.is_file(), source
        for name in filter(None, (one.strip() for one in names.split(","))):
            assert name.split(" as ")[0] in exported(target), f"{source}: {name}"


@pytest.mark.parametrize("file", [*MODULES, PAGE / "index.html"], ids=lambda file: file.name)
def test_no_text_becomes_markup_and_nothing_comes_from_elsewhere(file: Path) -> None:
    text = file.read_text()
    assert [one for one in FORBIDDEN if one in text] == []
    assert text.startswith(("//", "<!doctype html>"))  # a module says what it is for
    assert len(text.splitlines()) < 300


def test_the_shell_loads_files_that_are_there_and_holds_no_script() -> None:
    shell = (PAGE / "index.html").read_text()
    named = re.findall(r'(?:src|href)="/page/([^"]+)"', shell)
    assert {"main.js", "theme.js", "base.css"} <= set(named)
    assert all(page_file(PAGE, name).is_file() for name in named)
    assert re.findall(r"<script[^>]*>[^<]+</script>|<style", shell) == []
