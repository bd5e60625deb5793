"""What a command uses if nothing is named: the recipe of its model, and the recipe's index or the newest one."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from steprag.config.sections import RetrieverConfig, engine_of
from steprag.config.words import OPTION
from steprag.console.progress import say, say_next
from steprag.errors import ConfigError, DataError, nearest, quoted
from steprag.net.hosts import is_local
from steprag.records.inputs import read_questions
from steprag.records.jsonl import read_json, read_records
from steprag.records.yaml_files import read_yaml
from steprag.runs.run import NUMBERED
from steprag.scores.gold import Gold, gold_of
from steprag.types import Passage

INDEX = "index"
"""The key of a recipe, and the option, that name what is searched."""
RUNS = "runs"
"""Where commands make the folders that nobody named, and look for an index."""
INDEXES = "indexes"
"""Where FlashRAG's commands put an index, and those of ours look too."""
PASSAGES = "passages.jsonl"
LOOKED = 200_000
"""Passages of an index that are compared with what questions mark: a second or two."""
BROKEN = ("failed", "interrupted", "running")
"""Of a run's statuses: an index beside it, as `steprag adapt` makes, is not taken unasked."""
NEWEST = f"the recipe's, else the newest under {RUNS} or {INDEXES}"
RECIPES = Path(__file__).parents[2] / "configs"

KIND = {**dict.fromkeys(("adapt", "generate", "plan", "trees"), "generation"),
         **dict.fromkeys(("infer", "ask", "serve"), "inference")}  # fmt: skip
"""Of the recipes that several stages have by one name: whose a command takes."""

PUBLISHED = re.compile(r"(?:^|[/\\]|--)qwen2\.5-7b-instruct-(reasonrag|rag-lora)(?![\w-])", re.IGNORECASE)
"""How ReasonRAG's checkpoint and its adapter are called on the hub, by two owners, and so in folders and endpoints."""


def warn_of_key(file: str | None, url: str | None, variable: str | None, *, named: bool = False) -> None:
    """Warns if a recipe, which may be a stranger's, decides who gets a key. `named`: it names the variable too."""
    if url and variable and (named or (os.environ.get(variable) and not is_local(url))):
        say(f"warning: {file} sends what ${variable} holds to {url[:200]}; is that endpoint yours?")


def index_of(arguments: argparse.Namespace, *, newest: bool = True, questions: Path | None = None) -> str:
    """What `--index` names, or else the recipe's key `index`, or else the `newest` index, and says so: where passages
    are marked in a file of `questions`, one that holds some. Raises ConfigError where there is none.
    """
    recipe = read_yaml(Path(arguments.config)) if arguments.index is None and arguments.config is not None else {}
    named = recipe.get(INDEX) if arguments.index is None else arguments.index
    if isinstance(named, str) and named:
        if recipe and "://" in named:
            said = recipe.get("retriever")
            token = said.get("token_env") if isinstance(said, dict) else None
            warn_of_key(arguments.config, named, str(token or RetrieverConfig().token_env))
        if questions and not _holds(Path(named), questions):
            say(f"warning: {named} holds no passage that {questions} marks; is it the index of these questions?")
        say_next("serve", named)
        return named
    if named is not None:
        where = arguments.config if arguments.index is None else "--index"
        raise ConfigError(f"{where}: index names a folder, a URL or a file, not {quoted(named)}")
    passed: list[Path] = []
    for folder in _indexes() if newest else ():
        if not questions or _holds(folder, questions):
            theirs = " of these questions" if questions and _marked(questions) else ""
            say(f"index: {folder}, the newest under {RUNS} or {INDEXES}{theirs}; --index names another")
            say_next("serve", folder)
            return str(folder)
        passed.append(folder)
    if passed:
        raise ConfigError(f"no index under {RUNS} or {INDEXES} holds a passage that {questions} marks; the newest is "
                          f"{passed[0]}: build theirs (steprag index build), or give --index")  # fmt: skip
    raise ConfigError(
        f"there is no index under {RUNS} or {INDEXES}: give --index, or a recipe (--config FILE) with the key index; "
        "steprag demo builds runs/demo/index"
    )


def out_of(given: argparse.Namespace, stage: str, about: Path | str) -> Path:
    """The run folder that `--out` names, or else a `NUMBERED` one after the stage and what it is about."""
    return Path(given.out or f"{RUNS}/{stage}-{stem_of(about)}{NUMBERED}")


def out_beside(given: argparse.Namespace, place: Path, name: str) -> Path:
    """The folder that `--out` names, or else `name` in a folder, or in a file's run folder; under `RUNS` where a file
    is in none.
    """
    folder = place if place.is_dir() else place.parent
    inside = place.is_dir() or (folder / "manifest.json").exists()
    return Path(given.out or (folder / name if inside else f"{RUNS}/{name}-{stem_of(place)}"))


def stem_of(about: Path | str) -> str:
    """What a folder, file, address or function is called in the names of folders that are made of it."""
    return re.sub(r"[^\w-]+", "-", Path(about).absolute().name.partition(".")[0]).strip("-") or "all"


def _indexes() -> Iterator[Path]:
    """The index folders in `RUNS` or `INDEXES`, or by the name of `INDEX` in a folder of runs that ended well; the one
    that was finished last first.
    """
    places = [Path(top).glob(f"{depth}/manifest.json") for top in (RUNS, INDEXES) for depth in ("*", "*/*")]
    manifests = [file for found in places for file in found]
    for file in sorted(manifests, key=lambda one: one.stat().st_mtime, reverse=True):
        try:
            if not file.with_name(PASSAGES).is_file() or read_json(file).get("stage") != INDEX:
                continue
            beside = file.parents[1].glob("*/manifest.json") if file.parents[1].parent.name in (RUNS, INDEXES) else ()
            broken = next((one.parent for one in beside if read_json(one).get("status") in BROKEN), None)
            if broken:
                say(f"index: passing over {file.parent}: {broken} did not end well")
            elif file.parent.name == INDEX or file.parents[1].name in (RUNS, INDEXES):
                yield file.parent
        except (DataError, OSError) as error:
            say(f"index: passing over {file.parent}: {error}")


@cache
def _marked(questions: Path) -> Gold | None:
    """What the questions of a file mark, in one; None where they mark nothing."""
    golds = [gold for one in read_questions(questions) if (gold := gold_of(one))]
    titles, ids = (frozenset[str]().union(*(getattr(one, kind) for one in golds)) for kind in ("titles", "ids"))
    return Gold(titles, ids, any_is_enough=True) if golds else None


def _holds(index: Path, questions: Path) -> bool:
    """Whether a passage that the questions mark, if they do, is among an index's first `LOOKED`; so it may be where
    there are more, or no folder.
    """
    if not (index / PASSAGES).is_file() or not (marked := _marked(questions)):
        return True
    passages = read_records(index / PASSAGES, Passage)
    return any(marked.matches(one) for one in islice(passages, LOOKED)) or next(passages, None) is not None


def recipe_named(named: str, word: str) -> str:
    """The file that `--config` names, or the recipe of ours of that name; of several that of the stage whose command
    begins with the word. Raises ConfigError where there is neither.
    """
    if Path(named).exists() or "/" in named:
        return named
    kinds = ("generation", "index", "inference", "preference", "training")
    recipes = [file for kind in kinds for file in RECIPES.glob(f"{kind}/*.yaml")]
    found = [file for file in recipes if named in (file.stem, file.name)]
    found = [file for file in found if file.parent.name == KIND.get(word)] or found
    if len(found) > 1:
        raise ConfigError(f"--config {quoted(named)}: several recipes have that name: {', '.join(map(str, found))}")
    if not found:
        known = nearest(named, [file.stem for file in recipes])
        raise ConfigError(f"--config {quoted(named)}: no such file, and no recipe of that name{known}")
    return str(found[0])


def recipe_of_model(given: Mapping[str, Any], kind: str) -> Path | None:
    """The stage's recipe that bears the name of the model which options name alone, and that is for it; for a model or
    an adapter that is `PUBLISHED` the one that has its prompts, whatever serves it.
    """
    name = given.get("policy.model")
    for published in map(PUBLISHED.search, (str(name), str(given.get("policy.adapter")))):
        if published and kind == "inference" and not published.string.endswith(".gguf"):
            return RECIPES / kind / ("reasonrag.yaml" if "reason" in published[1].lower() else "reasonrag-lora.yaml")
    file = RECIPES / kind / f"{name}.yaml"
    if not name or {"policy.engine", "policy.base_url"} & {*given} or "/" in name or not os.path.isfile(file):
        return None
    return file if read_yaml(file).get("policy", {}).get("model") == name else None


def fit_recipe(given: dict[str, Any], recipe: Path) -> None:
    """Fits a recipe that `--model` chose to what the parser read, `given`: an adapter goes on the recipe's base, but
    keeps the name of a model where an endpoint serves it; and what is here serves it, where nobody names an engine.
    """
    model, adapter, url, engine = (f"{OPTION}policy.{key}" for key in ("model", "adapter", "base_url", "engine"))
    said = {name for name in ("BASE_URL", "ENGINE") if os.environ.get(f"STEPRAG_POLICY__{name}")}
    named, remote = given.get(model) or given.get(adapter), url in given or "BASE_URL" in said
    if not remote and engine not in given and not said and (found := engine_of(str(named))):
        given[engine] = found
    if read_yaml(recipe).get("policy", {}).get("adapter") and model in given and adapter not in given:
        given[adapter] = "none" if remote else given.pop(model)
