"""Questions by name, from a hub or a folder; those that are drawn from a file; those with choices, as MedQA's are."""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from apps.commands import main
from steprag import atlas
from steprag.agent.profiles import load_profile
from steprag.batch.datasets import ON_HUB, chosen_file, question_file, questions_at, sampled
from steprag.errors import ConfigError, DataError
from steprag.records.inputs import read_questions
from steprag.records.jsonl import dump_line, from_dict, read_lines, read_records, write_records
from steprag.records.left_out import LeftOut
from steprag.records.rows import read_any_rows
from steprag.records.training_rows import Pair
from steprag.runs.run import read_manifest
from steprag.scores.gold import facts_of, gold_of, parts_of
from steprag.scores.metrics import normalise
from steprag.tree import Tree
from steprag.types import Prediction, Question, State
from tests.fakes import (
    BY_ROLLOUTS,
    QUESTION,
    Endpoint,
    answer,
    chat_reply,
    evidence,
    in_turn,
    listening,
    options,
    query,
    serve,
)

DRUGS = {"A": "Citalopram", "B": "Lithium", "C": "Propranolol"}
CHOOSE = "Which drug is a salt?\n- Citalopram\n- Lithium\n- Propranolol"


@pytest.fixture
def lek() -> Iterator[Endpoint]:
    with serve(chat_reply(lambda prompt, draw: answer("lek"))) as running:
        yield running


@contextmanager
def hub(files: dict[str, bytes]) -> Iterator[str]:
    """FlashRAG's repository as the hub serves it, at the address that is given; it holds `files` and nothing else."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            place, _, name = self.path.partition("/resolve/main/")
            body = files.get(name) if place == "/datasets/RUC-NLPIR/FlashRAG_datasets" else None
            self.send_response(404 if body is None else 200)
            self.send_header("X-Repo-Commit", "c" * 40)
            self.send_header(*(("X-Error-Code", "EntryNotFound") if body is None else ("ETag", f'"{"e" * 40}"')))
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            if body and self.command == "GET":
                self.wfile.write(body)

    with listening(Handler) as address:
        yield address


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


def at(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What HF_ENDPOINT says before the hub's client is loaded."""
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)


def named(endpoint: Endpoint, name: str, index: Path, out: Path) -> list[str]:
    return ["--dataset_name", name, *options(endpoint, Path(), index, out)[2:]]


@pytest.mark.usefixtures("cache")
def test_a_named_set_comes_from_the_hub_and_is_kept(
    lek: Endpoint, word_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"id": "dev_0", "question": QUESTION, "golden_answers": ["lek"], "metadata": {}}
    with hub({"hotpotqa/dev.jsonl": json.dumps(row).encode(), "hotpotqa/train.jsonl": b"{}"}) as address:
        at(address, monkeypatch)
        assert main(["infer", *named(lek, "hotpotqa", word_index, tmp_path / "first")]) == 0
        assert main(["infer", *named(lek, "nq", word_index, tmp_path / "gone")]) == 2
    assert [one.id for one in read_records(tmp_path / "first/predictions.jsonl", Prediction)] == ["hotpotqa/dev_0"]
    assert "nq/test.jsonl of RUC-NLPIR/FlashRAG_datasets: not on this machine" in capsys.readouterr().err
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert main(["infer", *named(lek, "hotpotqa", word_index, tmp_path / "again")]) == 0
    assert main(["infer", *named(lek, "musique", word_index, tmp_path / "other")]) == 2
    assert "give --data_dir with musique/SPLIT.jsonl in it, or --questions FILE" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("error", [RuntimeError("CAS Client Error"), TimeoutError(), PermissionError("read-only")])
def test_a_fetch_that_fails_names_the_file_and_the_remedy(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the hub's client cannot be brought to do over HTTP within a second."""

    def fails(*given: object, **more: object) -> str:
        raise error

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fails)
    with pytest.raises(ConfigError, match=r"popqa/test\.jsonl of .*not fetched: .*--data_dir"):
        question_file("popqa", None, None)


def test_the_default_split_of_a_set_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda repository, file, repo_type: file)
    files = {name: str(question_file(name, None, None)) for name in ON_HUB}
    assert {name for name, file in files.items() if file == f"{name}/dev.jsonl"} == {
        "hotpotqa", "2wikimultihopqa", "musique"
    }  # fmt: skip
    assert {name for name, file in files.items() if file == f"{name}/test.jsonl"} == {
        "popqa", "bamboogle", "nq", "triviaqa"
    }  # fmt: skip
    assert str(question_file("nq", "train", None)) == "nq/train.jsonl"
    given = {"questions": None, "columns": None, "split": None, "data_dir": None}
    learnt = {name: str(chosen_file(argparse.Namespace(dataset_name=name, **given), learning=True)) for name in ON_HUB}
    assert {name for name, file in learnt.items() if file != f"{name}/train.jsonl"} == {"popqa", "bamboogle"}


def test_a_named_set_from_a_folder(tmp_path: Path) -> None:
    for name in ("musique/dev", "musique/train", "medqa/dev", "medqa/test"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.jsonl").touch()
    found = [question_file(name, split, str(tmp_path)) for name, split in (("musique", None), ("medqa", None),
                                                                           ("musique", "train"))]  # fmt: skip
    assert [str(file.relative_to(tmp_path)) for file in found] == [
        "musique/dev.jsonl", "medqa/test.jsonl", "musique/train.jsonl"
    ]  # fmt: skip
    assert question_file("atlas", "dev", None) == atlas.path("dev")


@pytest.mark.parametrize(("given", "message"), [
    (("--dataset_name", "trivia"), "unknown data set 'trivia'; known: atlas, hotpotqa"),
    (("--dataset_name", "atlas", "--split", "best"), "atlas has no split 'best'"),
    (("--dataset_name", "atlas", "--data_dir", "."), "atlas is embedded: leave --data_dir out"),
    (("--dataset_name", "hotpotqa", "--split", "test"), "hotpotqa has no split 'test' in FlashRAG's collection on the "
                                                       "hub; known: dev, train (or give --data_dir"),
    (("--dataset_name", "medqa"), "collection on the hub has no medqa: give --data_dir with medqa/SPLIT.jsonl in it"),
    (("--dataset_name", "nq", "--data_dir", "/nowhere"), "no test or dev.jsonl in /nowhere/nq; FlashRAG's layout is"),
    (("--questions", "q.jsonl", "--split", "dev"), "--split is for a data set without --questions"),
    (("--questions", "q.jsonl", "--data_dir", "."), "--data_dir is for a data set without --questions"),
    (("--questions", "q.jsonl"), "question file not found: q.jsonl"),
])  # fmt: skip
def test_options_that_name_no_file_are_refused(
    given: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["infer", *given, "--index", "nowhere", "--out", "run"]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_sample_is_drawn_by_the_seed_and_stays_in_order() -> None:
    questions = [Question(f"q{i}", "Which?", ("a",)) for i in range(100)]
    few = sampled(questions, 10, 0)
    assert few == sampled(questions, 10, 0) != sampled(questions, 10, 1)
    assert few != questions[:10]
    assert few == sorted(few, key=questions.index)
    assert len({one.id for one in few}) == 10
    assert sampled(questions, None, 0) == sampled(questions, 100, 0) == sampled(questions, 1000, 0) == questions


def test_a_sample_is_what_the_run_answers_and_is(
    lek: Endpoint, word_index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = [Question(f"q{i}", f"{QUESTION} ({i})", ("lek",)) for i in range(30)]
    write_records(tmp_path / "q.jsonl", questions)
    run = ["infer", *options(lek, tmp_path / "q.jsonl", word_index, tmp_path / "run", "--sample", "5", "--seed", "3")]
    assert main(run) == 0
    answered = [one.id for one in read_records(tmp_path / "run/predictions.jsonl", Prediction)]
    assert answered == [one.id for one in sampled(questions, 5, 3)]
    assert read_manifest(tmp_path / "run")["identity"]["sample"] == 5
    assert main([*run, "--sample", "6"]) == 2
    assert "sample = 5, and is now asked for 6" in capsys.readouterr().err
    few = ("--sample", "5", "--seed", "3", "--limit", "2")
    assert main(["infer", *options(lek, tmp_path / "q.jsonl", word_index, tmp_path / "few", *few)]) == 0
    assert [one.id for one in read_records(tmp_path / "few/predictions.jsonl", Prediction)] == answered[:2]


def chosen(tmp_path: Path, choices: object, *golden: str, question: str = "Which drug is a salt?") -> Question:
    row = {"id": "m", "question": question, "golden_answers": golden, "metadata": {"choices": choices}}
    (tmp_path / "q.jsonl").write_text(json.dumps(row))
    return read_questions(tmp_path / "q.jsonl")[0]


@pytest.mark.parametrize("choices", [DRUGS, list(DRUGS.values())])
def test_choices_are_asked_with_their_question(choices: object, tmp_path: Path) -> None:
    question = chosen(tmp_path, choices, "Lithium", question="Which drug is a salt?\n")
    assert (question.id, question.question) == ("m", CHOOSE)
    assert question.golden_answers == ("Lithium",)
    assert question.metadata == {"choices": choices}
    write_records(tmp_path / "again.jsonl", [question])
    assert read_questions(tmp_path / "again.jsonl") == [question]


@pytest.mark.parametrize(("choices", "golden", "words", "shown"), [
    (DRUGS, ("A", "C"), ("Citalopram", "Propranolol"), CHOOSE),
    (list(DRUGS.values()), ("A", "C"), ("Citalopram", "Propranolol"), CHOOSE),
    (["A", "B"], ("B",), ("B",), "Which drug is a salt?\n- A\n- B"),
    ({"A": "one\n line", "B": "two"}, ("Two.",), ("two",), "Which drug is a salt?\n- one line\n- two"),
    *((none, ("x",), ("x",), "Which drug is a salt?") for none in (None, {}, [])),
])  # fmt: skip
def test_golden_letters_are_the_words_of_their_choice(
    choices: object, golden: tuple[str, ...], words: tuple[str, ...], shown: str, tmp_path: Path
) -> None:
    question = chosen(tmp_path, choices, *golden)
    assert (question.question, question.golden_answers, question.metadata["choices"]) == (shown, words, choices)


@pytest.mark.parametrize("choices", ["A) one", {"A": None}, {"text": ["one"], "label": ["A", "B"]}, [["one"]], 7])
def test_choices_of_another_shape_are_an_error_with_their_line(choices: object, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"q\.jsonl:1: question 'm': metadata\.choices cannot be read \(give a list"):
        chosen(tmp_path, choices, "one")


CHOICES = ["granite", "basalt"]


@pytest.mark.parametrize(("row", "golden"), [
    ({"golden_answers": "a"}, ("a",)),
    ({"golden_answers": [1, 2.0, 2.5, None, " "]}, ("1", "2", "2.5")),
    ({"golden_answers": [True, "no"]}, ("yes", "true", "no")),
    ({"answer": False}, ("no", "false")),  # StrategyQA
    ({"answer": ["a", "b"]}, ("a", "b")),  # NQ-open
    ({"answer": "a", "answer_aliases": ["b"]}, ("a", "b")),  # MuSiQue
    ({"answers": {"text": ["a", "b"], "answer_start": [0, 7]}}, ("a", "b")),  # SQuAD
    ({"answer": {"value": "a", "aliases": ["b"], "type": "Freebase"}}, ("a", "b")),  # TriviaQA
    ({"output": [{"answer": "a", "provenance": []}, {"meta": {}}]}, ("a",)),  # KILT
    ({"possible_answers": ["a"]}, ("a",)), ({"possible_answers": '["a", "b"]'}, ("a", "b")),  # PopQA
    ({"reference_answer": "a"}, ("a",)),
    ({"golden_answers": [], "answer": "a"}, ()),
    ({"golden_answers": [1], "choices": CHOICES}, ("basalt",)),  # FlashRAG, MMLU
    ({"golden_answers": [0, "B"], "metadata": {"choices": CHOICES}}, ("granite", "basalt")),
    ({"answer": 1, "choices": [10, 20]}, ("20",)), ({"answer": 20, "choices": [10, 20]}, ("20",)),
    ({"answer": "(b)", "options": CHOICES}, ("basalt",)),  # MMLU-Pro
    ({"answerKey": "2", "choices": {"text": CHOICES, "label": ["1", "2"]}}, ("basalt",)),  # ARC
    ({"answerKey": "B", "choices": [{"label": "A", "text": "granite"}, {"label": "B", "text": "basalt"}]}, ("basalt",)),
    ({"answer": 1, "choices": {"text": CHOICES, "label": ["1", "2"]}}, ("granite",)),  # a label, no place
    ({"answer": "1", "choices": CHOICES}, ("basalt",)), ({"answer": "1", "choices": ["1", "0"]}, ("1",)),  # MMLU
    ({"answer": "1945", "choices": ["1914", "1945"]}, ("1945",)),
    ({"answer": "B: basalt", "options": CHOICES}, ("basalt",)),
    ({"correct": "B", "options": ["A)granite", "B)basalt"]}, ("basalt",)),  # AQuA
    ({"opa": "granite", "opb": "basalt", "cop": 1}, ("basalt",)),  # MedMCQA
    ({"option1": "granite", "option2": "basalt", "answer": "2"}, ("basalt",)),
    ({"A": "granite", "B": "basalt", "answer": "B"}, ("basalt",)),  # MMLU as a table
    ({"answer": "B", "options": [{"key": "A", "value": "granite"}, {"key": "B", "value": "basalt"}]}, ("basalt",)),
    ({"answer": 1, "choices": "['granite' 'basalt']"}, ("basalt",)),  # as NumPy writes a list
    ({"answer": "['a', \"b's\", 1]"}, ("a", "b's", "1")), ({"answer": "['a' 'b']"}, ("a", "b")),
    ({"answer": "[1, 2]"}, ("[1, 2]",)), ({"answer": "['a'] + x"}, ("['a'] + x",)),
    ({"ANSWER": "a"}, ("a",)), ({"Final answer": "a"}, ("a",)), ({"groundTruth": "a"}, ("a",)),
    ({"response": "a"}, ("a",)), ({"response": "said", "reference": "a"}, ("a",)),
    ({"answer": "said", "ground_truth": "a"}, ("a",)),  # RAGAS
    ({"Answer": {"Value": "a", "Aliases": ["b"]}}, ("a", "b")), ({"final_decision": "maybe"}, ("maybe",)),  # PubMedQA
    ({"answers_spans": {"spans": ["a", "b"]}}, ("a", "b")), ({"answer": "a", "alt_ans": ["b"]}, ("a", "b")),  # CRAG
    ({"answer_0": "a", "answer_1": "b"}, ("a", "b")),  # FreshQA
    ({"answer": "a", "aug_answer": ["b", "a"]}, ("a", "b")),  # ASearcher
    ({"obj": "c", "possible_answers": '["a", "b"]', "o_aliases": "[]"}, ("a", "b")),  # PopQA's own
    ({"answers": "{'text': ['a'], 'answer_start': [3]}"}, ("a",)),  # SQuAD as a table
])  # fmt: skip
def test_golden_answers_in_every_spelling(row: dict[str, Any], golden: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text(json.dumps({"id": "q", "question": "Which?", **row}))
    if not golden:
        with pytest.raises(DataError, match=r"question 'q' has no golden answer .*keys found: 'id', 'question'"):
            read_questions(tmp_path / "q.jsonl")
        return
    (question,) = read_questions(tmp_path / "q.jsonl")
    assert question.golden_answers == golden
    assert ("\n- " in question.question) == ("choices" in question.metadata)
    write_records(tmp_path / "again.jsonl", [question])
    assert read_questions(tmp_path / "again.jsonl") == [question]


ROCKS = ["chalk", "flint", "granite", "basalt"]
LETTERS, COLUMNS_OF = dict(zip("ABCD", ROCKS, strict=True)), dict(zip(("opa", "opb", "opc", "opd"), ROCKS, strict=True))


@pytest.mark.parametrize(("rows", "golden", "said"), [
    ([{"answers": ROCKS, "label": place} for place in (0, 3)], ["chalk", "basalt"], ""),  # ReClor
    ([{**COLUMNS_OF, "cop": place} for place in (1, 4)], ["chalk", "basalt"], "cop counts choices from 1"),  # MedMCQA
    ([{**COLUMNS_OF, "cop": place} for place in (1, 2, 3)], ROCKS[:3], "cop counts choices from 1"),
    ([{**COLUMNS_OF, "cop": place} for place in (0, 3)], ["chalk", "basalt"], ""),  # the hub's
    ([{"options": ROCKS, "gold_label": 2}], ["flint"], ""),  # QuALITY
    ([{"choices": ROCKS, "answer": 1}], ["flint"], "no row tells whether answer counts choices from 0 or from 1"),
    ([{"option": LETTERS, "Answer": "B"}, {"option": LETTERS, "Answer": "CD"}], ["flint", None],
     "several right choices, which one answer cannot name: 'CD'"),  # CMB
    ([{"option_list": LETTERS, "answer": ["A"]}, {"option_list": LETTERS, "answer": ["A", "B"]}], ["chalk", None],
     "several right choices"),  # JEC-QA
    ([{**COLUMNS_OF, "answer": "opb"}], ["flint"], ""),  # CNMLEQA
    ([{**LETTERS, "E": "", "answer": "C"}], ["granite"], ""),  # C-Eval
    ([{"answers": ["a"]}, {"answers": ["No Answer Present."]}], ["a", None], "without an answer: 'No Answer Present.'"),
    ([{"answers": ["a", "CANNOTANSWER"]}, {"answer": "N/A"}], ["a", None], "without an answer: 'N/A'"),  # QuAC
    ([{"answer": "a", "answerable": True}, {"answer": "a", "answerable": False}], ["a", None], "answerable: False"),
    ([{"answers": {"text": ["a"]}}, {"answers": {"text": [], "answer_start": []}}], ["a", None], "without an answer"),
    ([{"answers": ["a"], "is_impossible": False}, {"answers": [], "is_impossible": True}], ["a", None], "impossible"),
    ([{"id": "1", "golden_answers": ["a"], "metadata": {"answerable": True}},
      {"id": "2", "golden_answers": ["a"], "metadata": {"answerable": False}}], ["a", None], "answerable: False"),
    ([{"goal": "Q?", "sol1": "chalk", "sol2": "flint", "label": place} for place in (-1, 0, 1)],
     [None, "chalk", "flint"], "without an answer: label: -1"),  # PIQA
    ([{"sentence": "Q_", "option1": "chalk", "option2": "flint", "answer": "1"}], ["chalk"], ""),  # WinoGrande
    ([{"answerA": "chalk", "answerB": "flint", "answerC": "lek", "label": "1\n"}], ["chalk"], ""),  # SocialIQA
    ([{**{f"answer{i}": rock for i, rock in enumerate(ROCKS)}, "label": place} for place in (0, 2)],
     ["chalk", "granite"], ""),  # CosmosQA
    ([{"correct_answer": "a", "distractor1": "b", "distractor2": "c", "distractor3": "d"}], ["a"], ""),  # SciQ
    ([{"Correct Answer": "b\n", "Incorrect Answer 1": "a", "Incorrect Answer 2": "c"}], ["b"], ""),  # GPQA
    ([{"mc1_targets": {"choices": ["b", "a", "c"], "labels": [1, 0, 0]}}], ["b"], ""),  # TruthfulQA
    ([{"answers": [{"text": "a", "label": 0}, {"text": "b", "label": 1}]}], ["b"], ""),  # MultiRC
    ([{"answer": "flint", "options": LETTERS, "answer_idx": "B"}], ["flint"], ""),  # MedQA
    ([{"answer": "B", "options": ROCKS, "article": "Of rocks."}], ["flint"], "columns not read: article"),  # RACE
    ([{"options": "A. chalk\nB. flint", "answer": "B"}], ["flint"], ""),
    ([{"question": "Which?\n(A) chalk\n(B) flint", "answer": "(B)"}], ["flint"], ""),
    ([{"answers": [{"answer": rock, "correct": str(rock == "flint")} for rock in ROCKS]}], ["flint"], ""),  # MCScript
    ([{"answer": "3 + 4 = 7\n#### 7"}], ["7"], ""),  # GSM8K
    ([{"answer": "z", "is_correct": False}], ["z"], "columns not read: is_correct"),
    ([{"answer": "z", "label": 1, "option": "x", "weight": 2}], ["z"], "columns not read: label, option, weight (3,"),
    ([{"choices": ROCKS, "answer": "Flint."}, {"choices": ROCKS, "answer": "lek"}], ["flint", None],
     "whose golden answer is none of their choices: 'lek'"),
    ([{"answer": {"number": "4", "spans": []}}, {"answer": {"number": "", "date": {"day": "3", "month": "May", "year":
       "1990"}}}], ["4", "3 May 1990"], ""),  # DROP
    ([{"answer": "1994.0"}, {"answer": "x"}], ["1994", "x"], "1 of 2 golden answers end in .0, such as '1994.0'"),
    ([{"answer": "3.0"}, {"answer": "12"}], ["3.0", "12"], ""), ([{"answer": 1994.0}], ["1994"], ""),
    ([{"answer": "True"}, {"answer": "False"}], ["yes", "no"], ""),
    ([{"answer": True, "facts": ["Albany has …"], "parts": 3, "supporting_facts": ["x"]}], ["yes"], ""),  # StrategyQA
])  # fmt: skip
def test_right_answers_of_published_sets(
    rows: list[dict[str, Any]], golden: list[str | None], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{**({} if {*row} & {"goal", "sentence"} else {"question": f"Q{i}?"}), **row} for i, row in enumerate(rows)]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    gone: list[LeftOut] = []
    questions = read_questions(tmp_path / "q.jsonl", gone=gone)
    assert [asked.golden_answers[0] for asked in questions] == [text for text in golden if text is not None]
    told = [line for line in capsys.readouterr().err.splitlines() if "without words" not in line]
    assert (said in told[0] and len(told) == 1) if said else not told
    assert sum(one.count for one in gone if one.kind.startswith("questions")) == golden.count(None)
    for asked in questions:
        facts_of(asked), parts_of(asked), gold_of(asked)
        assert ("\n- " in asked.question) == ("choices" in asked.metadata)
        assert not asked.question.startswith(f"Q?\n- {asked.golden_answers[0]}\n- a"), "the first is not the right one"
    write_records(tmp_path / "again.jsonl", questions)
    assert read_questions(tmp_path / "again.jsonl") == questions


@pytest.mark.parametrize("content", [
    '{"_id": 7, "query": "Q?", "answer": "a", "type": "bridge"}',
    '[{"id": 7,\n"input": "Q?", "answer": "a",\n"type": "bridge"}]',
    '{"7": {"problem": "Q?", "answer": "a", "type": "bridge"}}', "qid\tquestion\tanswer\ttype\n7\tQ?\ta\tbridge\n",
    "type,Question,Final answer,task_id\nbridge,Q?,a,7\n",
    '"qid","metadata","problem","answer"\n7,"{\'type\': ""bridge""}",Q?,a\n',
    "qid;question;answer;type\n7;Q?;a;bridge\n", '{"_id": 7,\n"query": "Q?", "answer": "a",\n"type": "bridge"}',
    "\tqid\tPrompt\tAnswer\ttype\n0\t7\tQ?\ta\tbridge\n",
    '{"qid": {"0": 7}, "question": {"0": "Q?"}, "answer": {"0": "a"}, "type": {"0": "bridge"}}',  # pandas
    '{"qid": [7], "question": ["Q?"], "answer": ["a"], "type": ["bridge"]}',
    '{"Data": [{"QuestionId": 7, "Question": "Q?", "Answer": {"Value": "a"}, "type": "bridge"}], "Domain": "Web"}',
    '{"7": {"QUESTION": "Q?", "final_decision": "a", "type": "bridge"}}',
    '{"version": 1, "data": [{"title": "T", "paragraphs": [{"context": "c", "qas": [{"id": 7, "question": "Q?",'
    ' "answers": [{"text": "a"}], "type": "bridge"}]}]}]}',
    '{"qid": 7, "question": {"stem": "Q?"}, "answer": "a", "metadata": "{\\"type\\": \\"bridge\\"}"}',
])  # fmt: skip
def test_a_foreign_file_gives_ids_texts_and_metadata(content: str, tmp_path: Path) -> None:
    (tmp_path / "q.json").write_text(content)
    assert read_questions(tmp_path / "q.json", "set") == [Question("set/7", "Q?", ("a",), {"type": "bridge"}, "set")]


@pytest.mark.parametrize(("content", "question"), [
    ("Q?\t['a', \"b's\"]\n", Question("1", "Q?", ("a", "b's"))),  # DPR's qas files
    ('Q?\t"[\'a\', ""b\'s""]"\n', Question("1", "Q?", ("a", "b's"))),
    ('id\tprompt\tresponse\n7\t"Which\nof ""two""?"\ta\n8\t"\ta\n', Question("7", 'Which\nof "two"?', ("a",))),
    ("sep=;\nid;question;answer\n7;Q?;a;\n;;\n", Question("7", "Q?", ("a",))),  # Excel
    ('problem,answer\n"Which,\nof ""two""?",a\n', Question("2", 'Which,\nof "two"?', ("a",))),
    ('{"query": "Q?", "answers": ["a"], "positive_passages": [{"docid": 1, "text": "x"}]}',
     Question("1", "Q?", ("a",), {"positive_passages": [{"docid": 1, "text": "x"}]})),
    ('{"nfl": {"passage": "x", "qa_pairs": [{"question": "Q?", "answer": {"spans": ["a"]}}]}}',
     Question("1", "Q?", ("a",))),  # DROP
    ('{"Prompt": "Q?", "Answer": "a", "evidence": [{"id": 1, "text": "x"}]}',
     Question("1", "Q?", ("a",), {"evidence": [{"id": 1, "text": "x"}]})),
    ('{"id": "7", "question": "Q?", "golden_answers": ["a"], "metadata": "a note"}',
     Question("7", "Q?", ("a",), {"metadata": "a note"})),
    ('question,golden_answers,kind\nQ?,a,x\n', Question("2", "Q?", ("a",), {"kind": "x"})),
    ('{"question": "Q?", "answer": "a", "metadata": "{\'when\': {1, 2}}"}',
     Question("1", "Q?", ("a",), {"metadata": "{\'when\': {1, 2}}"})),
])  # fmt: skip
def test_tables_of_questions_and_rows_that_hold_rows(content: str, question: Question, tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text(content)
    assert read_questions(tmp_path / "q.csv")[0] == question


def test_quotation_marks_that_stay_open_cost_no_more_than_their_line(tmp_path: Path) -> None:
    """Each used to wrap the lines behind it once more: eight seconds for 32,000 lines, minutes for 200,000."""
    (tmp_path / "q.tsv").write_text("id\ttext\tkind\n" + '1\t"a\n' * 200_000 + '2\t"b\nc"\tx\n')
    *rows, (_, last) = read_any_rows(tmp_path / "q.tsv", [])
    assert (len(rows), rows[0], last) == (200_000, (2, ["1", '"a']), {"id": "2", "text": "b\nc", "kind": "x"})


def test_questions_in_parquet_are_read(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    row = {"question": "Q?", "answer": True, "on": datetime.date(2020, 1, 2), "x": float("nan"), "tags": ["a"]}
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "q.parquet")
    metadata = {"on": "2020-01-02", "x": None, "tags": ["a"]}
    assert read_questions(tmp_path / "q.parquet") == [Question("1", "Q?", ("yes", "true"), metadata)]
    (tmp_path / "q.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"q\.parquet:1: cannot be read as Parquet"):
        read_questions(tmp_path / "q.parquet")


ROWS = [{"no": "a", "q": "Q?", "gold": "x", "guess": "me", "kind": "bridge"},
        {"no": "b", "q": "R?", "gold": "['y', 'z']", "guess": "he", "kind": "x"}]  # fmt: skip
MEANT = [Question("a", "Q?", ("x",), {"guess": "me", "type": "bridge"}),
         Question("b", "R?", ("y", "z"), {"guess": "he", "type": "x"})]  # fmt: skip
COLUMNS = "id=no, question=q,answer=gold,type=kind"


def table_of(path: Path) -> Path:
    """`ROWS` in the form that the file's ending names."""
    between = {".csv": ",", ".tsv": "\t"}.get(path.suffix)
    if path.suffix == ".xlsx":
        book = pytest.importorskip("openpyxl").Workbook()
        for cells in ([], list(ROWS[0]), [], *(list(row.values()) for row in ROWS)):
            book.active.append(cells)
        book.save(path)
    elif path.suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pytest.importorskip("pyarrow").Table.from_pylist(ROWS), path)
    elif between:
        with path.open("w") as stream:
            csv.writer(stream, delimiter=between).writerows([ROWS[0], *(row.values() for row in ROWS)])
    else:
        lines = [json.dumps(row) for row in ROWS]
        path.write_text("\n".join(lines) if path.suffix == ".jsonl" else f"[{','.join(lines)}]")
    return path


@pytest.mark.parametrize("form", ["csv", "tsv", "xlsx", "parquet", "json", "jsonl", "hub:me/set:plain:dev"])
def test_columns_are_named_in_every_form_of_table(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STEPRAG_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda self, name, **_: argparse.Namespace(sha="c" * 40))
    monkeypatch.setattr("datasets.load_dataset", lambda name, config, split, **_: ROWS if split == "dev" else [])
    named = form if ":" in form else str(table_of(tmp_path / f"q.{form}"))
    file = questions_at(named, COLUMNS)
    assert read_questions(file) == MEANT
    assert (file, file.parent.name) == (questions_at(named, COLUMNS), "plain" if ":" in form else tmp_path.name)
    plan = ["plan", "--questions", named, "--columns"]
    assert main([*plan, COLUMNS]) == 0
    assert "questions          2" in capsys.readouterr().out
    for columns, said in (("question=Q", f"{named} has no column 'Q'; it has 'no', 'q', 'gold', "),
                          ("question", "'question' should be OURS=THEIRS, such as question=q,answer=a"),
                          ("x=q", "keys found: 'metadata' (name them: --columns question=NAME")):  # fmt: skip
        assert main([*plan, columns]) == 2
        assert said in capsys.readouterr().err


def test_questions_of_the_hub_are_there_without_it_once_their_commit_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def gone(*_: object, **__: object) -> None:
        raise OSError("the hub is asked")

    monkeypatch.setenv("STEPRAG_CACHE", str(tmp_path))
    monkeypatch.setattr("steprag.engines.pretrained._silence", lambda url: "")
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda self, name, **_: argparse.Namespace(sha="c" * 40))
    monkeypatch.setattr("datasets.load_dataset", lambda name, config, split, revision, **_: ROWS)
    fixed = f"hub:me/set@{'d' * 40}:plain"
    files = [questions_at("hub:me/set:plain", COLUMNS), questions_at(fixed, COLUMNS)]
    assert len({*files}) == 2
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", gone)
    monkeypatch.setattr("datasets.load_dataset", gone)
    assert [questions_at("hub:me/set:plain", COLUMNS), questions_at(fixed, COLUMNS)] == files
    assert (
        f"the hub is asked (download its files and give those); taken is the commit that was seen last, {'c' * 40}"
        in (capsys.readouterr().err)
    )
    for named in ("hub:me/other", f"{fixed}:dev"):
        with pytest.raises(ConfigError, match="cannot be had from the hub: the hub is asked"):
            questions_at(named, COLUMNS)


@pytest.mark.parametrize(("name", "text"), [
    ("q.json", '[{"q": "Who?", "a": "Ada", "n": NaN}]'), ("q.csv", 'q , "a"\nWho?,Ada\n'),
    ("q.tsv", "q \t a\nWho?\tAda\n"),
])  # fmt: skip
def test_columns_are_found_beside_what_json_lacks_and_blanks_around_names(
    name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPRAG_CACHE", str(tmp_path))
    (tmp_path / name).write_text(text)
    (asked,) = read_questions(questions_at(str(tmp_path / name), "question=q,answer=a"))
    assert (asked.question, asked.golden_answers) == ("Who?", ("Ada",))


def test_a_workbook_that_names_a_wrong_size_is_read_whole(tmp_path: Path) -> None:
    with zipfile.ZipFile(table_of(tmp_path / "q.xlsx")) as whole, zipfile.ZipFile(tmp_path / "a1.xlsm", "w") as packed:
        for part in whole.namelist():
            packed.writestr(part, whole.read(part).replace(b'ref="A1:E5"', b'ref="A1"'))
    assert [row for _, row in read_any_rows(tmp_path / "a1.xlsm", [])] == ROWS


def test_cells_of_a_workbook_are_read_as_people_see_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book = pytest.importorskip("openpyxl").Workbook()
    day, none = datetime.datetime(1932, 3, 19), "General"
    cells = [(0.09, "0%", "9%"), (2134, "00000", "02134"), (1234.5, "#,##0.00", "1,234.50"), (-5, "0;(0)", "(5)"),
             (12.5, '"$"0.0#', "$12.5"), (1994.0, none, "1994"), (0.1 + 0.2, none, "0.3"), (True, none, "yes"),
             (day, "yyyy-mm-dd", "1932-03-19"), (day, "d mmmm yyyy", "19 March 1932"),
             (day, "yyyy-mm-dd h:mm:ss", "1932-03-19"),
             (day, "mm-dd-yy", "1932-03-19"), (0.5, "# ?/?", "0.5")]  # fmt: skip
    book.active.append(["question", "answer"])
    for number, (value, form, _) in enumerate(cells, 2):
        book.active.append([f"Q{number}?", value])
        book.active.cell(number, 2).number_format = form
    book.create_sheet("more").append(["x"])
    book.create_sheet("empty")
    book.create_sheet("secret", 0).append(["x"])
    book.worksheets[0].sheet_state = "hidden"
    book.save(tmp_path / "q.xlsx")
    assert [one.golden_answers[0] for one in read_questions(tmp_path / "q.xlsx")] == [seen for *_, seen in cells]
    said = capsys.readouterr().err
    assert "cells whose number format is not read: 'mm-dd-yy' (2, first at" in said
    assert "q.xlsx:13, column 'answer'); sheets not read: 'secret' (hidden), 'more' (2, first at" in said
    book["Sheet"].cell(2, 2).value = "=1+1"
    book.save(tmp_path / "q.xlsx")
    with pytest.raises(DataError, match=r"q\.xlsx:2: column 'answer' holds a formula without its value .open it in"):
        read_questions(tmp_path / "q.xlsx")


def test_an_array_with_nan_is_read_and_written_back(tmp_path: Path) -> None:
    row = '[{"id": "1", "question": "Q?", "golden_answers": ["x"], "metadata": {"n": NaN, "supporting_ids": "[1]"}}]'
    (tmp_path / "q.json").write_text(row)
    (asked,) = read_questions(tmp_path / "q.json")
    assert asked.metadata == {"n": None, "supporting_ids": [1]}
    write_records(tmp_path / "again.jsonl", [asked])
    assert read_questions(tmp_path / "again.jsonl") == [asked]


def test_a_workbook_that_is_none_is_refused_and_one_that_expands_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openpyxl")
    monkeypatch.setattr("steprag.records.workbook.FREE", 1 << 20)
    with zipfile.ZipFile(tmp_path / "big.xlsx", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("xl/workbook.xml", b" " * (4 << 20))
    (tmp_path / "odd.xlsx").write_bytes(b"PK")
    with zipfile.ZipFile(table_of(tmp_path / "q.xlsx")) as whole, zipfile.ZipFile(tmp_path / "xml.xlsx", "w") as packed:
        for part in whole.namelist():
            packed.writestr(part, whole.read(part).replace(b"numFmtId", b"numXmtId"))
    told = "cannot be read as a workbook: "
    for name, said in (("big", "expands to more than 200 times its size"), ("odd", told), ("xml", f"{told}.*numXmtId")):
        with pytest.raises(DataError, match=said):
            read_questions(tmp_path / f"{name}.xlsx")


@pytest.mark.parametrize(("form", "letters", "said"), [
    ("parquet", 2_000_000, ":1: a row of more than 1,048,576 characters"),
    ("parquet", 20_000, "more than 2 times its size"),
    ("xlsx", 20_000, "expands to more than 2 times its size"),
])  # fmt: skip
def test_a_text_that_a_file_holds_once_and_names_often_has_bounds(
    form: str, letters: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPRAG_LINE_MIB", "1")
    monkeypatch.setenv("STEPRAG_EXPANSION", "2")
    monkeypatch.setattr("steprag.records.rows.FREE", 1 << 20)
    file, rows = tmp_path / f"q.{form}", [{"question": "Q" * letters, "answer": "a"}] * 60
    if form == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pytest.importorskip("pyarrow").Table.from_pylist(rows), file)
    else:
        book = pytest.importorskip("openpyxl").Workbook()
        for cells in (["question", "answer"], *(row.values() for row in rows)):
            book.active.append([*cells])
        book.save(file)
    with pytest.raises(DataError, match=said):
        read_questions(file)


@pytest.mark.parametrize(("content", "said"), [
    ('{"train": [{"question": "Q?"}],\n"dev": [{"question": "Q?"}]}', "several lists of rows: 'train', 'dev' .write"),
    ('question,answer\n"Which?,a\n' + "x" * 140_000, r":2: no table with ',' between: field larger.*close its quot"),
    ("question,answer\nQ?,a,b\n", r"does not fill the columns: \['Q\?', 'a', 'b'\] .put a cell"),
    ("question,answer\rQ?,a\r", "new-line character.*save it as UTF-8, with line breaks"),
    ('{"question": [{"role": "user"}], "answer": "a"}', "the question is no text, but .*--columns question=NAME"),
    ('{"question": "Q?", "choices": ["a", "b"], "answer": "3"}', "golden answer 3 is no choice.* there are 2, from 0"),
    ("\n".join(json.dumps({"question": "Q?", "choices": ["a", "b"], "answer": place}) for place in (0, 2)),
     "q.csv:2: answer counts choices from 0 in line 1, and from 1 in line 2"),
    ('{"question": "Q?", "options": {"A": "a", "B": "b"}, "answer": "a", "answer_idx": "B"}',
     "answer_idx 'B' is another choice than the answer, 'a'.*--columns answer=NAME"),
    ('{"question": "Q?", "choices": ["a", "b"], "answer": "three"}', "holds no questions that can be asked; .* none of "
     "their choices: 1, the first 'three'"),
    ('{"id": "q", "question": "Q?", "golden_answers": ["x"], "metadata": {"parts": ["x"]}}', "csv:1: .*parts cannot"),
    ('{"question": "Q?", "choices": {"1": "a", "2": "b"}, "answer": 0}', "answer 0 is no choice.*choices are 1, 2"),
    (json.dumps({"question": "Q?", "golden_answers": [7], "metadata": {"choices": DRUGS}}),
     r"q\.csv:1: golden answer 7 is no choice and no place of one: there are 3, from 0"),
])  # fmt: skip
def test_question_files_that_leave_a_doubt_are_refused(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text(content)
    with pytest.raises(DataError, match=said):
        read_questions(tmp_path / "q.csv")


def test_golden_answers_without_words_are_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"id": f"q{i}", "question": "Which?", "golden_answers": ["A", "!!!", "lek"]} for i in range(3)]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(read_questions(tmp_path / "q.jsonl")) == 3
    said = capsys.readouterr().err
    assert "golden answers without words once normalised: 6, the first 'A' of question 'q0'" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("profile", ["transcript", "direct", "cot", "rag", "ircot", "search-r1"])
def test_a_prompt_shows_the_choices_below_the_question(profile: str) -> None:
    prompt = load_profile(profile).render(State(CHOOSE), ("answer",))[-1]["content"]
    assert f"Question: {CHOOSE}" in prompt
    assert prompt.partition(CHOOSE)[2][:1] in ("", "\n")


def test_search_and_pairs_ask_with_choices_and_leakage_finds_them(word_index: Path, tmp_path: Path) -> None:
    money = {"choices": {"A": "sol", "B": "lek"}}
    write_records(tmp_path / "q.jsonl", [Question(f"m{i}", f"{QUESTION} ({i})", ("lek",), money) for i in range(6)])
    trees, asked = tmp_path / "trees", {f"Question: {QUESTION} ({i})\n- sol\n- lek\n" for i in range(6)}
    with serve(chat_reply()) as endpoint:
        run = options(endpoint, tmp_path / "q.jsonl", word_index, trees, "--search.rollouts", "5")
        assert main(["generate", *run]) == 0
    assert main(["pairs", "--trees", str(trees), "--pairs.margin", "0.01", *BY_ROLLOUTS]) == 0
    pairs = list(read_records(trees / "pairs/pairs.train.jsonl", Pair))
    assert pairs
    for pair in pairs:
        assert any(pair.prompt[1]["content"].startswith(text) for text in asked)
    found = ["pairs", "leakage", "--pairs", str(trees / "pairs"), "--against", str(tmp_path / "q.jsonl")]
    assert main(found) == 0
    matches = json.loads((trees / "pairs/leakage.json").read_text())["matches"]
    assert {(one["kind"], one["question_id"]) for one in matches} >= {
        (kind, one.id) for kind in ("id", "text") for one in read_records(trees / "pairs/questions.jsonl", Question)
    }


def flashrag(folder: Path, name: str, split: str, *questions: str, **metadata: Any) -> Path:
    """A file in FlashRAG's layout, whose ids (`train_0`) every other file has too."""
    file = folder / name / f"{split}.jsonl"
    file.parent.mkdir(parents=True)
    rows = [{"id": f"{split}_{i}", "question": text, "golden_answers": ["lek"], "metadata": metadata}
            for i, text in enumerate(questions)]  # fmt: skip
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def searched(file: Path, index: Path, out: Path, *more: str) -> Path:
    with serve(chat_reply()) as endpoint:
        assert main(["generate", *options(endpoint, file, index, out, "--search.rollouts", "20", *more)]) == 0
    return out


def paired(folder: Path, *trees: Path) -> dict[str, Any]:
    runs = ["--trees", *map(str, trees), "--out", str(folder), "--pairs.margin", "0.01", "--products", "[pairs,steps]",
            "--card.plots", "false", *BY_ROLLOUTS]  # fmt: skip
    assert main(["pairs", *runs]) == 0
    return json.loads((folder / "report.json").read_text())


def test_data_sets_with_equal_ids_make_one_pairs_folder_with_their_licences(word_index: Path, tmp_path: Path) -> None:
    files = [
        flashrag(tmp_path, name, "train", *(f"{QUESTION} ({name} {i})" for i in range(4)))
        for name in ("hotpotqa", "2wikimultihopqa")
    ]
    runs = [searched(file, word_index, tmp_path / f"run{i}") for i, file in enumerate(files)]
    report = paired(tmp_path / "pairs", *runs)
    there = {(one.id, one.dataset) for one in read_records(tmp_path / "pairs/questions.jsonl", Question)}
    assert there == {(f"{name}/train_{i}", name) for name in ("hotpotqa", "2wikimultihopqa") for i in range(4)}
    assert report["source"]["question_sources"] == {"hotpotqa": 4, "2wikimultihopqa": 4}
    assert "2wikimultihopqa Apache-2.0; hotpotqa CC BY-SA 4.0" in (tmp_path / "pairs/README.md").read_text()


def test_leakage_tells_data_sets_with_equal_ids_apart_and_knows_popqa(word_index: Path, tmp_path: Path) -> None:
    popqa = flashrag(tmp_path, "popqa", "test", *(f"{QUESTION} ({i})" for i in range(4)), prop="currency")
    paired(tmp_path / "pairs", searched(popqa, word_index, tmp_path / "run"))
    others = flashrag(tmp_path, "bamboogle", "test", "What is the largest lake of Peru?")
    unnamed = tmp_path / "questions.jsonl"
    unnamed.write_bytes(others.read_bytes())
    looks = ["pairs", "leakage", "--pairs", str(tmp_path / "pairs"), "--leakage.encoder", "none", "--against"]
    assert main([*looks, str(others), str(unnamed)]) == 0
    found = json.loads((tmp_path / "pairs/leakage.json").read_text())
    assert found["matches"] == []
    assert [warning.split(",")[0] for warning in found["warnings"]] == ["4 questions are PopQA's"]
    assert main([*looks, str(popqa)]) == 0
    kinds = {one["kind"] for one in json.loads((tmp_path / "pairs/leakage.json").read_text())["matches"]}
    assert kinds >= {"id", "text"}


def test_one_marked_passage_of_popqa_is_enough(word_index: Path, tmp_path: Path) -> None:
    """Both data sets mark two passages, of which the episodes find one."""
    script = in_turn(*[query("capital Tirana"), evidence("Tirana"), answer("lek")] * 2)
    marks = {"supporting_titles": ["Tirana", "Durrës"]}
    recalls = {}
    with serve(chat_reply(script)) as endpoint:
        for name in ("popqa", "bamboogle"):
            flashrag(tmp_path, name, "test", QUESTION, **marks)
            argv = ["--dataset_name", name, "--data_dir", str(tmp_path), *options(endpoint, Path(), word_index,
                    tmp_path / f"run-{name}")[2:]]  # fmt: skip
            assert main(["infer", *argv]) == 0
            recalls[name] = json.loads((tmp_path / f"run-{name}/metrics.json").read_text())["gold_recall"]
    assert recalls == {"popqa": 1.0, "bamboogle": 0.5}


@pytest.mark.parametrize(("row", "given", "name", "dataset"), [
    ({"id": "train_0"}, None, "hotpotqa/train_0", "hotpotqa"),
    ({"id": "train_0"}, "nq", "nq/train_0", "nq"),
    ({"id": "12", "metadata": {"dataset": "musique"}}, None, "musique/12", "musique"),
    ({"id": "12", "dataset": "musique"}, None, "musique/12", "musique"),
    ({"id": "train_0", "data_source": "nq"}, None, "nq/train_0", "nq"),  # Search-R1
    ({"id": "5a8b57f25542995d1e6f1371"}, None, "5a8b57f25542995d1e6f1371", None),
    ({"id": "5a8b57f25542995d1e6f1371"}, "hotpotqa", "5a8b57f25542995d1e6f1371", "hotpotqa"),
    ({"id": "atlas-train-0001"}, None, "atlas-train-0001", None),
    ({"id": "hotpotqa/train_0", "dataset": "hotpotqa"}, "hotpotqa", "hotpotqa/train_0", "hotpotqa"),
])  # fmt: skip
def test_the_data_set_names_ids_that_are_unique_in_one_file_only(
    row: dict[str, Any], given: str | None, name: str, dataset: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "hotpotqa/train.jsonl"
    file.parent.mkdir()
    file.write_text(json.dumps({"question": "Which?", "golden_answers": ["x"], **row}))
    (question,) = read_questions(file, given)
    assert (question.id, question.dataset) == (name, dataset)


def test_a_file_of_any_name_gets_its_data_set_by_option(
    lek: Endpoint, word_index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = flashrag(tmp_path, "x", "test", QUESTION).rename(tmp_path / "mine.jsonl")
    run = ["infer", *options(lek, file, word_index, tmp_path / "run")]
    assert main([*run, "--dataset_name", "mine"]) == 0
    (one,) = read_records(tmp_path / "run/predictions.jsonl", Prediction)
    assert (one.id, one.dataset) == ("mine/test_0", "mine")
    capsys.readouterr()
    assert main(run) == 2, "as a run that was begun when ids were not named"
    assert "datasets = ['mine'], and is now asked for None" in capsys.readouterr().err
    trees = searched(file, word_index, tmp_path / "trees", "--dataset_name", "mine")
    assert [tree.question.id for tree in read_records(trees / "trees.jsonl", Tree)] == ["mine/test_0"]
    assert main(["infer", "--index", str(word_index), "--out", str(tmp_path / "none")]) == 2
    assert "no questions: give a data set's name (atlas) or a file" in capsys.readouterr().err


def test_a_later_round_knows_the_trees_of_a_run_whose_ids_had_no_data_set(word_index: Path, tmp_path: Path) -> None:
    asked = [f"{QUESTION} ({i})" for i in range(3)]
    file = flashrag(tmp_path, "x", "test", *asked).rename(tmp_path / "mine.jsonl")
    before = searched(file, word_index, tmp_path / "first")
    after = searched(file, word_index, tmp_path / "second", "--dataset_name", "mine", "--after", str(before))
    trees = list(read_records(after / "trees.jsonl", Tree))
    assert [tree.question.id for tree in trees] == ["mine/test_0", "mine/test_1", "mine/test_2"]
    assert any(tree.known for tree in trees)


def test_lines_from_before_data_sets_had_a_field_are_read_and_written_back_as_they_were() -> None:
    usage = {"calls": 1, "prompt_tokens": 1, "completion_tokens": 1, "cached_tokens": 0}
    asked = {"id": "train_0", "question": "Which?", "golden_answers": ["x"], "metadata": {}}
    ended = {"prediction": None, "steps": [], "passages": [], "usage": usage, "finish": "empty", "metadata": {}}
    several = {"answers": [None, "x"], "chosen": 1, "searches": 0}
    prediction = {"id": "q", "question": "?", "golden_answers": ["x"], **ended, "refused": "…", **several, "more": 1}
    for cls, row in ((Question, asked), (Prediction, prediction)):
        line = json.dumps(row, ensure_ascii=False, separators=(",", ":"))
        assert dump_line(from_dict(cls, json.loads(line), Path("old"), 1)) == line
    for number, line in read_lines(atlas.path("train").with_name("trees.jsonl.gz")):
        assert dump_line(from_dict(Tree, json.loads(line), Path("old"), number)) == line


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
    alike: dict[str, set[str]] = {}
    for name in ("warmstart", "train", "dev", "test"):
        asked = {question.question: question for question in read_questions(atlas.path(name))}
        for question in asked.values():
            alike.setdefault(question.metadata["relations"][-1], set()).update(question.golden_answers[:1])
    for row in rows:
        assert row["options"][row["answer_idx"]] == row["answer"]
        assert len({normalise(text) for text in row["options"].values()}) == 4
        question = asked[row["question"]]
        assert sum(text in question.golden_answers for text in row["options"].values()) == 1
        assert {*row["options"].values()} <= alike[question.metadata["relations"][-1]]
    letters = Counter(row["answer_idx"] for row in rows)
    assert min(letters.values()) > len(rows) / 6, "no letter is a good guess"


@pytest.mark.parametrize("profile", ["transcript", "stack"])
def test_both_agents_answer_in_medqas_form_with_every_question_in_the_denominator(
    profile: str, word_index: Path, tmp_path: Path
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
        argv = options(endpoint, tmp_path / "q.jsonl", word_index, run, "--dataset_name", "medqa")
        assert main(["infer", *argv, "--prompt.profile", profile, "--policy.retries", "0"]) == 3
        judge = ["--judge.base_url", endpoint.url, "--judge.model", "double", "--judge.engine", "openai"]
        assert main(["judge", "--predictions", str(run), *judge]) == 0
    scores, judged = (json.loads((run / name).read_text()) for name in ("metrics.json", "judged/metrics.json"))
    assert (scores["questions"], scores["answered"], scores["failed"], scores["strict_em"]) == (4, 2, 1, 0.25)
    assert (judged["questions"], judged["strict_right"], judged["unanswered"]) == (4, 0.25, 1)


def test_a_folder_of_shards_is_one_file_of_questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from datasets import Dataset

    monkeypatch.setenv("STEPRAG_CACHE", str(tmp_path / "cache"))
    rows = Dataset.from_list([{"id": f"q{n}", "question": f"what is {n}?", "golden_answers": ["x"]} for n in range(4)])
    rows.save_to_disk(str(tmp_path / "saved"), num_shards=2)
    (tmp_path / "shards").mkdir()
    for part in range(2):
        rows.shard(2, part, contiguous=True).to_parquet(str(tmp_path / f"shards/train-0000{part}-of-00002.parquet"))
    for name in ("saved", "shards"):
        assert [one.id for one in read_questions(questions_at(str(tmp_path / name)))] == ["q0", "q1", "q2", "q3"]
    (tmp_path / "shards" / "test-00000-of-00001.parquet").write_bytes(b"")
    for folder, said in ((tmp_path / "shards", "is a folder of test, train"), (tmp_path, "is a folder of ")):
        with pytest.raises(DataError, match=said):
            questions_at(str(folder))
