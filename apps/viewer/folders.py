"""The run folders of a page: which there are, which files in them it lists, and what it shows of each record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from apps.viewer.listing import Listing, stamp_of
from apps.viewer.series import Series
from inference.scoring.scores import score
from steprag.agent.compliance import written
from steprag.agent.grammar import Grammar
from steprag.agent.profiles import grammar_of_tree, told_grammar
from steprag.batch.results import ResultKind
from steprag.batch.tree_results import TREES
from steprag.errors import ConfigError, DataError
from steprag.records.jsonl import read_json
from steprag.records.training_rows import Pair, preference_key
from steprag.records.turns import Turn
from steprag.runs.run import FAILED, PROGRESS, read_manifest
from steprag.scores.metrics import normalise
from steprag.tree import Tree
from steprag.types import Prediction

SERIES = "metrics.jsonl"
SCORES = "metrics.json"
_BESIDE = (SERIES, SCORES, "manifest.json", FAILED, "bertscore.json")
"""Files that change what is shown, beside those that are listed."""


@dataclass(frozen=True)
class GroupEpisode:
    """An episode of GRPO as training writes it down (`episodes.jsonl`)."""

    step: int
    question: str
    finish: str
    reward: float
    rewards: dict[str, float]
    advantage: float | None = None
    prediction: str | None = None
    refused: str | None = None
    steps: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FileKind:
    """A file's name in a run folder and the records in it. `indexed`: it has an index that counts as `kind` does."""

    name: str
    kind: ResultKind[Any]
    indexed: bool = False

    def takes(self, name: str) -> bool:
        """Whether a file of that name, given by itself, is read as this kind: "trees.round2.jsonl.gz" is trees."""
        first, mine = name.partition(".")[0], self.name.partition(".")[0]
        return first == mine and ("val" in name.split(".")) == ("val" in self.name.split("."))


def _pair(pair: Pair) -> dict[str, Any]:
    asked = next((m["content"] for m in pair.prompt if m["role"] == "user"), "")
    said = pair.chosen[-1]["content"] if pair.chosen else ""
    return {
        "question_id": pair.question_id,
        "action": pair.action,
        "rejected_action": pair.rejected_action,
        "depth": pair.depth,
        "margin": pair.margin,
        "visits": [pair.chosen_visits, pair.rejected_visits],
        "nodes": [pair.chosen_node, pair.rejected_node],
        "tree": pair.tree,
        "chosen": " ".join(said.rpartition("</")[0].rpartition(">")[2].split())[:120],
        "question": asked.partition("\n")[0].removeprefix("Question: ")[:300],
    }


_PLAYED = ("finish", "steps", "searches", "sampled", "words", "written")
"""Fields of a score that describe the episode, not whether its answer is right."""


def _scored(prediction: Prediction) -> dict[str, Any]:
    return _shown(prediction, "em", "f1", "gold", "tokens", "error", "groups", *_PLAYED)


def _turn(turn: Turn) -> dict[str, Any]:
    """Without golden answers its scores mean nothing; `judged` is what a person said of it."""
    return {**_shown(turn, *_PLAYED), "judged": turn.feedback and turn.feedback.right}


def _shown(prediction: Prediction, *names: str) -> dict[str, Any]:
    scored = vars(score(prediction))
    return {**{name: scored[name] for name in names}, "question": prediction.question, "said": prediction.prediction}


def _episode(episode: GroupEpisode) -> dict[str, Any]:
    told = ("step", "finish", "reward", "rewards", "advantage", "prediction")
    refused = [] if episode.refused is None else [(None, episode.refused, episode.finish)]
    said = episode.prediction
    return {
        **{name: getattr(episode, name) for name in told},
        "steps": len(episode.steps),
        "words": None if said is None else len(normalise(said).split()),
        "written": written([*((None, text, None) for text in episode.steps), *refused]),
    }


PAIRS = ResultKind(Pair, preference_key, _pair)  # a question has many pairs: its id names none of them
FILES: dict[str, tuple[FileKind, ...]] = {
    "trees": (FileKind("trees.jsonl", TREES, indexed=True), FileKind("trees.jsonl.gz", TREES)),
    "pairs": (FileKind("pairs.train.jsonl", PAIRS), FileKind("pairs.val.jsonl", PAIRS)),
    "predictions": (
        FileKind("predictions.jsonl", ResultKind(Prediction, lambda one: one.id, _scored)),
        FileKind("turns.jsonl", ResultKind(Turn, lambda one: one.id, _turn)),
    ),
    "episodes": (FileKind("episodes.jsonl", ResultKind(GroupEpisode, lambda one: one.question, _episode)),),
}
"""By their names on the page."""


@dataclass
class RunFolder:
    """A run folder, or one file of records. `key` names it on the page and in requests, which name no paths."""

    key: str
    path: Path
    _listings: dict[str, Listing[Any]] = field(default_factory=dict)
    _series: Series | None = None

    @property
    def root(self) -> Path:
        """The folder that all its files lie in."""
        return self.path if self.path.is_dir() else self.path.parent

    def file(self, name: str) -> Path | None:
        """A file of the run; None where it is not there, or is a link that leads out of the folder."""
        if not self.path.is_dir() and name != self.path.name:
            return None
        found = self.root / name
        if not found.is_file() or not found.resolve().is_relative_to(self.root.resolve()):
            return None
        return found

    def listings(self, kind: str) -> list[Listing[Any]]:
        """The listings of its files of a kind (`FILES`), those that are there by now."""
        there = [listing for file in FILES[kind] if (listing := self._listing(file)) is not None]
        return list(dict.fromkeys(there))  # a file by itself may fit two names

    def _listing(self, file: FileKind) -> Listing[Any] | None:
        path = self.path if self.path.is_file() and file.takes(self.path.name) else self.file(file.name)
        if path is None:
            return None
        if path.name not in self._listings:
            self.manifest()
            self._listings[path.name] = Listing(path, file.kind, indexed=file.indexed)
        return self._listings[path.name]

    def series(self) -> Series:
        """The curves of the run. Raises ConfigError where it has none."""
        path = self.file(SERIES)
        if path is None:
            raise ConfigError(f"{self.key} has no {SERIES}")
        self._series = self._series or Series(path)
        return self._series

    def manifest(self) -> tuple[dict[str, Any], str | None]:
        """The manifest, or {} and what is wrong with it."""
        if not (self.path.is_dir() and self.file("manifest.json")):
            return {}, None
        try:
            manifest = read_manifest(self.path)
            told_grammar(manifest)  # known from now on: what counts completions asks for its tags
            return manifest, None
        except (ConfigError, DataError) as error:
            return {}, str(error)

    def facts(self, name: str) -> dict[str, Any]:
        """A small JSON file of the run; {} where there is none that can be read."""
        path = self.file(name)
        try:
            return read_json(path) if path else {}
        except DataError:  # another program's: the table shows what other files say
            return {}

    def changed(self) -> float | None:
        """When a file that the page shows last changed, in seconds since 1970."""
        return max((changed / 1e9 for _, changed in self._stamps(PROGRESS)), default=None)

    def grammar(self, tree: Tree) -> Grammar:
        """The grammar of a tree's steps. Raises ConfigError where it is not known here, or not the tree's."""
        return grammar_of_tree(tree, self.manifest()[0])

    def kinds(self) -> list[str]:
        """What can be looked at."""
        there = [kind for kind, files in FILES.items() if any(self._listing(file) for file in files)]
        return [*there, *(["series"] if self.file(SERIES) else [])]

    def stamp(self) -> str:
        """Changes whenever a file that the page shows does."""
        return str(hash(tuple(self._stamps())))

    def _stamps(self, *more: str) -> list[tuple[int, int]]:
        """Size and time of change of every file that the page shows, and of `more`."""
        names = [*(file.name for files in FILES.values() for file in files), *_BESIDE, *more]
        stamps = [stamp_of(path) for name in names if (path := self.file(name))]
        return [(one.size, one.changed) for one in stamps if one]


def open_folders(given: Iterable[str], known: Mapping[str, RunFolder] | None = None) -> dict[str, RunFolder]:
    """The run folders by key. A folder of run folders stands for those in it, and for those in folders of it that are
    no run themselves; a run with pairs for its pairs too. Folders that are `known` and still there stay as they are.

    Raises ConfigError for a path that is none of these, at the first look, when none are `known` yet.
    """
    folders = {key: folder for key, folder in (known or {}).items() if folder.path.exists()}
    there = {folder.path.resolve() for folder in folders.values()}
    for one in given:
        found = list(_runs_at(Path(one).expanduser()))
        if not found and known is None:
            remedy = "give a run folder, a folder of run folders, or a file like trees.jsonl"
            raise ConfigError(f"{one} holds nothing to view ({remedy})")
        for path, above in found:
            if path.resolve() not in there:
                key = _key(path, above, folders)
                folders[key] = RunFolder(key, path)
                there.add(path.resolve())
    return folders


def _runs_at(path: Path) -> Iterator[tuple[Path, bool]]:
    """The runs at a path; and of each, whether its folder's name is needed to tell it from others."""
    if not path.exists():
        remedy = "start its run first, or view the folder above it, whose page shows runs as they begin"
        raise ConfigError(f"run not found: {path}; {remedy}")
    if path.is_file() or _is_run(path):
        yield path, False
    for child in _folders_in(path):
        if _is_run(child):
            yield child, False
        elif not _is_run(path):
            yield from ((below, True) for below in _folders_in(child) if _is_run(below))


def _folders_in(path: Path) -> list[Path]:
    there = path.iterdir() if path.is_dir() else ()
    return sorted(child for child in there if child.is_dir() and not child.name.startswith("."))


def _is_run(path: Path) -> bool:
    names = [SERIES, *(file.name for files in FILES.values() for file in files)]
    return any((path / name).is_file() for name in names)


def _key(path: Path, above: bool, taken: Iterable[str]) -> str:
    """A short name that no other run has: the folder's, with its parent's where `above` or another run asks for it."""
    whole = path.resolve()
    name = whole.name.partition(".")[0] if whole.is_file() else whole.name
    wanted = [*([] if above else [name]), f"{whole.parent.name}-{name}"]
    wanted += [f"{name}-{number}" for number in range(2, len(list(taken)) + 3)]
    return next(one for one in wanted if one and one not in taken)
