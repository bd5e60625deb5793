"""The run folders of a page: which there are, what is in them, and what their manifests say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from steprag.agent.grammar import Grammar
from steprag.agent.profiles import grammar_of_tree
from steprag.errors import ConfigError, DataError
from steprag.runs import read_manifest
from steprag.tree import Tree
from steprag.view.kinds import FILES, FileKind
from steprag.view.listing import Listing

SERIES = "metrics.jsonl"


@dataclass
class RunFolder:
    """A run folder, or one file of records. `key` names it on the page and in requests, which name no paths."""

    key: str
    path: Path
    _listings: dict[str, Listing[Any]] = field(default_factory=dict)

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
            self._listings[path.name] = Listing(path, file.kind, indexed=file.indexed)
        return self._listings[path.name]

    def manifest(self) -> tuple[dict[str, Any], str | None]:
        """The manifest, or {} and what is wrong with it."""
        if not (self.path.is_dir() and self.file("manifest.json")):
            return {}, None
        try:
            return read_manifest(self.path), None
        except (ConfigError, DataError) as error:
            return {}, str(error)

    def grammar(self, tree: Tree) -> Grammar:
        """The grammar of a tree's steps. Raises ConfigError where it is not known here, or not the tree's."""
        return grammar_of_tree(tree, self.manifest()[0])

    def kinds(self) -> list[str]:
        """What can be looked at."""
        there = [kind for kind, files in FILES.items() if any(self._listing(file) for file in files)]
        return [*there, *(["series"] if self.file(SERIES) else [])]

    def stamp(self) -> str:
        """Changes whenever a file that the page shows does."""
        names = [*(file.name for files in FILES.values() for file in files), SERIES, "manifest.json"]
        names = names if self.path.is_dir() else [self.path.name]
        told = [(path.stat().st_size, path.stat().st_mtime_ns) for name in names if (path := self.file(name))]
        return str(hash(tuple(told)))


def open_folders(given: Iterable[str]) -> dict[str, RunFolder]:
    """The run folders by key. A folder of run folders stands for those in it, a run with pairs for its pairs too.

    Raises ConfigError for a path that is none of these.
    """
    folders: dict[str, RunFolder] = {}
    for one in given:
        found = list(_runs_at(Path(one).expanduser()))
        if not found:
            remedy = "give a run folder, a folder of run folders, or a file like trees.jsonl"
            raise ConfigError(f"{one} holds nothing to view ({remedy})")
        for path in found:
            if any(path.resolve() == known.path.resolve() for known in folders.values()):
                continue
            key = _key(path, folders)
            folders[key] = RunFolder(key, path)
    return folders


def _runs_at(path: Path) -> Iterator[Path]:
    if not path.exists():
        raise ConfigError(f"run not found: {path} (give the path of an existing file or folder)")
    if path.is_file() or _is_run(path):
        yield path
    below = sorted(child for child in path.iterdir() if child.is_dir()) if path.is_dir() else []
    yield from (child for child in below if _is_run(child) and not child.name.startswith("."))


def _is_run(path: Path) -> bool:
    names = [SERIES, *(file.name for files in FILES.values() for file in files)]
    return any((path / name).is_file() for name in names)


def _key(path: Path, taken: Iterable[str]) -> str:
    """A short name that no other run has: the folder's, with its parent's where that tells two apart."""
    whole = path.resolve()
    name = whole.name.partition(".")[0] if whole.is_file() else whole.name
    wanted = [name, f"{whole.parent.name}-{name}"]
    wanted += [f"{name}-{number}" for number in range(2, len(list(taken)) + 3)]
    free = next(one for one in wanted if one and one not in taken)
    return free
