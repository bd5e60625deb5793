"""The files that start a cluster's jobs: their commands are ones that we have."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import yaml

from apps.commands import main
from data_generation.config import GenerateConfig
from steprag.config.load import load_config
from steprag.records.jsonl import write_records
from steprag.types import Question
from tests.ray_parts import retriever_service
from tests.test_documents import known_options

ROOT = Path(__file__).parents[1]
CLUSTER, VERL = ROOT / "scripts/cluster", ROOT / "configs/training/verl"
FILES = {"questions", "index", "out", "shard", "ray", "config"}


def generate_line(text: str) -> list[str]:
    """The words after `steprag generate`, lines joined and variables set."""
    (line,) = re.findall(r"steprag generate (.*?)(?:\n\s*(?!-)|$)", re.sub(r"\s*\\?\n\s+(?=--)", " ", text), re.DOTALL)
    return shlex.split(re.sub(r"\$[A-Z_]+", "3", re.sub(r"\$(INDEX|POLICY)\b", "http://host:8000", line)))


def options_of(words: list[str]) -> dict[str, str]:
    return {words[place].removeprefix("--"): words[place + 1] for place in range(0, len(words), 2)}


def command_of(file: Path) -> dict[str, str]:
    text = file.read_text()
    if file.suffix == ".yaml":
        spec = yaml.safe_load(text)["spec"]
        text = spec.get("entrypoint") or spec["template"]["spec"]["containers"][0]["command"][-1]
    return options_of(generate_line(text))


@pytest.mark.parametrize("file", sorted(CLUSTER.iterdir()), ids=lambda file: file.name)
def test_jobs_search_as_the_recipe_says(file: Path) -> None:
    options, recipe = command_of(file), ROOT / "configs/generation/qwen2.5-7b-vllm.yaml"
    assert {f"--{key}" for key in options} <= known_options("generate")
    own = {key: value for key, value in options.items() if key not in FILES}
    ours = load_config(GenerateConfig, str(recipe) if "config" in options else None, own)
    theirs = load_config(GenerateConfig, str(recipe), {})
    assert (ours.prompt.examples, ours.search.rollouts, ours.search.wave) == (
        theirs.prompt.examples, theirs.search.rollouts, theirs.search.wave,
    )  # fmt: skip


def test_the_container_serves_the_demos_index() -> None:
    said = re.findall(r"^CMD (.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    words = json.loads(said[0])
    assert words[1] == "serve"
    assert {word for word in words if word.startswith("--")} <= known_options("serve")


@pytest.mark.long
def test_the_container_is_built() -> None:
    builder = shutil.which("docker") or shutil.which("podman")
    if not builder or subprocess.run([builder, "info"], capture_output=True).returncode:
        pytest.skip("no docker or podman that runs")
    subprocess.run([builder, "build", "-t", "steprag-test", str(ROOT)], check=True, timeout=3600)


def test_questions_become_the_prompts_that_verl_reads(tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    write_records(file, [Question("q1", "Where is Tirana?", ("Albania", "in Albania"), dataset="world")])
    command = ["pairs", "export", "--questions", str(file), "--format", "verl", "--out", str(tmp_path)]
    assert main(command) == 0
    (row,) = pyarrow.parquet.read_table(tmp_path / "verl/train.parquet").to_pylist()
    assert row["data_source"] == "world"
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    assert "<answer>" in row["prompt"][0]["content"]
    assert row["reward_model"]["ground_truth"]["target"] == ["Albania", "in Albania"]
    assert row["extra_info"] == {"question_id": "q1"}
    assert main([*command[:4], "--format", "openai", "--out", str(tmp_path)]) == 2


def test_verls_reward_is_our_f1_of_the_last_answer() -> None:
    """verl's environment needs no package for it."""
    score = runpy.run_path(str(VERL / "reward.py"))["compute_score"]
    for said, f1 in (("<answer> sol </answer> No: <answer> Lek </answer>", 1.0), ("Lek", 0.0)):
        assert score(data_source="x", solution_str=said, ground_truth={"target": ["the lek"]}, extra_info={}) == f1
    paths, file = [str(ROOT)], str(VERL / "reward.py")
    code = f"import sys, runpy; sys.path[:0] = {paths}; runpy.run_path({file!r})"
    done = subprocess.run([sys.executable, "-IS", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_verls_tool_asks_our_service(monkeypatch: pytest.MonkeyPatch) -> None:
    def function_tool(name: str) -> Callable[[Any], Any]:
        assert name == "search"
        return lambda function: function

    module = types.ModuleType("verl.tools.function_tool")
    vars(module)["function_tool"] = function_tool
    for name in ("verl", "verl.tools"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    search = runpy.run_path(str(VERL / "search_tool.py"))["search"]
    with retriever_service() as address:
        monkeypatch.setenv("STEPRAG_RETRIEVER", f"{address}/")
        found = search("currency of Albania")
    assert len(found.split("\n\n")) == 3
    assert "lek" in found
