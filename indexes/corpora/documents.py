"""People's own documents: files of `KINDS`, alone or in folders of folders, as passages of about 100 words.

A passage's id is `PATH#N`; PATH leads from the corpus folder to the file. Its title is the file's name, the page that
it begins on where the file has pages, and the innermost heading: `handbook.pdf, p. 12, Leave`. A reader can thus open
the source at its page (`PATH#page=12`): what follows the file's name in the title begins with `, p. 12`.

Each file is read and cut in a process of its own bounds (`document_worker`). A file that gives no text is named, and
the others go on. `documents.jsonl` in the index folder keeps what every file was and gave, and an update reads only
what changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field, TypeAdapter

from indexes.corpora.cutting import FORM, cut, own_chunker
from indexes.corpora.document_list import KINDS, Document, DocumentSpool, FormerDocuments, Piece, Readings, Trouble
from indexes.corpora.document_report import Report
from indexes.corpora.document_worker import cut_away
from indexes.rows.passage_store import DOCUMENTS, PassageStore
from indexes.web.extraction import START_SECONDS, BoundedProcess
from steprag.config.sections import Positive, Section
from steprag.console.progress import Progress, say
from steprag.engines.threads import usable_cores
from steprag.errors import counted
from steprag.extras import need
from steprag.records.json_text import decoded
from steprag.records.jsonl import file_hash
from steprag.types import Passage

WORKER = Path(__file__).with_name("document_worker.py")
PACKAGES = {"pdf": ("pypdfium2",), "markdown": ("markdown_it", "lxml"), "rtf": ("striprtf",), "text": (), "table": ()}
"""Import names of what reads a kind; lxml reads the others."""
_WINDOW, _WAITING = 32, 64 << 20
"""Documents whose passages wait in memory, and about the bytes of their files."""
_UNSURE = frozenset(("slow", "died", "changed"))
"""Kinds of problems that another try may not have."""
_TICK, _COARSE = 20_000_000, 2_000_000_000
"""Nanoseconds in which a file that is written twice may keep its time; where a system counts whole seconds."""


class DocumentsConfig(Section):
    seconds: float = Field(default=60.0, gt=0, description="reading one document; more, and it is left out")
    memory_mb: Positive = Field(default=2048, description="memory of the process that reads a document")
    megabytes: Positive = Field(default=512, description="a file's size; a larger one is left out")
    chunker: str | None = Field(default=None, description="module:function that cuts documents; none: 100 words each")


@dataclass(frozen=True)
class Told:
    """What the worker says of a document (`document_worker`)."""

    pages: int = 0
    blocks: list[tuple[Literal["h", "p", "r"], int, str]] = field(default_factory=list)
    passages: list[tuple[str, str]] = field(default_factory=list)
    left: list[Piece] = field(default_factory=list)
    parts: dict[str, int] = field(default_factory=dict)
    problems: list[Trouble] = field(default_factory=list)
    letters: int = 0
    __pydantic_config__ = ConfigDict(defer_build=True)


_TOLD = TypeAdapter(Told)


class Documents:
    """The documents of a corpus; `known` is an index folder that may have been built of them before."""

    def __init__(self, corpus: Path, config: DocumentsConfig, known: Path | None = None) -> None:
        """Raises ModuleNotFoundError where a package is missing that one of the files is read with."""
        self.root, self._config, self._known = corpus if corpus.is_dir() else corpus.parent, config, known
        self._cut, self._form = (cut, FORM) if config.chunker is None else own_chunker(config.chunker)
        self.others, self._workers = Counter[str](), threading.local()
        self._troubles: dict[str, Trouble] = {}
        self.gave = DocumentSpool()
        """What each document was and gave."""
        self.kept: Path | None = None
        """A file for what was read (`document_list.READ`), with which a killed build goes on."""
        self.paths: list[str] = [corpus.name] if corpus.is_file() else sorted(self._found())
        for kind in {KINDS[_ending(path)] for path in self.paths if path not in self._troubles}:
            for package in ("chardet", *PACKAGES.get(kind, ("lxml",))):
                need(package)

    def _found(self) -> Iterator[str]:
        """Paths of files below the root; hidden ones are passed over, and links are not followed."""
        folders = [""]
        while folders:
            folder = folders.pop()
            try:
                with os.scandir(self.root / folder) as entries:
                    for entry in entries:
                        path, trouble = f"{folder}{entry.name}", None
                        if entry.name.startswith((".", "~$")):
                            continue
                        if entry.is_symlink():
                            trouble = "link", 0, "is a link: put what it leads to in its place"
                        elif entry.is_dir(follow_symlinks=False):
                            folders.append(f"{path}/")
                            continue
                        elif _ending(path) not in KINDS:
                            self.others[_ending(path) or "without an ending"] += 1
                            continue
                        elif not entry.is_file(follow_symlinks=False):
                            trouble = "type", 0, "is a pipe, a socket or a device: put a file in its place"
                        elif _as_text(path) != path:
                            trouble = "name", 0, "has a name that is no UTF-8: rename it"
                        yield self._named(path, trouble)
            except OSError as error:
                yield self._named(folder.rstrip("/") or ".", ("unreadable", 0, f"cannot be opened: {error.strerror}"))

    def _named(self, path: str, trouble: Trouble | None) -> str:
        path = _as_text(path)
        if trouble:
            self._troubles[path] = trouble
        return path

    @property
    def identity(self) -> str:
        """SHA-256 over names and contents, bounds and form. A file that has kept its size and times is not hashed."""
        return self._looked[0]

    @cached_property
    def _looked(self) -> tuple[str, DocumentSpool]:
        """The identity; and the documents, before any is read."""
        whole = hashlib.sha256(f"{self._form} {self._config.model_dump_json(exclude_none=True)}".encode())
        looked, earlier = DocumentSpool(), FormerDocuments(self._known)
        for path in self.paths:
            one, before = Document(path, form=self._form), earlier.get(path)
            if path in self._troubles:
                one.problems.append(self._troubles[path])
            else:
                self._look(one, before[0] if before else None)
            whole.update(json.dumps([one.path, one.sha256, one.problems]).encode())
            looked.add(one)
        return whole.hexdigest(), looked

    def _look(self, one: Document, before: Document | None) -> None:
        path = self.root / one.path
        try:
            _measure(one, path)
            if not one.bytes:
                one.problems.append(("empty", 0, "is empty"))
            elif one.bytes > self._config.megabytes << 20:
                said = f"has {one.bytes >> 20:,} MiB: --documents.megabytes raises the bound"
                one.problems.append(("large", 0, said))
            elif before and before.sha256 and one.is_as(before):
                one.sha256 = before.sha256
            else:
                fresh = (_TICK if one.ctime_ns % 10**9 else _COARSE) - (time.time_ns() - one.ctime_ns)
                if 0 < fresh <= _COARSE:  # what is written from now on has another time
                    time.sleep(fresh / 1e9)
                    _measure(one, path)
                one.sha256 = file_hash(path)
        except OSError as error:
            one.problems.append(("unreadable", 0, f"cannot be opened: {error.strerror}"))

    def items(self) -> Iterator[tuple[int, int, Passage | Trouble]]:
        """Document (its position), page, and each passage and problem in order."""
        self.gave = DocumentSpool()
        with Readings(self.kept) as readings, Progress("read", len(self.paths), "documents") as progress:
            for number, (one, passages) in enumerate(self._given(readings)):
                yield from ((number, page, (kind, page, said)) for kind, page, said in one.problems)
                for passage in passages:
                    if (other := readings.first(passage)) != passage.id:
                        one.repeated += 1
                        yield number, 0, ("repeated", 0, f"{passage.id} says the same as {other}")
                    else:
                        one.passages += 1
                        yield number, 0, passage
                self.gave.add(one)
                progress.advance(1)

    def _given(self, readings: Readings) -> Iterator[tuple[Document, list[Passage]]]:
        """Each document and its passages: as before where it stands as before, else read, some of them ahead."""
        earlier, workers = FormerDocuments(self._known), list[BoundedProcess]()
        waiting = deque[tuple[Document, list[Passage] | Future[list[Passage]]]]()
        with ExitStack() as stack:
            store = stack.enter_context(PassageStore(self._known)) if self._known and earlier.any else None
            stack.callback(lambda: [worker.end() for worker in workers])
            pool = stack.enter_context(ThreadPoolExecutor(cores := usable_cores()))
            stack.callback(lambda: [worker.kill() for worker in workers])
            stack.callback(pool.shutdown, wait=False, cancel_futures=True)

            def ended() -> tuple[Document, list[Passage]]:
                one, given = waiting.popleft()
                if isinstance(given, Future):
                    given = given.result()
                    if self.kept:
                        readings.put(one, given)
                return one, given

            for one in self._looked[1]:
                there = self._there(one, earlier.get(one.path), store, readings)
                waiting.append((one, pool.submit(self._read, one, workers) if there is None else there))
                while len(waiting) >= _WINDOW or (
                    len(waiting) > cores and sum(each.bytes for each, _ in waiting) > _WAITING
                ):
                    yield ended()
            while waiting:
                yield ended()

    def _there(
        self, one: Document, found: tuple[Document, int] | None, store: PassageStore | None, readings: Readings
    ) -> list[Passage] | None:
        """Passages of a document that need not be read: it cannot be, or was by an earlier index or a killed build."""
        if one.problems:
            return []
        if store and found and self._stands(one, found[0]):
            one.read = False
            return [store.read(row) for row in range(found[1], found[1] + found[0].passages)]
        kept = readings.get(one.path) if self.kept else None
        return kept[1] if kept and self._stands(one, kept[0]) else None

    def _stands(self, one: Document, before: Document) -> bool:
        """Takes over what a document gave before, where its content is the same and all that it gave is at hand."""
        unsure = before.repeated or any(kind in _UNSURE for kind, _, _ in before.problems)
        if unsure or (one.sha256, self._form) != (before.sha256, before.form):
            return False
        one.pages, one.left, one.parts, one.letters = before.pages, before.left, before.parts, before.letters
        one.problems = before.problems
        return True

    def _read(self, one: Document, workers: list[BoundedProcess]) -> list[Passage]:
        """A document's passages, by the worker of this thread."""
        path = self.root / one.path
        if not hasattr(self._workers, "own"):
            bounds = str(self._config.memory_mb), str(int(self._config.seconds + START_SECONDS) + 1)
            command = (sys.executable, "-I", "-X", "utf8", str(WORKER), *bounds)
            self._workers.own = BoundedProcess(command, self._config.seconds)
            workers.append(self._workers.own)
        name = one.path if self._cut is cut else None
        asked = {"path": str(path.absolute()), "kind": KINDS[_ending(one.path)], "name": name}
        reply = self._workers.own.ask(json.dumps(asked).encode())
        trouble: Trouble = ("died", 0, "ended the process that read it (too little memory? --documents.memory_mb)")
        if self._workers.own.late:
            trouble = ("slow", 0, f"took more than {self._config.seconds:g} s: --documents.seconds raises the bound")
        try:
            told = _TOLD.validate_python(decoded(reply or b""))
        except ValueError:  # a document may have taken the process over
            self._workers.own.end()
            told = Told(problems=[trouble])
        one.pages, one.left, one.parts, one.letters = told.pages, told.left, told.parts, told.letters
        one.problems = told.problems
        passages = [Passage(f"{one.path}#{made}", *row) for made, row in enumerate(told.passages, 1)]
        if name is None:
            passages = [*self._cut(told.blocks, one.path)]
            one.left += cut_away(told.blocks, [(passage.title, passage.text) for passage in passages], one.path)
        now, stands = Document(one.path), False
        with suppress(OSError):  # else it is gone
            _measure(now, path)
            stands = one.is_as(now) or file_hash(path) == one.sha256  # rights, links and backups set a ctime too
        if not stands:
            one.problems, passages = [("changed", 0, "changed while it was read: run the command again")], []
        elif not passages and not one.problems:
            one.problems = [("empty", 0, "holds no text")]
        return passages

    def finish(self, folder: Path) -> Report:
        """Writes what was read into an index folder, and says it."""
        self.gave.write(folder / DOCUMENTS)
        report, repeated, pages, as_before = Report(), 0, 0, 0
        for one in self.gave:
            report.add(one)
            repeated, pages, as_before = repeated + one.repeated, pages + one.pages, as_before + (not one.read)
        dropped = {item.kind: item.count for item in report.items()} | {"repeated passages": repeated}
        left_out = ", ".join(f"{name} {count:,}" for name, count in dropped.items() if count)
        before = f" ({as_before:,} as before)" if as_before else ""
        paged = f"; pages or slides: {pages:,}" if pages else ""
        gone = f"; left out: {left_out}" if left_out else ""
        say(f"index: {counted(len(self.paths), 'document')}{before}{paged}{gone}")
        report.say()
        if self.others:
            say(f"index: files of other types are not read: {self.other_types()}; of passages give the file itself")
        return report

    def other_types(self) -> str:
        """Endings of the files that are no documents, the most frequent ones, and how many there are."""
        return ", ".join(f"{ending} {count:,}" for ending, count in self.others.most_common(5))


def read_document(path: Path, config: DocumentsConfig) -> tuple[Document, list[Passage]]:
    """What one file was and gave. Raises ModuleNotFoundError where a package is missing."""
    documents = Documents(path, config)
    passages = [value for _, _, value in documents.items() if isinstance(value, Passage)]
    return next(iter(documents.gave)), passages


def _measure(one: Document, path: Path) -> None:
    facts = path.stat()
    one.bytes, one.mtime_ns, one.ctime_ns = facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def _ending(path: str) -> str:
    return os.path.splitext(path)[1].lower()


def _as_text(path: str) -> str:
    """A path with bytes that are no UTF-8 written out."""
    return path if path.isascii() else path.encode("utf-8", "backslashreplace").decode()
