"""Pairs in other tools' formats, and the published file read back with its prompts."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from apps.commands import main
from preference.exchange.export import export, llamafactory_pair
from preference.exchange.proguide import FIELDS, parse_user, to_row
from preference.exchange.proguide import main as import_main
from steprag.agent.environment import Environment
from steprag.agent.profiles import load_profile
from steprag.agent.rollout import episode_of, rollout
from steprag.errors import DataError
from steprag.records.jsonl import read_records, write_records
from steprag.records.training_rows import Pair, Trajectory
from steprag.runs.run import read_manifest
from steprag.types import Message, Question, State
from tests.fakes import QUESTION, DictRetriever, ScriptedPolicy, query
from tests.test_pair_filters import PROMPT, pair
from tests.training_parts import lines

ROOT = Path(__file__).parent.parent
SYSTEMS = {
    "start": 'You answer.\n* Format:\n"So the answer is <answer>{answer}</answer>"\n  ',
    "reasoning": "You think again: {question}\n    ",
    "evidence": "You extract.\n\n    Instructions:\n",
}


def folder_with(tmp_path: Path, pairs: list[Pair]) -> Path:
    """A pairs folder as `steprag pairs` leaves it, as far as exports read it."""
    step = Trajectory(pairs[0].prompt, pairs[0].chosen, "q", "query", 1, "search", golden_answers=("lek",))
    write_records(tmp_path / "pairs" / "pairs.train.jsonl", pairs)
    write_records(tmp_path / "pairs" / "sft.train.jsonl", [step])
    write_records(tmp_path / "pairs" / "pairs.val.jsonl", [])
    return tmp_path / "pairs"


def test_openai_rows_keep_roles(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, [pair(query("a"), query("b"))])
    assert export(folder, "openai", tmp_path / "out") == {"pairs.train.jsonl": 1, "sft.train.jsonl": 1}
    (row,) = lines(tmp_path / "out/pairs.train.jsonl")
    assert [message["role"] for message in row["input"]["messages"]] == ["system", "user"]
    assert row["preferred_output"] == [{"role": "assistant", "content": query("a")}]
    assert row["non_preferred_output"] == [{"role": "assistant", "content": query("b")}]
    (step,) = lines(tmp_path / "out/sft.train.jsonl")
    assert [message["role"] for message in step["messages"]] == ["system", "user", "assistant"]


def test_verl_parquet_has_prompts_truths_and_provenance(tmp_path: Path) -> None:
    import pyarrow.parquet

    unknown: dict[str, Any] = {"tree": None, "chosen_reward": None, "rejected_reward": None}
    folder = folder_with(tmp_path, [pair(query("a"), query("b")), pair(query("c"), query("d"), **unknown)])
    export(folder, "verl", tmp_path / "out")
    first, second = pyarrow.parquet.read_table(tmp_path / "out/pairs.train.parquet").to_pylist()
    assert first["prompt"][0] == {"role": "system", "content": "s"}
    assert first["reward_model"] == {"style": "rule", "ground_truth": {"target": ["Ada Lovelace"]}}
    assert (first["chosen"], first["extra_info"]["chosen_reward"]) == (query("a"), 0.9)
    assert second["extra_info"]["tree"] is None
    before = (tmp_path / "out/pairs.train.parquet").read_bytes()
    export(folder, "verl", tmp_path / "again")
    assert (tmp_path / "again/pairs.train.parquet").read_bytes() == before
    (step,) = pyarrow.parquet.read_table(tmp_path / "out/sft.train.parquet").to_pylist()
    assert [message["role"] for message in step["messages"]] == ["system", "user", "assistant"]


def sharegpt_problem(row: dict[str, Any], entry: dict[str, Any]) -> str | None:
    """LLaMA-Factory 0.9.5's rules for a ShareGPT row, which it applies by dropping; None for a row that it keeps."""
    columns, tags = entry["columns"], entry["tags"]
    roles = [turn[tags["role_tag"]] for turn in row[columns["messages"]]]
    wanted = [tags["user_tag"] if place % 2 == 0 else tags["assistant_tag"] for place in range(len(roles))]
    if roles != wanted:
        return "roles do not alternate"
    if len(roles) % 2 != (1 if entry.get("ranking") else 0):
        return "wrong number of turns"
    if not row[columns["system"]]:
        return "the template's own system prompt would be put in"
    replies = [row[columns[side]] for side in ("chosen", "rejected")] if entry.get("ranking") else []
    return (
        "a reply is not the assistant's" if any(r[tags["role_tag"]] != tags["assistant_tag"] for r in replies) else None
    )


def test_llamafactory_keeps_every_row(tmp_path: Path) -> None:
    long = (*PROMPT, Message(role="assistant", content="step"), Message(role="user", content="go on"))
    folder = folder_with(tmp_path, [pair(query("a"), query("b")), pair(query("c"), query("d"), prompt=long)])
    counts = export(folder, "llamafactory", tmp_path / "out")
    info = json.loads((tmp_path / "out/dataset_info.json").read_text())
    assert {entry["file_name"]: len(lines(tmp_path / "out" / entry["file_name"])) for entry in info.values()} == counts
    for entry in info.values():
        for row in lines(tmp_path / "out" / entry["file_name"]):
            assert sharegpt_problem(row, entry) is None
    row = lines(tmp_path / "out/pairs.train.jsonl")[0]
    assert (row["system"], row["conversations"]) == ("s", [{"from": "human", "value": "Question: Whose is it?"}])


@pytest.mark.parametrize("prompt", [
    (Message(role="user", content="no system"),),
    (Message(role="system", content="s"),),
    (*PROMPT, Message(role="assistant", content="a")),
    (*PROMPT, Message(role="user", content="u")),
])  # fmt: skip
def test_a_prompt_that_llamafactory_would_drop_is_an_error_with_its_line(
    tmp_path: Path, prompt: tuple[Message, ...]
) -> None:
    folder = folder_with(tmp_path, [pair(query("a"), query("b")), pair(query("c"), query("d"), prompt=prompt)])
    with pytest.raises(DataError, match=r"pairs\.train\.jsonl:2: "):
        export(folder, "llamafactory", tmp_path / "out")
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir()), "nothing half written"
    with pytest.raises(ValueError, match=r"system|alternate"):
        llamafactory_pair(pair(query("c"), query("d"), prompt=prompt))


@pytest.mark.parametrize("name", ["llamafactory", "openai", "verl", "proguide"])
@pytest.mark.parametrize("reply", [(), (*PROMPT,), (Message(role="assistant", content=" "),)])
def test_a_reply_that_says_nothing_is_an_error_with_its_line(
    name: str, reply: tuple[Message, ...], tmp_path: Path
) -> None:
    pairs = [pair(query("a"), query("b")), dataclasses.replace(pair(query("c"), query("d")), rejected=reply)]
    with pytest.raises(DataError, match=r"pairs\.train\.jsonl:2: rejected must be one assistant message"):
        export(folder_with(tmp_path, pairs), name, tmp_path / "out")


LOAD = """
import json, sys
from datasets import load_dataset
from llamafactory.data.converter import align_dataset
from llamafactory.data.parser import get_dataset_list
from llamafactory.hparams import DataArguments, ModelArguments
from transformers import TrainingArguments
folder, names = sys.argv[1], sys.argv[2].split(",")
data = DataArguments(dataset=",".join(names), dataset_dir=folder, template="qwen", preprocessing_num_workers=1)
for attributes in get_dataset_list(names, folder):
    rows = load_dataset("json", data_files=f"{folder}/{attributes.dataset_name}", split="train", cache_dir=sys.argv[3])
    rows = align_dataset(rows, attributes, data, TrainingArguments(output_dir=sys.argv[3]))
    replies = 2 if attributes.ranking else 1
    kept = [row for row in rows if len(row["_prompt"]) % 2 == 1 and len(row["_response"]) == replies and row["_system"]]
    print(json.dumps([attributes.dataset_name, len(kept)]))
"""


@pytest.mark.slow
def test_llamafactory_s_own_loader_keeps_every_row(tmp_path: Path) -> None:
    """Needs LLaMA-Factory in an environment of its own: .venv-llamafactory beside .venv."""
    python = ROOT / ".venv-llamafactory" / "bin" / "python"
    if not python.exists():
        pytest.skip("no .venv-llamafactory")
    folder = folder_with(tmp_path, [pair(query(f"a{i}"), query(f"b{i}")) for i in range(20)])
    # it imports torchaudio, whose wheels need CUDA, for audio alone
    (tmp_path / "stubs" / "torchaudio").mkdir(parents=True)
    (tmp_path / "stubs" / "torchaudio" / "__init__.py").write_text('__version__ = "0.0.0"\n')
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "stubs"), "HF_HUB_OFFLINE": "1"}
    for name in ("llamafactory", "proguide"):
        counts = export(folder, name, tmp_path / name)
        names = ",".join(json.loads((tmp_path / name / "dataset_info.json").read_text()))
        command = [str(python), "-c", LOAD, str(tmp_path / name), names, str(tmp_path / "cache")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=True, env=environment)
        found = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
        assert found == counts


# The published file: rows as its builder writes them, for one episode over two retrieved passages.
FIRST = "First, the country. So the next query is <query>capital Tirana</query>"
NOTED = "<evidence>None</evidence>."
PASSAGES = (
    'Wikipedia Title: "Lima"\nLima is the capital of Peru.\n\nWikipedia Title: "Tirana"\nTirana is the capital.\n\n'
)


def published(turn: str, user: str, chosen: str, rejected: str, kinds: tuple[str, str], layer: int) -> dict[str, Any]:
    contents = [text.split(">", 1)[1].split("<", 1)[0].strip() for text in (chosen, rejected)]
    return {
        "instruction": SYSTEMS[turn], "input": user, "prompt": f"System: {SYSTEMS[turn]}\nUser: {user}",
        "chosen": chosen, "rejected": rejected, "chosen_action_type": kinds[0], "chosen_content": contents[0],
        "rejected_action_type": kinds[1], "rejected_content": contents[1], "layer": layer,
    }  # fmt: skip


def proguide_file(folder: Path) -> tuple[Path, list[dict[str, Any]]]:
    thoughts = f"Question: {QUESTION}\nPrevious Thoughts: {FIRST}"
    kinds = ("Query Generation", "Evidence Extraction", "Answer Generation")
    rows = [
        published("start", f"Question: {QUESTION}", FIRST, "So the answer is <answer>sol</answer>", kinds[::2], 0),
        published("evidence", f"{thoughts}. Reference: <reference>{PASSAGES}</reference>", NOTED,
                  "So <evidence>Tirana is the capital</evidence>", kinds[1:2] * 2, 1),
        published("reasoning", f"{thoughts} {NOTED}", "So the answer is <answer>lek</answer>",
                  "So the answer is <answer>sol</answer>", kinds[2:] * 2, 2),
    ]  # fmt: skip
    file = folder / "RAG_ProGuide.json"
    file.write_text(json.dumps(rows, indent=2))
    return file, rows


def test_the_published_file_gives_pairs_with_its_prompts_byte_for_byte(tmp_path: Path) -> None:
    file, rows = proguide_file(tmp_path)
    assert main(["pairs", "import", str(file), "--out", str(tmp_path / "out"), "--validation", "0"]) == 0
    pairs = list(read_records(tmp_path / "out/pairs.train.jsonl", Pair))
    assert [[message["content"] for message in found.prompt] for found in pairs] == [
        [row["instruction"], row["input"]] for row in rows
    ]
    assert [to_row(found) for found in pairs] == rows, "and written back they are the file's rows"
    assert [(found.action, found.depth, found.chosen_reward) for found in pairs] == [
        ("query", 1, None), ("evidence", 2, None), ("answer", 3, None)]  # fmt: skip
    assert len({found.question_id for found in pairs}) == 1
    counts = read_manifest(tmp_path / "out")["counts"]
    assert (counts["rows"], counts["prompts_byte_for_byte"]) == (3, 3)
    (question,) = read_records(tmp_path / "out/questions.jsonl", Question)
    assert (question.id, question.question) == (pairs[0].question_id, QUESTION)
    assert "golden answers" in (tmp_path / "out/README.md").read_text(encoding="utf-8")


def test_the_agent_shows_a_model_exactly_the_prompts_of_the_file(tmp_path: Path) -> None:
    file, rows = proguide_file(tmp_path)
    import_main([str(file), "--out", str(tmp_path / "out")])
    profile = load_profile(str(tmp_path / "out/rag_proguide.yaml"))
    steps = iter([FIRST, NOTED, "So the answer is <answer>lek</answer>"])
    policy = ScriptedPolicy(lambda prompt, draw: next(steps))
    shelf = DictRetriever(parsed(rows[1]["input"]).passages)
    world = Environment(profile, shelf, 2, 7)
    episode = asyncio.run(episode_of(rollout(world, policy, world.start(QUESTION), seed=0)))
    assert episode.prediction == "lek", "the grammar takes what such models write"
    shown = [[message["content"] for message in prompt] for prompt in policy.prompts]
    assert shown == [[row["instruction"], row["input"]] for row in rows]
    assert profile.render(parsed(rows[2]["input"]), ("answer",))[0]["content"] == SYSTEMS["reasoning"]


def parsed(user: str) -> State:
    shown = parse_user(user)
    assert shown is not None
    return shown.state


def test_rows_that_are_no_pairs_are_kept_with_a_reason(tmp_path: Path) -> None:
    file, rows = proguide_file(tmp_path)
    nulls: list[Any] = [None, {**rows[0], "rejected_content": None}, {**rows[0], "layer": "1"}, {"input": "x"}]
    broken = [
        *nulls,
        {**rows[0], "chosen_content": "other"},
        {**rows[0], "prompt": "other"},
        {**rows[0], "rejected": rows[0]["chosen"], "rejected_action_type": "Query Generation",
         "rejected_content": "capital Tirana"},
        {**rows[0], "input": "Tell me", "prompt": f"System: {SYSTEMS['start']}\nUser: Tell me"},
    ]  # fmt: skip
    file.write_text("\ufeff" + json.dumps([*rows, *broken]), encoding="utf-8")
    (tmp_path / "lines.json").write_text("\n".join(map(json.dumps, [*rows, *broken])))
    assert import_main([str(file), "--out", str(tmp_path / "out"), "--validation", "0"]) == 0
    refused = lines(tmp_path / "out/refused.jsonl")
    assert [row["row"] for row in refused] == list(range(4, 12))
    assert read_manifest(tmp_path / "out")["counts"]["refused"] == 8
    assert [row["reason"].split(":")[0] for row in refused] == [
        "expected an object, found NoneType", "rejected_content is no text, but None",
        "layer is no whole number, but '1'", "no field 'instruction'",
        "chosen", "prompt is not instruction and input", "chosen and rejected are the same text",
        "the user turn has another form"]  # fmt: skip
    assert {"row", "reason", *FIELDS} == refused[-1].keys()
    assert sum(one["count"] for one in read_manifest(tmp_path / "out")["left_out"]) == 8
    assert import_main([str(tmp_path / "lines.json"), "--out", str(tmp_path / "again"), "--validation", "0"]) == 0
    assert lines(tmp_path / "again/refused.jsonl") == refused


@pytest.mark.parametrize(("text", "problem"), [
    ('[{"instruction": "x"}]', "row 1: no field 'input'"),
    ("[1]", "row 1: expected an object, found int"),
    ('[{"instruction": 3', ":1: not JSON"),
    ("[]", "no row shows a prompt"),
    ('{"instruction": "x", "input": "", "chosen": "a", "rejected": "b"}', "no field 'prompt' .*preferences between"),
    ('[{"messages": []}]', "no field 'instruction' .the row is of instruction data: steprag pairs instruct"),
])  # fmt: skip
def test_other_files_are_refused_with_the_row(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(DataError, match=problem):
        import_main([str(tmp_path / "x.json"), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_ten_fields_go_out_as_they_came_in(tmp_path: Path) -> None:
    file, _ = proguide_file(tmp_path)
    import_main([str(file), "--out", str(tmp_path / "out"), "--validation", "0"])
    assert main(["pairs", "export", "--pairs", str(tmp_path / "out"), "--format", "proguide", "llamafactory"]) == 0
    assert (tmp_path / "out/export/proguide/RAG_ProGuide.json").read_bytes() == file.read_bytes()
    info = json.loads((tmp_path / "out/export/proguide/dataset_info.json").read_text())
    assert info["RAG_ProGuide"]["columns"]["system"] == "instruction"
