"""`steprag judge` over HTTP, with a scripted judge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inference.scoring.answer_judge import parse
from steprag.cli import main
from steprag.records.jsonl import read_records, write_records
from steprag.runs.run import open_run
from steprag.types import Prediction, Step, Usage, Verdict
from tests.fakes import Endpoint, chat_reply, serve

ANSWERS = {"a": "lek", "b": "the currency of Albania, the lek", "c": "sol", "d": None, "e": "unclear"}


def judge(prompt: str, draw: int) -> str:
    """Right wherever the lek is named; a case of its own for what it cannot read."""
    del draw
    said = prompt.split("The system's answer: ")[1].split("\n")[0]
    return "perhaps" if said == "unclear" else "Yes." if "lek" in said else "no"


@pytest.fixture
def predictions(tmp_path: Path) -> Path:
    def one(name: str, said: str | None) -> Prediction:
        steps = (Step("answer", "", said),) if said else ()
        return Prediction(
            name, "Which currency?", ("lek",), said, steps, (), Usage(), "answer" if said else "no_action"
        )

    with open_run(tmp_path / "run", "infer", identity={"harness": 7}, config={}):
        write_records(tmp_path / "run/predictions.jsonl", [one(name, said) for name, said in ANSWERS.items()])
    return tmp_path / "run"


def run(endpoint: Endpoint, predictions: Path, *more: str) -> int:
    judge = ["--judge.base_url", endpoint.url, "--judge.model", "double", "--judge.engine", "openai"]
    return main(["judge", "--predictions", str(predictions), *judge, "--judge.retries", "0", *more])


def test_answers_are_judged_and_set_beside_em(predictions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serve(chat_reply(judge)) as endpoint:
        assert run(endpoint, predictions) == 0
        asked = len(endpoint.requests)
        assert run(endpoint, predictions) == 0  # all there: nobody is asked again
    assert (
        asked == len(endpoint.requests) == 4
    )  # no answer, no request; a greedy judge would only repeat what is no verdict
    assert endpoint.requests[0]["response_format"]["json_schema"]["schema"]["required"] == ["right"]
    verdicts = {one.id: one.right for one in read_records(predictions / "judged/verdicts.jsonl", Verdict)}
    assert verdicts == {"a": True, "b": True, "c": False, "d": False, "e": None}
    scores = json.loads((predictions / "judged/metrics.json").read_text())
    assert scores["predictions_of"] == {"harness": 7}
    assert (scores["right"], scores["em"], scores["agreement"], scores["unread"]) == (0.5, 0.25, 0.75, 1)
    assert scores["usage"]["calls"] == 4
    assert len(scores["identity"]["prompt"]["hash"]) == 16
    assert "right      50.0" in capsys.readouterr().out


def test_a_folder_that_names_its_prompt_by_the_hash_alone_goes_on(predictions: Path) -> None:
    with serve(chat_reply(judge)) as endpoint:
        assert run(endpoint, predictions) == 0
        asked, file = len(endpoint.requests), predictions / "judged/manifest.json"
        manifest = json.loads(file.read_text())
        manifest["identity"]["prompt"] = manifest["identity"]["prompt"]["hash"]  # as up to version 0.1
        file.write_text(json.dumps(manifest))
        assert run(endpoint, predictions) == 0
    assert asked == len(endpoint.requests)


def test_failed_requests_are_not_wrong_answers(predictions: Path) -> None:
    def reply(request: dict[str, Any]) -> tuple[int, object]:
        broken = "sol" in request["messages"][-1]["content"]
        return (400, {"error": {"message": "no"}}) if broken else chat_reply(judge)(request)

    with serve(reply) as endpoint:
        assert run(endpoint, predictions, "--out", str(predictions.parent / "out")) == 3
    scores = json.loads((predictions.parent / "out/metrics.json").read_text())
    assert (scores["right"], scores["failed"], scores["questions"]) == (pytest.approx(2 / 3), 1, 5)


@pytest.mark.parametrize(("reply", "score"), [
    ("yes", 1.0), (" No. ", 0.0), ('{"right": true}', 1.0), ('{"right": false}', 0.0), ('{"right": 1}', None),
    ('{"right', None), ("yes, but", None), ("", None), ("notable", None),
])  # fmt: skip
def test_replies(reply: str, score: float | None) -> None:
    assert parse(reply) == score
