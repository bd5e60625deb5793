"""MedQA: its own files, questions in its form, and both agents on them with every question in the denominator."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.atlas.multiple_choice import choice_rows
from inference.datasets import question_file
from steprag import atlas
from steprag.cli import main
from steprag.errors import DataError
from steprag.records.inputs import read_questions
from steprag.records.jsonl import write_records
from steprag.scores.metrics import normalise
from tests.fakes import WORLD, chat_reply, options, serve
from tests.indexing import words_index

DRUGS = {"A": "Citalopram", "B": "Lithium", "C": "Propranolol"}
CHOOSE = "Which drug is a salt?\n- Citalopram\n- Lithium\n- Propranolol"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return words_index(tmp_path_factory.mktemp("words"), WORLD)


def test_rows_of_medqas_own_files_are_questions_with_choices(tmp_path: Path) -> None:
    row = {"question": "Which drug is a salt?", "answer": "Lithium", "options": DRUGS, "meta_info": "step1",
           "answer_idx": "B"}  # fmt: skip
    folder = tmp_path / "medqa"
    folder.mkdir()
    (folder / "test.jsonl").write_text(json.dumps(row) + "\n" + json.dumps({**row, "id": "mine"}) + "\n")
    first, second = read_questions(question_file("medqa", None, str(tmp_path)))
    assert (first.id, first.question, first.golden_answers) == ("medqa/1", CHOOSE, ("Lithium",))
    assert first.metadata == {"choices": DRUGS, "meta_info": "step1", "answer_idx": "B"}
    assert second.id == "mine"
    write_records(tmp_path / "again.jsonl", [first])
    assert read_questions(tmp_path / "again.jsonl") == [first]
    (folder / "test.jsonl").write_text(json.dumps({**row, "answer": 3}) + "\n")
    with pytest.raises(DataError, match=r"test\.jsonl:1"):
        read_questions(folder / "test.jsonl")


def test_questions_of_atlas_in_medqas_form_are_made_of_its_own_and_have_one_right_choice() -> None:
    rows = [json.loads(line) for line in atlas.task("choices.test").read_text().splitlines()]
    assert rows == choice_rows(atlas.DATA, "test")
    for row in rows:
        assert row["options"][row["answer_idx"]] == row["answer"]
        assert len({normalise(text) for text in row["options"].values()}) == 4
    asked = {question.question: question for question in read_questions(atlas.path("test"))}
    for row in rows:
        golden = asked[row["question"]].golden_answers
        assert sum(text in golden for text in row["options"].values()) == 1
    letters = Counter(row["answer_idx"] for row in rows)
    assert min(letters.values()) > len(rows) / 6, "no letter is a good guess"


@pytest.mark.parametrize("profile", ["transcript", "stack"])
def test_both_agents_answer_in_medqas_form_with_every_question_in_the_denominator(
    profile: str, index: Path, tmp_path: Path
) -> None:
    """One of four is right, one wrong, one breaks the grammar and of one the endpoint fails."""
    head = "So the answer is " if profile == "transcript" else ""

    def script(prompt: str, draw: int) -> str:
        if "broken" in prompt:
            return "I cannot tell."
        return f"{head}<answer> {'lithium' if 'right' in prompt else 'citalopram'} </answer>"

    def reply(request: dict[str, Any]) -> tuple[int, object]:
        said = request["messages"][-1]["content"]
        if "Right answers" in said:
            return chat_reply(lambda prompt, draw: "yes" if "answer: lithium" in prompt.lower() else "no")(request)
        return (400, {"error": {"message": "too long"}}) if "refused" in said else chat_reply(script)(request)

    rows = [{"question": f"Which is a salt? ({name})", "answer": "Lithium", "options": DRUGS, "answer_idx": "B"}
            for name in ("right", "wrong", "broken", "refused")]  # fmt: skip
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = tmp_path / "run"
    with serve(reply) as endpoint:
        argv = options(endpoint, tmp_path / "q.jsonl", index, run, "--dataset_name", "medqa")
        assert main(["infer", *argv, "--prompt.profile", profile, "--policy.retries", "0"]) == 3
        judge = ["--judge.base_url", endpoint.url, "--judge.model", "double", "--judge.engine", "openai"]
        assert main(["judge", "--predictions", str(run), *judge]) == 0
    scores, judged = (json.loads((run / name).read_text()) for name in ("metrics.json", "judged/metrics.json"))
    assert (scores["questions"], scores["answered"], scores["failed"], scores["strict_em"]) == (4, 2, 1, 0.25)
    assert (judged["questions"], judged["strict_right"], judged["unanswered"]) == (4, 0.25, 1)
