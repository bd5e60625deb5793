"""What the page offers to try, pressed at a server that has been used: the whole text of every step is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from apps.chat.serve import EXAMPLES
from apps.commands import main
from steprag import atlas
from steprag.agent.degenerate import degenerate
from tests.test_chat_real import ask, follow, service

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]
ANSWERS = {
    "In which year was promethium discovered?": ("1945", "History of promethium"),
    "How many provinces does the leading producer of platinum have?": ("9", "Government of South Africa"),
    "By which name is the country that has Vilnius as its capital known at home?": ("Lietuva", "Lithuania"),
}
"""Each example's answer, and the title of a passage that holds it."""
OTHERS = ("What do people pay with in the nation with Algiers as its capital?", "Who wrote Hamlet?")


def played(client: Any, question: str) -> tuple[list[str], dict[str, Any], list[str]]:
    """The steps as written, the answer, and the titles that it cites."""
    events = follow(client, ask(client, question))
    titles = {item["n"]: item["title"] for event in events if event["type"] == "passages" for item in event["items"]}
    answer = next((event for event in events if event["type"] == "answer"), {})
    answer = {"sources": (), **{key: answer[key] for key in ("content", "lacks", "sources") if key in answer}}
    steps = [event["text"] for event in events if event["type"] == "step.finished"]
    return steps, answer, [titles[one["n"]] for one in answer["sources"] if one["cited"]]


def test_every_example_is_answered_rightly_and_alike_whatever_was_served_before(tmp_path: Path) -> None:
    assert {*EXAMPLES} == ANSWERS.keys()
    index = tmp_path / "index"
    assert main(["index", "build", "--corpus", str(atlas.path("corpus")), "--out", str(index)]) == 0
    with service(index, tmp_path / "chat", "--serve.seconds", "600") as (_, client):
        first = {question: played(client, question) for question in (*OTHERS, *EXAMPLES)}
        again = {question: played(client, question) for question in (*reversed(EXAMPLES), *OTHERS)}
    assert again == first
    for question, (said, title) in ANSWERS.items():
        steps, answer, cited = first[question]
        assert (answer["content"], answer["lacks"]) == (said, None)
        assert title in cited
        assert not any(map(degenerate, steps))
        assert all(step.endswith(">") and step.count("<") == 2 for step in steps)  # nothing beside its one action
    assert first["Who wrote Hamlet?"][1].get("lacks") is not None
