"""What page, SKILL.md and docs offer to try, at a server that has been used: the whole text of every step is read."""

from __future__ import annotations

import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from apps.chat.serve import EXAMPLES
from apps.commands import main
from steprag.agent.degenerate import degenerate
from tests.levels import LEVEL
from tests.test_chat_real import ask, follow, service

ROOT = Path(__file__).parent.parent
pytestmark = [pytest.mark.slow, pytest.mark.landing, pytest.mark.timeout(900)]
ANSWERS = {
    "In which year was promethium discovered?": ("1945", "History of promethium"),
    "How many provinces does the leading producer of platinum have?": ("9", "Government of South Africa"),
    "By which name is the country that has Vilnius as its capital known at home?": ("Lietuva", "Lithuania"),
}
"""Each example's answer, and the title of a passage that holds it."""
OTHERS = ("What do people pay with in the nation with Algiers as its capital?", "Who wrote Hamlet?")
WRITTEN = {
    "docs/howto/own-files.md": ("Where are converted weights kept?", ["--index", "runs/mine"],
                                "converted weights, logs of engines | ~/.cache/steprag, or $STEPRAG_CACHE."),
    "docs/agents.md": ("When is National Day kept in the land neighbour of Germany with the three-letter code CHE?",
                       ["--adapter", "atlas-stack", "--prompt.profile", "stack", "--episode.depth", "32",
                        "--index", "INDEX"], "1 August"),
}  # fmt: skip
"""By page: a question, its options and the answer; INDEX is the demo's, and runs/mine is docs/."""


def played(client: Any, question: str) -> tuple[list[str], dict[str, Any], list[str]]:
    """The steps as written, the answer, and the titles that it cites."""
    events = follow(client, ask(client, question))
    titles = {item["n"]: item["title"] for event in events if event["type"] == "passages" for item in event["items"]}
    answer = next((event for event in events if event["type"] == "answer"), {})
    answer = {"sources": (), **{key: answer[key] for key in ("content", "lacks", "sources") if key in answer}}
    steps = [event["text"] for event in events if event["type"] == "step.finished"]
    return steps, answer, [titles[one["n"]] for one in answer["sources"] if one["cited"]]


def pages(tmp_path: Path) -> Path:
    """The folder docs; below `--all`, those of its pages that the answer could stand in: a sixth of the passages."""
    if LEVEL in ("all", "long"):
        return ROOT / "docs"
    (tmp_path / "docs").mkdir()
    for page in (ROOT / "docs").rglob("*.md"):
        if "converted" in page.read_text():
            shutil.copy(page, tmp_path / "docs")
    return tmp_path / "docs"


def test_every_example_is_answered_rightly_and_alike_whatever_is_served_before_and_beside(
    atlas_index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {*EXAMPLES} == ANSWERS.keys()
    index = shutil.copytree(atlas_index, tmp_path / "index")
    with service(index, tmp_path / "chat", "--serve.seconds", "600") as (_, client):
        asked = [*OTHERS, *EXAMPLES]
        with ThreadPoolExecutor(3) as three:
            beside = dict(zip(asked, three.map(lambda question: played(client, question), asked), strict=True))
        alone = {question: played(client, question) for question in reversed(EXAMPLES)}
    assert alone.items() <= beside.items()
    for question, (said, title) in ANSWERS.items():
        steps, answer, cited = alone[question]
        assert (answer["content"], answer["lacks"]) == (said, None)
        assert title in cited
        assert not any(map(degenerate, steps))
        assert all(step.endswith(">") and step.count("<") == 2 for step in steps)  # nothing beside its one action
    assert beside["Who wrote Hamlet?"][1].get("lacks") is not None
    assert main(["index", "build", str(pages(tmp_path)), "--out", str(tmp_path / "mine")]) == 0
    capsys.readouterr()
    for page, (question, options, said) in WRITTEN.items():
        assert f'steprag ask "{question}" {" ".join(options)}' in re.sub(r" \\\s+", " ", (ROOT / page).read_text())
        where = {"INDEX": str(index), "runs/mine": str(tmp_path / "mine")}
        assert main(["ask", question, *(where.get(word, word) for word in options)]) == 0
        assert f"\n{said}\nsource 1: " in capsys.readouterr().out
