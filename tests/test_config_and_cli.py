"""Configuration, recipes and the command line."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Never

import pytest
import yaml
from pydantic import BaseModel

from apps.chat.config import ChatConfig
from apps.commands import COMMANDS, MOVED, NOUNS, configurations, main
from data_generation.config import GenerateConfig
from indexes.web.config import WebFileConfig
from inference.config import InferConfig
from preference.config import PairsStageConfig
from steprag.agent.grammars import GRAMMARS
from steprag.agent.judge import MORE
from steprag.agent.profiles import load_profile
from steprag.agent.retriever import PLACES
from steprag.config import load
from steprag.config.load import StageConfig, leaves, load_config
from steprag.config.recipes import index_of, out_beside
from steprag.config.sections import PromptConfig
from steprag.config.words import HELP
from steprag.console.progress import Progress
from steprag.errors import ConfigError
from steprag.runs.run import code_version
from training.config import TrainConfig

ROOT = Path(__file__).parent.parent
PACKAGES = ("steprag", "indexes", "data_generation", "preference", "training", "inference", "apps")


def test_precedence_is_option_environment_file_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("search: {rollouts: 1, children: 1, wave: 3}\n")
    monkeypatch.setenv("STEPRAG_SEARCH__CHILDREN", "2")
    monkeypatch.setenv("STEPRAG_SEARCH__ROLLOUTS", "2")
    search = load_config(GenerateConfig, str(file), {"search.rollouts": "5"}).search
    assert (search.rollouts, search.children, search.wave, search.exploration) == (5, 2, 3, 1.414)


def test_a_mapping_is_replaced_whole_by_every_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, base = tmp_path / "c.yaml", {"grpo": {"rewards": {"f1": 1.0}, "episodes": 3}}
    file.write_text("grpo: {rewards: {em: 2, format: 1}}\n")
    grpo = load_config(TrainConfig, str(file), base=base).grpo
    assert (grpo.rewards, grpo.episodes) == ({"em": 2.0, "format": 1.0}, 3)
    assert load_config(TrainConfig, str(file), {"grpo.rewards": "{em: 1}"}).grpo.rewards == {"em": 1.0}
    monkeypatch.setenv("STEPRAG_GRPO__REWARDS", "{f1: 4}")
    assert load_config(TrainConfig, str(file)).grpo.rewards == {"f1": 4.0}
    pairs = load_config(PairsStageConfig, None, {"card.sources": "{a: MIT}"}, {"card": {"sources": {"b": "MIT"}}})
    assert pairs.card.sources == {"a": "MIT"}


def test_a_list_is_typed_as_words_with_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    for typed in ("pairs,sft", "[pairs, sft]", "pairs"):
        products = load_config(PairsStageConfig, None, {"products": typed}).products
        assert products == (("pairs",) if typed == "pairs" else ("pairs", "sft"))
    asked = load_config(ChatConfig, None, {"serve.examples": "Who, and when?,Where?"}).serve.examples
    assert asked == ("Who, and when?", "Where?")
    monkeypatch.setenv("STEPRAG_REPORT_TO", "wandb,tensorboard")
    assert load_config(TrainConfig).report_to == ("wandb", "tensorboard")
    for typed, hosts in {"a.org, b.org": ("a.org", "b.org"), "a.org,": ("a.org",), "": ()}.items():
        assert load_config(ChatConfig, None, {"serve.hosts": typed}).serve.hosts == hosts
    assert load_config(TrainConfig, None, {"report_to": ""}).report_to == ()


@pytest.mark.parametrize(("recipe", "variable", "holds"), [
    ("policy: {engine: openai, base_url: https://example.org/v1}", "OPENAI_API_KEY", "k"),
    ("policy: {engine: openai, base_url: https://example.org/v1, api_key_env: MINE}", "MINE", ""),
    ("judge: {engine: openai, base_url: 'http://10.0.0.1:8000/v1'}", "OPENAI_API_KEY", "k"),
    ("web: {provider: brave, base_url: https://example.org}", "BRAVE_API_KEY", "k"),
    ("index: https://example.org", "STEPRAG_RETRIEVER_TOKEN", "k"),
])  # fmt: skip
def test_a_recipe_that_decides_where_a_key_goes_is_told_of(
    recipe: str, variable: str, holds: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    file = tmp_path / "c.yaml"
    monkeypatch.setenv(variable, holds)

    def said(text: str) -> str:
        file.write_text(text)
        load_config(WebFileConfig if text.startswith("web") else GenerateConfig, str(file))
        index_of(argparse.Namespace(index=None if text.startswith("index") else "here", config=str(file)))
        return capsys.readouterr().err

    assert f"{file} sends what ${variable} holds to http" in said(recipe)
    if holds:
        assert said(recipe.replace("https://example.org", "http://127.0.0.1:1").replace("10.0.0.1", "localhost")) == ""
        monkeypatch.delenv(variable)
        assert said(recipe) == ""


@pytest.mark.parametrize(("options", "message"), [
    ({"search.rolouts": 3}, "unknown key 'search.rolouts'; did you mean 'search.rollouts'?"),
    ({"serch.rollouts": 3}, "unknown key 'serch'; did you mean 'search'?"),
    ({"search.rollouts": "many"}, "search.rollouts: input should be a valid integer"),
    ({"episode.depth": 0}, "episode.depth: input should be greater than or equal to 1, not 0"),
    ({"policy.engine": "openai", "policy.top_k": 5}, "policy: top_k and min_p are for llamacpp, vllm and sglang"),
    ({"policy.engine": "sglang"}, "policy: engine sglang is not started here; give the base_url of one that runs"),
])  # fmt: skip
def test_wrong_keys_and_values_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(GenerateConfig, None, options)
    assert message in str(caught.value)


def test_a_section_whose_keys_are_all_comments_says_nothing(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text("search:\n  # rollouts: 3\nseed: 4\n")
    assert load_config(GenerateConfig, str(file)) == load_config(GenerateConfig, None, {"seed": 4})


@pytest.mark.parametrize("damage", ["", "{", "[1]", "\0", '{"stage": "index"', None])
def test_a_damaged_folder_beside_the_index_is_passed_over_by_name(
    damage: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, manifest in (("whole", '{"stage": "index"}'), ("other", damage)):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "passages.jsonl").touch()
        (folder / "manifest.json").mkdir() if manifest is None else (folder / "manifest.json").write_text(manifest)
    os.utime("runs/whole/manifest.json", (1, 1))
    assert index_of(argparse.Namespace(index=None, config=None)) == str(Path("runs/whole"))
    said = capsys.readouterr().err
    assert f"index: passing over {Path('runs/other')}: " in said


def test_the_default_index_holds_what_the_questions_mark_and_is_of_no_run_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for age, (name, title) in enumerate((("mine/index", "Lima"), ("wiki", "Lima"), ("mine/index-train", "Lima"),
                                         ("notes", "Oslo"))):  # fmt: skip
        (folder := tmp_path / "runs" / name).mkdir(parents=True)
        (folder / "passages.jsonl").write_text(json.dumps({"id": "1", "title": title, "text": "x"}) + "\n")
        (folder / "manifest.json").write_text('{"stage": "index"}')
        os.utime(folder / "manifest.json", (age, age))
    asked = {"id": "1", "question": "?", "golden_answers": ["x"], "metadata": {"supporting_titles": ["Lima"]}}
    (questions := tmp_path / "q.jsonl").write_text(json.dumps(asked) + "\n")
    none = argparse.Namespace(index=None, config=None)
    assert [index_of(none), index_of(none, questions=questions)] == ["runs/notes", "runs/wiki"]
    shutil.rmtree("runs/wiki")
    assert index_of(none, questions=questions) == "runs/mine/index"
    (tmp_path / "runs/mine/trees").mkdir()
    (tmp_path / "runs/mine/trees/manifest.json").write_text('{"stage": "generate", "status": "failed"}')
    with pytest.raises(ConfigError, match="holds a passage that .*q.jsonl marks; the newest is runs/notes"):
        index_of(none, questions=questions)
    assert "passing over runs/mine/index: runs/mine/trees did not end well" in capsys.readouterr().err
    assert index_of(argparse.Namespace(index="runs/notes", config=None), questions=questions) == "runs/notes"
    assert "warning: runs/notes holds no passage that" in capsys.readouterr().err


def test_what_is_made_of_a_run_lies_in_it_and_what_is_made_of_a_file_under_runs(tmp_path: Path) -> None:
    (file := tmp_path / "trees.jsonl").touch()
    made = [out_beside(argparse.Namespace(out=None), place, "pairs") for place in (tmp_path, file)]
    assert made == [tmp_path / "pairs", Path("runs/pairs-trees")]


def test_a_missing_recipe_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not found"):
        load_config(GenerateConfig, str(tmp_path / "none.yaml"))


@pytest.mark.parametrize(("content", "complaint"), [
    (b"seed: 1\nmodel: caf\xe9\n", ":2: not UTF-8"),
    (b"\xff\xfes\0e\0", ":1: not UTF-8"),
    (b"search:\n  depth: [1\n", ":3: not YAML"),
    (b"episode: {dept: 3}\n", "unknown key 'episode.dept'; did you mean 'episode.depth'"),
    (b"5: x\n", "the key 5 is no text"),
    (b"search: {on: yes}\n", "unknown key 'search.on'"),
    (b"seed: 1\nseed: 2\n", ":2: not YAML: a second 'seed'; make one of both"),
    (b"policy.model: x\n", "unknown key 'policy.model'; in a file a section holds it: policy: {model: \u2026}"),
    (b"search:\n  null: 3\n", "the key None is no text"),
    (b"search: [1, 2]\n", "search: input should be an object"),
    (b"search: 7\n", "search: input should be an object"),
    (b"search: !!binary aGVsbG8=\n", "search: input should be an object"),
    (b"search: !!set {a, b}\n", "search: input should be an object"),
    (b"search: {preset: [1]}\n", "search.preset: input should be"),
    (b"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", ":2: not YAML: an alias"),
    (b"search: &s {rollouts: *s}\n", "an alias"),
    (b"[" * 20_000, "cannot be read: RecursionError"),
    (b"seed: " + b"9" * 5_000, "cannot be read: ValueError"),
    (b"? [1]\n: 2\n", "not YAML: found unhashable key"),
    (b"a: \x00", "not YAML"),
    (b'a: ["x", "\\ud83d\\ude00"]', "half of a surrogate pair"),
    (b"- 1", "expected keys and values"),
    (b"#" * (1 << 20) + b"\n", "longer than 1,048,576 bytes"),
    (b"seed: 1\nsearch: {rollouts: 0}\n", "search.rollouts: input should be greater than or equal to 1"),
    (b"!!python/object/apply:os.system [ls]\n", "could not determine a constructor"),
])  # fmt: skip
def test_a_slip_in_a_recipe_is_one_line_with_the_file(
    tmp_path: Path, content: bytes, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_bytes(content)
    (tmp_path / "q.jsonl").touch()
    sources = ["--questions", str(tmp_path / "q.jsonl"), "--index", "x", "--out", str(tmp_path / "out")]
    assert main(["generate", *sources, "--config", str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"steprag: {file}:")
    assert complaint in line
    with pytest.raises(ConfigError, match="recipe.yaml"):
        load_profile(str(file))


def configs() -> Iterator[type[StageConfig]]:
    """The configurations of all commands."""
    yield from configurations()


def test_the_environment_may_hold_keys_of_other_commands_but_none_that_nobody_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STEPRAG_SEARCH__ROLLOUTS", "32")  # the README's own example
    monkeypatch.setenv("STEPRAG_GRPO__EPISODES", "4")
    monkeypatch.setenv("STEPRAG_LIMIT", "7")
    monkeypatch.setenv("STEPRAG_CACHE", "/somewhere")
    for config in configs():
        assert load_config(config, None, {"web.provider": "ddgs"} if config is WebFileConfig else {})
    assert load_config(GenerateConfig).search.rollouts == 32
    assert load_config(TrainConfig).grpo.episodes == 4
    assert (load_config(InferConfig).limit, load_config(GenerateConfig).limit) == (7, 7)
    for name, near in {"SERCH__ROLLOUTS": "search.rollouts", "SEARCH__ROLOUTS": "search.rollouts"}.items():
        with monkeypatch.context() as patch:
            patch.setenv(f"STEPRAG_{name}", "32")
            with pytest.raises(ConfigError, match=rf"\$STEPRAG_{name}: unknown key .*; did you mean '{near}'"):
                load_config(InferConfig)


def test_a_section_means_one_thing_in_every_command() -> None:
    """A section that two commands have is one class, or one derived from it: their keys can be set at once."""
    sections: dict[str, type[BaseModel]] = {}
    for config in configs():
        for key, field in config.model_fields.items():
            kind = field.annotation
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                other = sections.setdefault(key, kind)
                assert issubclass(kind, other) or issubclass(other, kind), (key, kind, other)


def test_options_may_say_none() -> None:
    assert load_config(GenerateConfig, None, {"policy.base_url": "none"}).policy.base_url is None
    assert load_config(TrainConfig, None, {"grpo.scale": "none"}).grpo.scale == "none"


def _schemas() -> dict[str, type[StageConfig]]:
    index = importlib.import_module("indexes.commands.build").IndexConfig
    return {"generation": GenerateConfig, "inference": InferConfig, "preference": PairsStageConfig,
            "training": TrainConfig, "index": index, "web": WebFileConfig}  # fmt: skip


RECIPES = sorted((ROOT / "configs").glob("*/*.yaml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_recipe_loads_and_differs_from_the_defaults(path: Path) -> None:
    if path.parent.name in ("prompts", "grammars"):
        assert path.stem in GRAMMARS if path.parent.name == "grammars" else load_profile(path.stem).hash
        return
    if path.parent.name == "judge":
        words = yaml.safe_load(path.read_text())
        for prompt in words.values() if path.stem == "ragas" else [words]:
            assert prompt.keys() - {"gold", *MORE} == {"system", "user"}
        return
    if path.parent.name == "chat":  # patterns of talk, and what is said to it; the rewriter's words
        kinds = yaml.safe_load((path.parent / "route.yaml").read_text()).keys()
        told = yaml.safe_load(path.read_text()).keys()
        assert told <= kinds if path.stem in ("route", "replies") else told == {"system", "choose", "turn", "user"}
        return
    if path.parent.name == "questions":
        assert yaml.safe_load(path.read_text()).keys() == {"write", "one", "bridge", "read"}
        return
    schema = _schemas()[path.parent.name]
    config = load_config(schema, str(path))
    assert config != schema(), "a recipe holds only what differs from the defaults"
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    assert len(lines) <= 20
    assert yaml.safe_load(path.read_text())


def test_the_recipes_of_a_model_show_it_the_prompts_of_its_trees() -> None:
    def prompt(stage: str, name: str) -> PromptConfig:
        return vars(load_config(_schemas()[stage], str(ROOT / "configs" / stage / f"{name}.yaml")))["prompt"]

    trees = prompt("generation", "qwen2.5-7b-vllm")
    assert trees.examples, "an untrained model needs worked examples"
    assert prompt("inference", "qwen2.5-7b-vllm") == trees
    assert prompt("inference", "qwen2.5-7b-stack-vllm") == prompt("training", "qwen2.5-7b-stack-grpo")
    assert prompt("training", "qwen2.5-7b-grpo") == trees


@pytest.mark.parametrize("command", ["generate", "infer", "ask", "serve", "train", "pairs", "index search"])
def test_help_says_all_that_may_stand_for_an_index(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    assert PLACES in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("schema", [GenerateConfig, InferConfig, PairsStageConfig, TrainConfig, WebFileConfig])
def test_every_key_is_explained(schema: type[StageConfig]) -> None:
    assert [key for key, field in leaves(schema) if not field.description] == []


def test_every_command_explains_itself_and_the_core_loads_without_an_engine() -> None:
    modules = [f"steprag.{path.stem}" for path in (ROOT / "steprag").glob("*.py") if path.stem != "__init__"]
    code = (
        "import importlib, sys\nfrom apps.commands import COMMANDS, UNTOUCHED, main\n"
        "engines = {'torch', 'faiss', 'transformers', 'sentence_transformers', 'scipy', 'datasets', 'matplotlib',\n"
        "           'fastapi', 'starlette', 'uvicorn', 'prometheus_client', 'mcp', 'aiohttp', 'httpx2', 'jinja2',\n"
        "           'bm25s', 'opentelemetry', 'openinference', 'tqdm', 'http.client', 'pydantic.plugin._loader'}\n"
        "for command in COMMANDS:\n"
        "    sys.argv[1:] = [*command.words.split(), '--help']\n"
        "    try: main()\n    except SystemExit as end: assert not end.code\n"
        "    loaded = {name for name, one in sys.modules.items() if type(one).__name__ != '_Untouched'}\n"
        "    assert not {*engines, *UNTOUCHED} & loaded, (command, {*engines, *UNTOUCHED} & loaded)\n"
        "import asyncio, yaml\nassert asyncio.run(asyncio.sleep(0, 5)) == yaml.safe_load('5')\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "assert not {'torch', 'faiss', 'transformers', 'vllm', 'fastapi'} & set(sys.modules)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("usage: steprag") == len(COMMANDS)


@pytest.mark.parametrize(("typed", "said"), [
    ("generat --limit 3", "unknown command 'generat'; did you mean 'generate'?"),
    ("index buidl", "unknown command 'index buidl'; did you mean 'index build'?"),
    ("tree merge", "unknown command 'tree merge'; did you mean 'trees merge'?"),
    ("serve --prot 8300", "unknown option '--prot'; did you mean '--port'?"),
    ("infer --top-k 5 --index x", "or --episode.top_k (passages a query brings); name its section"),
    ("infer --topk 5 --index x", "--topk may be --policy.top_k (tokens that may be sampled"),
    ("view --run x", "unknown option '--run'; what it is about stands bare: steprag view RUN"),
    ("train --data x", "unknown option '--data'; did you mean '--pairs'?"),
    ("serve --share", "unknown option '--share'; did you mean '--host'?"),
    ("serve --xyzzy 1", "unknown option '--xyzzy'; steprag serve --help-all lists the options"),
    ("search Tirana", "unknown command 'search Tirana'; did you mean 'index search'?"),
    ("frobnicate", "unknown command 'frobnicate'; steprag --help-all lists the commands"),
    ("ask Who leads --index x it", "one QUESTION, not 3 words; put it in quotes: steprag ask 'Who leads it'"),
    ("doctor me", "steprag doctor: 'me' is not expected"),
    ("pairs x --trees y", "steprag pairs: x and --trees say different things; give one of them"),
    ("train", "--pairs: stage dpo learns from --pairs; give it"),
    ("serve --port 99999 --index x", "serve.port: input should be less than or equal to 65535"),
    ("serve --base-url nowhere --index x", "policy: base_url is no URL of an endpoint"),
    ("generate --base_url=nowhere --questions README.md --index x --out y", "policy: base_url is no URL"),
    ("generate --config gtp-4o --questions x --index x --out y", "no recipe of that name; did you mean 'gpt-4o'?"),
    ("generate --config gpt-4o --policy.n 1 --questions x --index x --out y", "unknown option '--policy.n'"),
    ("generate --config gpt-4o --questions nowhere.jsonl --index x --out y", "question file not found: nowhere.jsonl"),
    ("infer --config demo --questions nowhere.jsonl --index x", "question file not found: nowhere.jsonl"),
    ("train --config demo --pairs x --out y", "several recipes have that name"),
    ("trees replay --config demo --trees nowhere --out y", "nowhere"),
    ("pairs --trees x --pairs.margn 1", "did you mean '--pairs.margin'"),
])  # fmt: skip
def test_what_is_nearly_right_is_taken_or_named(typed: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(typed.split()) == 2
    lines = capsys.readouterr().err.splitlines()
    assert said in lines[-1]
    assert len(lines) == 1 or "--config" in typed, "a recipe may have things to tell first"


def test_a_missing_option_is_said_below_a_short_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["pairs", "leakage"])
    said = capsys.readouterr().err.splitlines()
    assert len(said) < 5
    assert "[--KEY VALUE …]" in " ".join(said)
    assert said[-1].endswith("the following arguments are required: --against")


class Parsed(Exception):
    """What a parser made of a command line; nothing more was done."""


@pytest.mark.parametrize("words", HELP)
def test_help_is_short_and_its_examples_are_typed_right(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit):
        main([*words.split(), "--help"])
    said = capsys.readouterr().out
    shown, examples = HELP[words]
    assert said.count("\n  --") <= 13
    assert [name for name in shown.split() if f" --{name}" not in " ".join(said.split()).replace("(also as", "")] == []
    assert [f"\n  steprag {words} {line}\n" in said for line in examples] == [True, True]
    if "--help-all" in said:
        with pytest.raises(SystemExit):
            main([*words.split(), "--help-all"])
        assert capsys.readouterr().out.count("\n  --") > said.count("\n  --")
    for line in examples:
        parsed([*words.split(), *shlex.split(line)], monkeypatch)


def parsed(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a command reads of its line, in which no option is unknown."""
    whole = load.parse_known

    def ended(*given: Any) -> Never:
        raise Parsed(*whole(*given))

    with monkeypatch.context() as patch, pytest.raises(Parsed) as seen:
        patch.setattr(load, "parse_known", ended)
        main(argv)
    given, unknown = seen.value.args
    assert unknown == []
    return vars(given)


ABOUT = {
    "corpus": "index build, plan index", "faiss": "index adopt --corpus x", "query": "index search",
    "index": "index serve, index upload --to x, index export, index evaluate --questions x, tools list, serve, adapt "
    "questions", "model": "policy serve, policy weights", "adapter": "policy convert", "shards": "trees merge x",
    "pairs": "plan train, train, pairs export --format verl, pairs leakage --against x", "run": "score export, pairs "
    "people", "questions": "plan, plan infer, generate, infer, environment --index x", "question": "ask",
    "trees": "plan labels, trees replay, trees weave, trees belief, pairs", "episodes": "trees worked", "calls":
    "trees recorded", "file": "pairs import, pairs instruct", "upstream": "record", "way": "serve --mcp", "url": "chat",
    "predictions": "score evaluate, score judge", "worked": "score readings", "paths": "score lengths",
    "runs": "compare, view", "folders": "check", "folder": "adapt",
    "": "demo, reproduce, reproduce stack, tunnel, doctor",
}  # fmt: skip
"""By what a command is about, the commands and what else they must be given."""


@pytest.mark.parametrize(("name", "line"), [(name, one) for name, some in ABOUT.items() for one in some.split(", ")])
def test_what_a_command_is_about_may_stand_bare(
    name: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, word, rest = line.partition(" --")[0].split(), "http" if name == "way" else "it", line.split()
    if not name:
        assert main([*words, word]) == 2
        assert "'it' is not expected" in capsys.readouterr().err
        return
    given = parsed([*words, word, *rest[len(words) :]], monkeypatch)
    assert (given[name][-1] if isinstance(given[name], list) else str(given[name])) == word


def test_every_command_is_about_something_known() -> None:
    known = {one.partition(" --")[0] for some in ABOUT.values() for one in some.split(", ")}
    assert {one.words for one in COMMANDS} - known == {"policy", "serve --mcp", "trees merge"}


@pytest.mark.parametrize(("line", "said"), [
    ("-V", code_version()), ("infer x --version", code_version()), ("index -V", code_version()),
    ("--help-all", "  pairs leakage "), ("help", "usage: steprag COMMAND [options]"),
    ("index --help-all", "  index adopt "),
    ("help index build", "usage: steprag index build CORPUS [options]"), ("help trees", "  trees weave "),
    ("help train", "usage: steprag train [DIR] [options]"), ("policy serve --help-all", "  --api_key_env"),
])  # fmt: skip
def test_version_and_help_are_had_everywhere(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with suppress(SystemExit):
        assert main(line.split()) == 0
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("noun", NOUNS)
def test_a_noun_alone_shows_its_commands_and_old_words_still_work(
    noun: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([noun]) == 0
    said = capsys.readouterr().out
    assert [one.words for one in COMMANDS if one.words.split()[0] == noun and f"\n  {one.words} " not in said] == []
    for old, new in MOVED.items():
        if new.startswith(noun) or (new == "check" and noun == "tools"):
            with pytest.raises(SystemExit):
                main([*old.split(), "--help"])
            assert capsys.readouterr().out.startswith(f"usage: steprag {new} ")


@pytest.mark.parametrize(("command", "words"), [
    ("inference.py", "infer"), ("-m data_generation", "generate"), ("data_generation.py", "generate"),
])  # fmt: skip
def test_the_published_command_lines_are_commands_of_ours(command: str, words: str) -> None:
    line = [sys.executable, *command.split(), "--help"]
    ended = subprocess.run(line, capture_output=True, text=True, check=True, cwd=ROOT)
    assert ended.stdout.startswith(f"usage: steprag {words} [FILE] [options]")
    for name in ("inference", "data_generation"):
        assert importlib.import_module(name).__file__ == str(ROOT / name / "__init__.py"), "not the file beside it"
    assert "py-modules" not in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def test_packages_are_imported_from_the_checkout(tmp_path: Path) -> None:
    code = f"import {', '.join(PACKAGES)}; print(*({', '.join(f'{room}.__file__' for room in PACKAGES)}), sep='\\n')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert [Path(line).parent for line in ended.stdout.split()] == [ROOT / room for room in PACKAGES], ended.stderr


def test_worked_takes_the_episode_as_every_command_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["worked", *(f"--{name}={tmp_path}" for name in ("episodes", "corpus", "index", "out"))]
    assert main([*command, "--depth", "5"]) == 2
    assert "is no index folder" in capsys.readouterr().err
    assert main([*command, "--depth", "0"]) == 2
    assert "episode.depth: input should be greater than or equal to 1" in capsys.readouterr().err


KILLED = """
import os, signal
from steprag.console.progress import Progress, say
from tqdm import tqdm
say("begun")
tqdm(disable=True)
if (child := os.fork()) == 0:
    for bar in (tqdm, type(Progress("work", 2, "units")._bar)):
        bar.get_lock().acquire()
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(child, 0)
with Progress("work", 2, "units") as progress:
    progress.advance(2)
"""


def test_a_process_killed_over_its_bar_stops_no_other() -> None:
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, timeout=30,
                          cwd=Path(__file__).parent.parent)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "work: 2/2 units" in done.stderr


@pytest.mark.parametrize(("total", "expected"), [(2, "work: 2/2 units in 0 s"), (None, "")])
def test_the_last_line_says_it_all(total: int | None, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("work", total, "units") as progress:
        progress.advance(notes="1 failed")
        progress.advance(notes="2 failed")
    said = capsys.readouterr().err
    assert expected in said
    assert said.endswith("2 failed\n") == bool(total)
