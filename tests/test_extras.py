"""The core without its extras: an endpoint and a URL of a retriever are enough, and what is missing is named."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from apps.commands import main
from steprag.extras import EXTRAS, extra_of
from steprag.records.jsonl import write_records
from steprag.types import Question
from tests.fakes import BY_ROLLOUTS, QUESTION, chat_reply, retrieve, serve
from tests.test_house import PACKAGES, ROOT, imported, modules

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OWN_WORDS = {  # their commands name their extra
    *("mwxml", "mwparserfromhell", "onnxruntime", "openvino", "mcp", "pymilvus", "anyio", "ray", "ddgs", "protego"),
    *("trafilatura", "deepspeed", "openenv", "openinference", "opentelemetry"),
    *("verifiers", "openai"),  # of a file that runs in verifiers' environment
}
BLOCKED = sorted({name for packages in EXTRAS.values() for name in packages})
WITHOUT_EXTRAS = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {BLOCKED!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
import contextlib, io, json
from apps.commands import main
told = []
for argv in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(argv)
        except SystemExit as ended:
            code = ended.code or 0
    told.append((code, out.getvalue(), err.getvalue()))
json.dump(told, sys.stdout)
"""


class Ended(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str


Steprag = Callable[[list[list[str]]], list[Ended]]
"""Runs commands one after the other."""


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    """Runs at the root of the checkout, without a PYTHONPATH that would show one environment another's packages."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=600, env=env, cwd=ROOT)


def without_extras(commands: list[list[str]]) -> list[Ended]:
    """In a process that finds no package of any extra."""
    ended = run(sys.executable, "-c", WITHOUT_EXTRAS, json.dumps(commands))
    assert ended.returncode == 0, ended.stderr
    return [Ended(*each) for each in json.loads(ended.stdout)]


def check_the_stages(steprag: Steprag, out: Path) -> None:
    """Help, generate, pairs, infer, evaluate and compare against an endpoint and a retriever's URL."""
    write_records(out / "q.jsonl", [Question(f"q{i}", f"{QUESTION} ({i})", ("lek",)) for i in range(6)])
    with serve(chat_reply()) as endpoint, serve(retrieve) as retriever:
        asked = ["--questions", str(out / "q.jsonl"), "--index", retriever.url, "--policy.base_url", endpoint.url,
                 "--policy.model", "double", "--policy.engine", "openai"]  # fmt: skip
        margin = ["--pairs.margin", "0.01"]
        commands = [
            ["--help"],
            ["generate", *asked, "--out", str(out / "trees"), "--search.rollouts", "4"],
            ["pairs", "--trees", str(out / "trees"), "--out", str(out / "pairs"), *BY_ROLLOUTS, *margin],
            ["infer", *asked, "--out", str(out / "a")],
            ["infer", *asked, "--out", str(out / "b"), "--policy.temperature", "0.7"],
            ["evaluate", "--predictions", str(out / "a")],
            ["compare", str(out / "a"), str(out / "b"), "--force", "--out", str(out / "compared")],
        ]
        helped, *others = told = steprag(commands)
        for command, ended in zip(commands, told, strict=True):
            assert ended.code == 0, f"{command[0]}: {ended.err}"
        assert retriever.requests
    assert "generate" in helped.out
    assert (out / "pairs" / "pairs.train.jsonl").stat().st_size
    assert json.loads((out / "a" / "metrics.json").read_text())["questions"] == 6
    assert "no plots: they need the extra `plots`: pip install -e '.[plots]'" in others[-1].err
    assert (out / "compared" / "compare.md").exists()


def test_the_stages_run_without_any_extra(tmp_path: Path) -> None:
    check_the_stages(without_extras, tmp_path)


def test_a_missing_package_is_one_line_that_names_the_extra(tmp_path: Path, pairs: Path) -> None:
    corpus, out = tmp_path / "corpus.jsonl", ["--out", str(tmp_path / "out")]
    corpus.write_text('{"id": "1", "title": "A", "text": "One river."}\n')
    (tmp_path / "corpus.jsonl.pdf").write_text("%PDF-1.4")
    with serve(retrieve) as retriever:
        commands = {
            "train": ["train", "--pairs", str(pairs), *out],
            "index": ["index", "build", "--corpus", str(corpus), *out],
            "documents": ["index", "build", "--corpus", f"{corpus}.pdf", *out, "--encoder", "none"],
            "service": ["index", "serve", "--index", str(tmp_path)],
            "engines": [
                "infer",
                "--dataset_name",
                "atlas",
                "--index",
                retriever.url,
                "--model",
                "smollm2-135m-instruct",
                *out,
            ],
            "data": ["pairs", "export", "--pairs", str(pairs), "--format", "verl", *out],
        }
        told = without_extras(list(commands.values()))
    for extra, ended in zip(commands, told, strict=True):
        assert ended.code == 2, ended.err
        line = rf"steprag: steprag .* needs the extra `{extra}` .*: pip install -e '\.\[{extra}\]'"
        assert re.fullmatch(line, ended.err.splitlines()[-1]), ended.err
        assert "Traceback" not in ended.err


def distribution(requirement: str) -> str:
    return re.split(r"[\[<>=]", requirement)[0].lower()


packages_distributions = cache(importlib.metadata.packages_distributions)  # it reads the files of every package


def brought(names: Iterable[str]) -> set[str]:
    """The installed distributions of import names, spelt as in pyproject.toml."""
    found = packages_distributions()
    return {each.lower().replace("_", "-") for name in names for each in found.get(name, [])}


def test_every_optional_import_has_an_extra_and_every_extra_its_imports() -> None:
    """`EXTRAS` against the code's imports and pyproject.toml's lists."""
    core = {distribution(each) for each in PROJECT["dependencies"]}
    ours = {*sys.stdlib_module_names, *PACKAGES, *OWN_WORDS}
    needed = {name.split(".")[0] for tree in modules().values() for name in imported(tree)} - ours
    assert {name for name in needed if extra_of(name) is None and not core & brought([name])} == set()
    optional_lists = PROJECT["optional-dependencies"]
    (everything,) = optional_lists["all"]
    assert set(everything.removeprefix("steprag[").removesuffix("]").split(",")) == set(EXTRAS)
    for extra, packages in EXTRAS.items():
        listed = {distribution(each) for each in optional_lists[extra]} - {"steprag"}
        assert listed <= brought(packages), f"{extra} brings what EXTRAS does not list"


def copied(source: Path) -> Path:
    """The checkout's files in another folder."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, files.split("\0")):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    return source


BESIDE_OTHERS = f"""
import importlib.metadata, pkgutil, sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
import training
assert training.MINE
del sys.modules["training"]
import steprag
for module in pkgutil.walk_packages(steprag.__path__, "steprag."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:  # the tool that a file is named after
        assert error.name.split(".")[0] not in {PACKAGES!r}, module.name
assert not {{*{PACKAGES[1:]!r}}} & set(sys.modules)
assert steprag.Index.build(["Lima is the capital of Peru."], encoder="none").search("Peru")
(start,) = importlib.metadata.entry_points(group="console_scripts", name="steprag")
assert importlib.metadata.entry_points(group="steprag")["configurations"].load()()
sys.exit(start.load()(["generate", "--config", "gpt-4o", "--help-all"]))
"""


@pytest.mark.slow
def test_a_wheel_claims_one_name_and_works_beside_a_module_of_the_same_name_as_a_stage(tmp_path: Path) -> None:
    source, site = copied(tmp_path / "source"), tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    built = run(*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(source))
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert {name.split("/")[0].partition("-")[0] for name in archive.namelist()} == {"steprag"}
        archive.extractall(site)
    (site / "training.py").write_text("MINE = True")
    env = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-P", "-c", BESIDE_OTHERS]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=env, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "--search.rollouts" in ended.stdout


@pytest.mark.slow
@pytest.mark.landing
@pytest.mark.timeout(1200)
def test_the_wheel_answers_in_a_bare_environment(tmp_path: Path, atlas_index: Path) -> None:
    """Three commands to an answer, and every command of SKILL.md. Needs the network."""
    tried = run("bash", "scripts/try_wheel.sh", str(tmp_path), str(atlas_index))
    assert tried.returncode == 0, tried.stdout[-2000:] + tried.stderr[-2000:]
    assert "\n9\nsource 1: " in tried.stdout
    assert "Thirty days" in tried.stdout


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_light_environment_runs_the_stages(tmp_path: Path) -> None:
    """A real environment with the core alone: what pip installs is all that the stages import. Needs the network."""
    source = copied(tmp_path / "source")
    made = run(sys.executable, "-m", "venv", str(tmp_path / "venv"))
    assert made.returncode == 0, made.stderr
    python = str(tmp_path / "venv" / "bin" / "python")
    installed = run(python, "-m", "pip", "install", "-q", "-c", str(ROOT / "requirements.txt"), "-e", str(source))
    assert installed.returncode == 0, installed.stderr
    assert run(python, "-c", "import torch").returncode == 1
    steprag = str(tmp_path / "venv" / "bin" / "steprag")

    def each(commands: list[list[str]]) -> list[Ended]:
        told = (run(steprag, *argv) for argv in commands)
        return [Ended(one.returncode, one.stdout, one.stderr) for one in told]

    check_the_stages(each, tmp_path)


def test_the_doctor_names_the_extras_and_what_each_lacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(EXTRAS, "plots", ("no_such_package", "json"))
    assert main(["doctor"]) == 0
    lines = {line.split(maxsplit=3)[2]: line for line in capsys.readouterr().out.splitlines() if " extra " in line}
    assert lines.keys() == EXTRAS.keys()
    assert "without no_such_package; for it: pip install -e '.[plots]'" in lines["plots"]
    assert lines["train"].startswith("ok")
