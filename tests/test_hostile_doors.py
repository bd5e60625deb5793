"""Every door of the program, fed with files that a seeded mutation made harmful: a line and an exit code, no traceback.

A door is a command, or what a command does first, and the files of a stranger that it reads. Files whose hashes a
manifest holds are sealed again, as a stranger would who made the folder.
"""

from __future__ import annotations

import asyncio
import gc
import random
import re
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from apps.chat.turns.store import TurnStore
from apps.commands import main
from data_generation.config import GenerateConfig
from indexes import open_retriever
from indexes.addons.bm25 import Bm25Config, add_bm25
from indexes.addons.links import add_links
from indexes.commands.check import check_folder
from indexes.config import IndexConfig
from indexes.folder.manifest import read_index_manifest
from inference.config import InferConfig
from preference.exchange.export import FORMATS
from steprag.agent.checkpoints import profile_for, special_tokens
from steprag.agent.profiles import PROFILES, load_profile
from steprag.agent.retriever import Retriever
from steprag.config.load import load_config
from steprag.config.sections import PromptConfig, RetrieverConfig
from steprag.engines.models import resolve_model
from steprag.engines.weights import load_tokenizer
from steprag.errors import StepragError
from steprag.records.jsonl import write_records
from steprag.records.sealed import FILES
from steprag.records.training_rows import MARKS, WrongPair
from steprag.runs.run import checked_manifest, read_manifest
from steprag.types import Question
from tests.fakes import BY_ROLLOUTS, QUESTION, Endpoint, chat_reply, serve
from tests.hostile_files import mutate, mutated_bytes, reseal
from tests.levels import SEED, rounds
from tests.models import make_gguf
from tests.test_people import conversations
from tests.training_parts import train
from tests.web_site import QUERY, web, web_file
from training.config import TrainConfig

SECONDS = 60
"""After so long a door hangs."""
ROUNDS, DAMAGES = rounds(6, 25, 150), rounds(100, 200, 1000)
"""Mutations a door, and a kind of folder."""
RUNS = ("generate", "infer", "pairs", "chat")


class Hang(BaseException):
    """A door took too long."""


@dataclass(frozen=True)
class Place:
    """The good files: `folder` holds them all, `endpoint` answers for a model."""

    folder: Path
    endpoint: Endpoint


Use = Callable[[Path, Place], object]
"""Reads the harmful folder or file at a path. A StepragError is a refusal, an int an exit code."""


@dataclass(frozen=True)
class DoorCase:
    """`files`: below `thing`, those that are changed (globs). `sealed`: the folders whose manifests are made to fit."""

    thing: str
    files: tuple[str, ...]
    use: Use
    sealed: tuple[str, ...] = ()


@pytest.fixture(scope="module")
def place(
    world_index: Path, warm: Path, tiny: Path, pairs: Path, encoder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("good")
    asked = [Question(f"q{i}", f"{QUESTION} ({i})", ("lek",), {"type": "bridge", "n": [1]}) for i in (1, 2, 3)]
    write_records(folder / "questions.jsonl", asked)
    shutil.copy(world_index.parent / "corpus.jsonl", folder / "corpus.jsonl")
    index = shutil.copytree(world_index, folder / "index")
    manifest = read_index_manifest(index)
    add_bm25(index, manifest, Bm25Config())
    add_links(index, manifest)
    shutil.copytree(warm, folder / "adapter", ignore=shutil.ignore_patterns("checkpoint-*"))
    shutil.copytree(tiny, folder / "model")
    assert train(tiny, pairs, folder / "full", "sft", "--max_steps", "1", "--finetuning", "full") == 0
    make_gguf(folder / "model.gguf")
    conversations(folder / "chat")
    shutil.copytree(encoder, folder / "encoder")
    with web() as here:
        first = web_file(folder, here, encoder, snapshot=str(folder / "snapshot"))
        asyncio.run(one_search(open_retriever(first), QUERY))
        web_file(folder, here, encoder, snapshot="SNAPSHOT", frozen=True).rename(folder / "frozen.yaml")
    with serve(chat_reply()) as endpoint:
        good = Place(folder, endpoint)
        for stage in ("generate", "infer"):
            assert command(f"{stage} {AGAIN}")(folder / stage, good) == 0
        paired = f"pairs --trees GOOD/generate --out PATH --pairs.margin 0.01 {' '.join(BY_ROLLOUTS)}"
        assert command(paired)(folder / "pairs", good) == 0
        assert command("pairs export --pairs PATH --format proguide --out GOOD/out")(folder / "pairs", good) == 0
        marks = [WrongPair(f"{n}", "q1", "good", "bad", "2026-01-01") for n in (1, 2)]
        write_records(folder / "pairs" / MARKS, marks)
        yaml_files(folder, endpoint)
        yield good


def yaml_files(folder: Path, endpoint: Endpoint) -> None:
    policy = {"model": "double", "engine": "openai", "base_url": endpoint.url, "price": {"prompt": 0.5}}
    wiki = {"index": str(folder / "index"), "description": "an encyclopedia"}
    twice = {"function": "tests.my_tools:twice", "description": "doubles"}
    web = {"provider": "searxng", "base_url": "http://127.0.0.1:9", "pages": 3, "params": {"language": "de"}}
    made = {
        "recipe": {"policy": policy, "search": {"rollouts": 3}, "seed": 1, "budget": {"calls": 50}},
        "tools": {"tools": {"wiki": wiki, "twice": twice}},
        "web": {"web": web},
    }
    for name, content in made.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
    shutil.copy(PROFILES / "stack.yaml", folder / "profile.yaml")


def command(line: str) -> Use:
    """A command whose words may name the harmful thing (PATH), the good files (GOOD) and a fresh place (OUT)."""

    def use(path: Path, place: Place) -> int:
        values = {"PATH": path, "GOOD": place.folder, "OUT": path.parent / "out", "URL": place.endpoint.url}
        argv = line.split()
        for name, value in values.items():
            argv = [word.replace(name, str(value)) for word in argv]
        return main(argv)

    return use


MODEL = "--policy.engine openai --policy.model double --policy.base_url URL --policy.retries 0 --policy.concurrency 1"


def several(*uses: Use) -> Use:
    """All of them; their first error is raised."""

    def use(path: Path, place: Place) -> int:
        for one in uses:
            shutil.rmtree(path.parent / "out", ignore_errors=True)
            checked(one, path, place)
        return 0

    return use


def searched(path: Path, place: Place) -> None:
    del place
    asyncio.run(one_search(open_retriever(path, RetrieverConfig(links=0.6)), "currency of Albania"))


def frozen(path: Path, place: Place) -> None:
    file = path.parent / "web.yaml"
    file.write_text((place.folder / "frozen.yaml").read_text().replace("SNAPSHOT", str(path)))
    asyncio.run(one_search(open_retriever(file), QUERY))


async def one_search(retriever: Retriever, query: str) -> None:
    async with aclosing(retriever):
        await retriever.search(query, 3)


def configured(path: Path, place: Place) -> None:
    del place
    for config in (GenerateConfig, InferConfig, TrainConfig, IndexConfig):
        with suppress(StepragError):
            load_config(config, str(path))


def served_model(path: Path, place: Place) -> None:
    del place
    files = resolve_model(str(path))
    special_tokens(files)
    profile_for(PromptConfig(), files)


def used_checkpoint(copy: Path, whole: Path) -> None:
    del whole
    profile_for(PromptConfig(unchecked=True), resolve_model(copy))


def loaded_model(path: Path, place: Place) -> None:
    served_model(path, place)
    from transformers import AutoModelForCausalLM

    from steprag.engines.pretrained import from_pretrained

    load_tokenizer(resolve_model(str(path)))
    from_pretrained(AutoModelForCausalLM, str(path))


def door(thing: str, files: str, *uses: str | Use, sealed: tuple[str, ...] = ()) -> DoorCase:
    """A door; `files` are its globs, `uses` what reads it: commands (as in `command`) and functions."""
    read = several(*(command(one) if isinstance(one, str) else one for one in uses))
    return DoorCase(thing, tuple(files.split()), read, sealed)


VIEW, CHECK, CHECK_INDEX = "view PATH --out OUT", "run check PATH", "index check --index PATH"
AGAIN = f"--questions GOOD/questions.jsonl --index GOOD/index --out PATH {MODEL}"
JUDGE = "judge --predictions PATH --judge.engine openai --judge.model double --judge.base_url URL --judge.retries 0"
PAIRS, EVALUATE = "pairs --trees PATH --out OUT", "evaluate --predictions PATH"
DOORS: dict[str, DoorCase] = {
    "questions": door("questions.jsonl", "", f"infer --questions PATH --index GOOD/index --out OUT {MODEL}"),
    "corpus": door("corpus.jsonl", "", "index build --corpus PATH --out OUT --encoder none"),
    "index": door("index", "*.* bm25/* links/*", searched, CHECK_INDEX),
    "index, sealed": door(
        "index", "[!m]*.* bm25/* links/*", searched, CHECK_INDEX, sealed=(".", "bm25", "links")
    ),
    "trees": door("generate/trees.jsonl", "", PAIRS, "weave --trees PATH --out OUT", VIEW),
    "run of generate": door(
        "generate", "*.json* *.sqlite", PAIRS, "replay --trees PATH --out OUT",
        f"plan --questions GOOD/questions.jsonl --like PATH {MODEL}", CHECK, VIEW, f"generate {AGAIN}", sealed=(".",),
    ),
    "run of infer": door(
        "infer", "*.json* *.sqlite", EVALUATE, "compare GOOD/infer PATH --out OUT", VIEW, f"infer {AGAIN}", JUDGE,
        sealed=(".",),
    ),
    "pairs": door(
        "pairs", "*.json*", *(f"pairs export --pairs PATH --format {one} --out OUT" for one in FORMATS), VIEW,
        "plan train --pairs PATH --model GOOD/model", "pairs leakage --pairs PATH --against GOOD/questions.jsonl",
    ),
    "marks": door("pairs/wrong.jsonl", "", "pairs --trees GOOD/generate --out OUT --filters.marked PATH"),
    "published pairs": door("out/proguide/RAG_ProGuide.json", "", "pairs import PATH --out OUT"),
    "chat": door(
        "chat", "*.json* *.sqlite", EVALUATE, "pairs people PATH --out OUT", VIEW,
        lambda path, place: TurnStore(path).close(), sealed=(".",),
    ),
    "recipe": door("recipe.yaml", "", configured),
    "profile": door("profile.yaml", "", lambda path, place: load_profile(str(path))),
    "tools": door("tools.yaml", "", "tools list --index PATH"),
    "web file": door("web.yaml", "", lambda path, place: open_retriever(path)),
    "adapter": door(
        "adapter", "adapter_config.json manifest.json *.safetensors", served_model, "policy convert --adapter PATH"
    ),
    "trained adapter": door("adapter", "*.json *.jsonl", VIEW, CHECK),
    "model": door(
        "model", "*.json *.safetensors *.jinja", loaded_model, "plan train --model PATH --device cpu"
    ),
    "encoder": door(
        "encoder", "*.json *.safetensors */*.json",
        "index build --corpus GOOD/corpus.jsonl --encoder PATH --out OUT",
    ),
    "web snapshot": door("snapshot", "web.sqlite", frozen),
    "gguf": door("model.gguf", "", served_model),
}  # fmt: skip


@contextmanager
def limited() -> Iterator[None]:
    def ended(number: int, frame: object) -> None:
        raise Hang(f"more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, ended)
    remaining = signal.setitimer(signal.ITIMER_REAL, SECONDS)[0]
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, remaining)
        signal.signal(signal.SIGALRM, before)


def checked(use: Use, path: Path, place: Place) -> None:
    """Nothing but an exit code or a refusal in one line."""
    try:
        code: Any = use(path, place)
        assert code is None or not isinstance(code, int) or 0 <= code <= 5
    except StepragError as error:
        assert "\n" not in str(error), error
        assert len(str(error)) < 3000


def targets(root: Path, case: DoorCase) -> list[Path]:
    """The files of a door that may be changed."""
    if root.is_file():
        return [root]
    return sorted({path for glob in case.files for path in root.glob(glob) if path.is_file() and path.stat().st_size})


def one_damage(name: str, seed: int, place: Place, tmp_path: Path) -> str:
    """Changes one file, has the door read it; says what was changed."""
    case, rng = DOORS[name], random.Random(f"{name} {seed}")
    source, here = place.folder / case.thing, tmp_path / "here"
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir()
    path = here / source.name
    (shutil.copytree if source.is_dir() else shutil.copy)(source, path)
    said = mutate(rng.choice(targets(path, case)), rng)
    for folder in reversed(case.sealed):
        reseal(path / folder)
    with limited():
        checked(case.use, path, place)
    return said


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", DOORS)
def test_no_door_falls_over_harmful_files(name: str, place: Place, tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in range(SEED, SEED + ROUNDS):
        if seed % 25 == 0:  # a command ends with its process; here they share one, which keeps what is in cycles
            gc.collect()
        try:
            one_damage(name, seed, place, tmp_path)
        except BaseException as error:
            error.add_note(f"door {name!r}, seed {seed}: see one_damage")
            raise
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2 << 20, "more than 2 GiB"


def opened_index(copy: Path, whole: Path) -> None:
    """Checks an index; where its manifest decides otherwise now, it must not open either."""
    check_folder(copy, sample=0)
    manifests = (read_index_manifest(folder) for folder in (copy, whole))
    facts = [[*(getattr(one, key) for key in DECIDING), one.corpus.rows, {name: each.sha256 for name, each
              in one.files.items()}] for one in manifests]  # fmt: skip
    if facts[0] != facts[1]:
        open_retriever(copy)
        raise AssertionError("it opens")


DECIDING = ("format", "stage", "encoder", "index", "fingerprint")
TOKENIZER = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
UNREAD = {"manifest.json", "curves.png", "metrics.jsonl", "training_args.bin", "README.md"}
DAMAGED: dict[str, tuple[Callable[[Path, Path], object], set[str], set[str]]] = {
    "index": (opened_index, {"index.faiss", "vectors.faiss", "passages.jsonl"}, {"manifest.json"}),
    "generate": (lambda copy, _: checked_manifest(copy), {"trees.jsonl", "calls.sqlite", "metrics.jsonl"}, set()),
    "adapter": (used_checkpoint, {*TOKENIZER, "adapter_config.json", "adapter_model.safetensors"}, UNREAD),
    "full": (used_checkpoint, {*TOKENIZER, "model.safetensors"}, UNREAD),
}
"""What must refuse a folder that is damaged, the files that decide, and those of which damage has no effect."""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_found_before_it_is_used_or_has_no_effect(name: str, place: Place, tmp_path: Path) -> None:
    """No file of an index folder, a checkpoint, or those that a run lists gives other results in silence."""
    use, decide, unread = DAMAGED[name]
    whole, copy, rng = place.folder / name, tmp_path / "copy", random.Random(SEED)
    shutil.copytree(whole, copy)
    listed = read_manifest(whole)[FILES] if name == "generate" else None
    files = sorted(path for path in copy.rglob("*") if path.is_file() and path.stat().st_size)
    files = [path for path in files if listed is None or path.name in listed]
    assert decide <= {path.name for path in files}
    for number in range(DAMAGES):
        file = files[number % len(files)]
        file.write_bytes(mutated_bytes(good := file.read_bytes(), rng))
        try:
            use(copy, whole)
        except StepragError as error:
            assert error.exit_code == 2
            assert "\n" not in str(error)
            assert listed is None or re.search(rf"{file.name}: .*steprag check --accept", str(error))
        else:
            assert file.name in unread, file.read_bytes()[:200]
        file.write_bytes(good)
    use(copy, whole)


def test_every_reader_stands_among_the_doors(place: Place) -> None:
    assert read_manifest(place.folder / "generate")["stage"] == "generate"
    for case in DOORS.values():
        assert targets(place.folder / case.thing, case), case
