"""The demo, at its smallest; and every stage on the embedded model, index and trainer, which takes minutes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from apps.commands import main
from apps.demo.demo import TEST
from apps.reproduce.contenders import WARM
from apps.reproduce.options import recipe
from apps.reproduce.stages import Pipeline, stage
from apps.viewer.answers import Address, Answers
from apps.viewer.folders import open_folders
from inference.scoring.runs_compared import read_run
from steprag import atlas
from steprag.config.recipes import RECIPES
from steprag.records.jsonl import read_records
from steprag.runs.run import is_done, read_manifest
from steprag.tree import Tree
from steprag.types import Prediction

SMALL = ("--questions", "6", "--calls", "12", "--steps", "2", "--tests", "18", "--no_chat")
README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_the_demo_leaves_runs_that_every_command_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, threads = tmp_path / "demo", torch.get_num_threads()
    assert main(["demo", "--out", str(out), *SMALL]) == 0
    assert torch.get_num_threads() == threads
    page = capsys.readouterr().out
    assert page.startswith((out / "report.md").read_text())
    for words in ("6 trees", "2 steps of DPO", "18 questions of another", "95 % interval", "6 hops", "steprag view"):
        assert words in page
    kinds = {key.rpartition("/")[2]: run.kinds()[:1] for key, run in open_folders([str(out)]).items()}
    held = {"trees": "trees", "pairs": "pairs", "before": "predictions", "after": "predictions"}
    assert held.items() <= {key: kind[0] for key, kind in kinds.items() if kind}.items()
    before, after = (read_run(out / name, name) for name in ("before", "after"))
    gain = json.loads((out / "report.json").read_text())["gain"]["em"]
    assert gain == pytest.approx(after.figures["em"]["value"] - before.figures["em"]["value"])
    assert (out / "demo.png").stat().st_size > 5000
    answers = Answers(open_folders([str(out)]))
    assert [len(answers.series("dpo")["curves"]["loss"]), len(answers.series("before")["done"])] == [2, 18]
    assert len(answers.record(Address("after", "predictions", 1))["texts"]) >= 3
    told = {run["key"]: (run["model"], run["n"], run["ended"]) for run in answers.runs()["runs"]}
    assert told["after"][:2] == ("small policy, after training", 18)
    made = [out / "trees/trees.jsonl", out / "dpo/model.safetensors", out / "after/predictions.jsonl"]
    written = [file.stat().st_mtime_ns for file in made]
    assert main(["demo", "--out", str(out), *SMALL]) == 0  # what is finished is not done again
    assert written == [file.stat().st_mtime_ns for file in made]
    assert told == {run["key"]: (run["model"], run["n"], run["ended"]) for run in answers.runs()["runs"]}
    assert main(["demo", "--out", str(out), *SMALL, "--seed", "2"]) == 2
    assert "choose another folder" in capsys.readouterr().err
    assert main(["demo", "--out", str(out), "--tests", "0"]) == 2
    assert main(["demo", "--out", str(tmp_path / "few"), *SMALL, "--questions", "1", "--calls", "1"]) == 2
    assert "give more --questions or --calls" in capsys.readouterr().err
    pages = f"from apps.demo.demo import show; show([['view', {str(out)!r}, '--port', '0']] * 2)"
    with subprocess.Popen([sys.executable, "-c", pages], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        links = {process.stdout.readline() for _ in range(2)}
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert len(links) == 2
    assert all(link.startswith("http://127.0.0.1:") for link in links)


def test_the_question_of_the_readme_is_one_of_the_world() -> None:
    """Its steps are really what a search finds, and only the later answer is right."""
    asked = next(one for one in TEST.questions(1000, name="test") if f'"{one.question}"' in README)
    told = re.findall(r"^\| (?:before|after) training (.*)$", README, re.MULTILINE)
    rows = [re.findall(r"[^|*]+", row) for row in told]
    steps = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert [row[-1] == asked.golden_answers[0] for row in steps] == [False, True]
    for *searches, _ in steps:
        for query, kept in zip(searches[::2], searches[1::2], strict=True):
            assert f"{query} {kept}" in [f"{one.title} {one.text}" for one in TEST.passages(*query.split())]


def every_stage(out: Path) -> None:
    """The stages as a user types them; those that are done are not done again."""
    index, trees, pairs, sft, dpo = (out / name for name in ("index", "generate", "pairs", "sft", "dpo"))
    smaller = {"batch_size": 2, "held_out": 2, "max_steps": 2}
    policies = {"bare": ("--prompt.examples", "2"), "warm": ("--adapter", WARM), "trained": ("--adapter", str(dpo))}
    pipeline = Pipeline(out)
    for each in (
        stage(index, "index build", corpus=atlas.path("corpus")),
        stage(trees, "generate", config=RECIPES / "generation/demo.yaml", questions=atlas.path("train"), index=index,
              limit=3),
        stage(pairs, "pairs", config=RECIPES / "preference/spre.yaml", trees=trees),
        stage(sft, "train", config=recipe("sft"), pairs=pairs, adapter=WARM, **smaller),
        stage(dpo, "train", config=recipe("dpo"), pairs=pairs, adapter=sft, **smaller),
        *(
            stage(out / f"infer-{name}", "infer", *options, config=RECIPES / "inference/demo.yaml",
                  dataset_name="atlas", index=index, limit=2)
            for name, options in policies.items()
        ),
    ):  # fmt: skip
        pipeline.run(each)


def started(out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.test_real_models", str(out)]
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, atlas_index: Path) -> Path:
    """Runs that were killed in the middle of their search, then made to their end."""
    out = tmp_path_factory.mktemp("stages")
    shutil.copytree(atlas_index, out / "index")
    killed = started(out)
    assert killed.stderr is not None
    trees = out / "generate" / "trees.jsonl"
    for _ in killed.stderr:
        if killed.poll() is not None or (trees.exists() and trees.read_bytes().count(b"\n") >= 1):
            break
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    kept = trees.read_bytes().rsplit(b"\n", 1)[0].split(b"\n") if trees.exists() else []
    process = started(out)
    _, words = process.communicate()
    assert process.returncode == 0, words
    now = trees.read_bytes()
    assert all(line in now for line in kept), "a finished tree was searched again"
    assert read_manifest(out / "generate")["counts"]["trees"] == 3
    assert all(is_done(out / f"infer-{name}") for name in ("warm", "trained"))
    counts = read_manifest(out / "infer-bare")["counts"]  # a bare model may have all its completions refused
    assert (counts["questions"], counts["failed"]) == (2, 0)
    return out


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_embedded_policy_follows_the_grammar(finished: Path) -> None:
    nodes = [node for tree in read_records(finished / "generate/trees.jsonl", Tree) for node in tree.nodes[1:]]
    refused = [node for node in nodes if node.failure is not None]
    assert len(refused) <= 0.1 * len(nodes)
    assert {node.action for node in nodes if node.failure is None} == {"query", "evidence", "answer"}


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_trained_adapter_is_the_one_that_answered(finished: Path) -> None:
    runs = [finished / f"infer-{name}" for name in ("bare", "warm", "trained")]
    identities = [read_manifest(run)["identity"]["policy"] for run in runs]
    assert "adapter" not in identities[0]
    assert len({identity.get("adapter") for identity in identities}) == 3
    assert read_manifest(finished / "dpo")["starting_adapter"]["sha256"]
    said = read_records(runs[-1] / "predictions.jsonl", Prediction)
    assert all(one.steps for one in said if one.finish == "answer")


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_second_run_reuses_everything(finished: Path) -> None:
    before = {path: path.read_bytes() for path in finished.rglob("*.jsonl") if path.name != "metrics.jsonl"}
    process = started(finished)
    _, words = process.communicate()
    assert process.returncode == 0
    assert "2 questions done before" in words
    assert before == {path: path.read_bytes() for path in before}


if __name__ == "__main__":
    every_stage(Path(sys.argv[1]))
