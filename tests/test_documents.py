"""What the documents name exists: links, files, commands and their options. Their lines are short."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from apps.commands import COMMANDS, main
from steprag.config.words import options_meant

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md")),
         *sorted((ROOT / "docs/howto").iterdir())]  # fmt: skip
FIGURES = sorted((ROOT / "docs/figures").glob("*.md"))
WORDS = 60_000
"""That README, change log and docs may have together."""
ROOMS = "steprag|indexes|data_generation|preference|training|inference|apps|configs|scripts|benchmarks|tests|docs"
FILE = re.compile(rf"(?<![\w./:])(?:{ROOMS})/[\w./-]+\.(?:py|yaml|sh|md|jsonl|gz|json)\b")  # not COMMIT:path
LINK = re.compile(r"\]\(([^)\s]+)\)")


def heading_names(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def shell_lines(page: Path) -> list[str]:
    """The indented `steprag …` lines, each with what a backslash goes on with, without comments."""
    text = re.sub(r" \\\n\s+", " ", page.read_text(encoding="utf-8"))
    lines = re.findall(r"^    (?:\$ )?steprag (.+)$", text, re.MULTILINE)
    return [re.split(r"\s#\s", line)[0] for line in lines]


@cache
def known_options(command: str) -> frozenset[str]:
    import contextlib
    import io

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main([*command.split(), "--help" if command.startswith("policy") else "--help-all"])
    return frozenset(re.findall(r"--[\w.]+", said.getvalue()))


def command_of(line: str) -> str | None:
    return next((c.words for c in COMMANDS if f"{line} ".startswith(f"{c.words} ")), None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_are_short(page: Path) -> None:
    long = [n for n, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1) if len(line) > 120]
    assert not long, f"{page.name}: lines {long} have more than 120 characters"


def test_words_are_few() -> None:
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in pages) <= WORDS


@pytest.mark.parametrize("page", [*PAGES, *FIGURES], ids=lambda page: page.name)
def test_links_and_files_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in LINK.findall(text):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in heading_names(linked), f"{page.name}: {target}"
    if page in FIGURES:  # their commands may name scripts of an earlier commit
        return
    missing = [name for name in FILE.findall(text) if "/X." not in name and not (ROOT / name).exists()]
    assert not missing, f"{page.name}: {missing}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_have_the_options_that_are_shown(page: Path) -> None:
    for line in shell_lines(page):
        command = command_of(line)
        if command is None:
            assert line.startswith(("COMMAND", "policy ", "demo", "--")), f"{page.name}: steprag {line}"
            continue
        words = f"policy {line.split()[1]}" if command == "policy" and len(line.split()) > 1 else command
        given, known = re.findall(r"(?<![^\s\[(])--[\w.]+", line), sorted(known_options(words))
        unknown = [option for option in given if len(options_meant(option, known)) != 1]
        assert not unknown, f"{page.name}: steprag {line}: {unknown}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_keys_that_are_named_exist(page: Path) -> None:
    known = {option for c in COMMANDS if c.words != "policy" for option in known_options(c.words)}
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    named = set(re.findall(r"`--([a-z_]+\.[a-z_0-9.]+?)[ `.]", text))
    unknown = sorted(name for name in named if f"--{name}" not in known)
    assert not unknown, f"{page.name}: {unknown}"


SMALLER = {"--limit": "1", "--max_steps": "1", "--port": "0"}
"""Values that stand in for the README's, so that its commands take minutes less."""
SIZES = {"STEPRAG_SEARCH__ROLLOUTS": "2", "STEPRAG_BATCH_SIZE": "2", "STEPRAG_HELD_OUT": "2"}
"""For the same, keys of its recipes."""


def made_smaller(line: str) -> list[str]:
    words = shlex.split(line)
    return [SMALLER.get(before, word) for before, word in zip(["", *words], words, strict=False)]


def serves_and_stops(command: list[str], folder: Path) -> None:
    """Starts a server, waits until it says where it listens, and ends it as Ctrl-C does."""
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        said = next((line for line in server.stdout if "http://127.0.0.1:" in line), None)
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)
    assert said, command


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_commands_of_the_readme_run_one_after_the_other(tmp_path: Path, atlas_index: Path) -> None:
    for name in ("steprag", "configs", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(atlas_index, tmp_path / "runs/index")  # the command finds what another test's made
    lines = shell_lines(ROOT / "README.md")
    assert len(lines) > 10
    demo = "demo --questions 6 --calls 12 --steps 2 --tests 18 --no_chat"  # what quickstart.sh runs, smaller
    for line in [demo, *lines]:
        command = [sys.executable, "-m", "apps.commands", *made_smaller(line)]
        if line.startswith(("view ", "index serve", "policy serve", "serve")):
            serves_and_stops(command, tmp_path)
        else:
            environment = {**os.environ, **SIZES}
            done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, f"steprag {line}\n{done.stderr[-2000:]}"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_twelve_questions_of_a_newcomer_end_in_yes(tmp_path: Path) -> None:
    script = ["bash", str(ROOT / "scripts/twelve_questions.sh"), str(tmp_path)]
    asked = subprocess.run(script, capture_output=True, text=True)
    assert asked.returncode == 0, asked.stdout + (tmp_path / "log.txt").read_text()[-2000:]
    assert asked.stdout.count("yes  ") == 12
