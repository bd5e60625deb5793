"""People's own documents: files of `KINDS`, alone or in folders of folders, as passages of about 100 words.

A passage's id is `PATH#N`; PATH leads from the corpus folder to the file. Its title is the file's name, the page that
it begins on where the file has pages, and the innermost heading: `handbook.pdf, p. 12, Leave`. A reader can thus open
the source at its page (`PATH#page=12`): what follows the file's name in the title begins with `, p. 12`.

Each file is read in a process of its own bounds (`document_worker`). A file that gives no text is named, and the others
go on. `documents.jsonl` in the index folder keeps what every file was and gave, and an update reads only what changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, TypeAdapter

from indexes.corpora.wikipedia import WORDS
from indexes.rows.passage_store import DOCUMENTS, PassageStore
from indexes.web.extraction import BoundedProcess
from steprag.config.sections import Positive, Section
from steprag.console.progress import Progress, say
from steprag.engines.threads import usable_cores
from steprag.errors import ConfigError, quoted
from steprag.extras import code_hash, function_at, need
from steprag.records.json_text import decoded
from steprag.records.jsonl import file_hash, read_records, write_records
from steprag.types import Passage

WORKER = Path(__file__).with_name("document_worker.py")
FORM = 1
"""Of reading and cutting: another number reads every document anew."""
KINDS = {".pdf": "pdf", ".docx": "docx", ".pptx": "slides", ".odt": "opendocument", ".odp": "opendocument",
         ".epub": "epub", ".html": "html", ".htm": "html", ".xhtml": "html", ".md": "markdown", ".markdown": "markdown",
         ".txt": "text"}  # fmt: skip
"""Kinds by ending."""
PACKAGES = {"pdf": ("pypdfium2",), "docx": ("mammoth", "lxml"), "markdown": ("markdown_it", "lxml"), "text": ()}
"""Import names of what reads a kind; lxml reads the others."""
MOST = WORDS * 5 // 4
"""Words of a passage, about: a longer section is cut into equal parts."""
_PREFERRED = WORDS / 5
"""Words that a cut may stand off its place to fall between two paragraphs."""
_WINDOW = 32
"""Documents whose passages wait in memory."""
_UNSURE = frozenset(("slow", "died", "changed"))
"""Kinds of problems that another try may not have."""
_NO_BLANKS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u9fff"
_WORD = re.compile(rf"[{_NO_BLANKS}]{{1,2}}|[^\s{_NO_BLANKS}]+")
"""A word; of scripts without blanks two letters count as one."""
_END = re.compile(r"(\S*[.!?…]+[\"'”’)\]]*)\s+(?=[^a-z\s])|[。！？]+[」』”’）]*")
_SHORT = re.compile(r"\W*([^\W\d_]|Dr|Mr|Mrs|Ms|Prof|St|No|Nr|Art|Abs|vs|cf|pp|Fig|ca|bzw)\.")
"""What ends with a full stop and ends no sentence."""
Block = tuple[str, int, str]
"""Part of a document: its role ("h" a heading, "p" a paragraph, "r" a row of a table), page (0: none) and text."""
Trouble = tuple[str, int, str]
"""A problem's kind, its page (0: the whole file) and what is said of it."""


class DocumentsConfig(Section):
    seconds: float = Field(default=60.0, gt=0, description="reading one document; more, and it is left out")
    memory_mb: Positive = Field(default=2048, description="memory of the process that reads a document")
    megabytes: Positive = Field(default=512, description="a file's size; a larger one is left out")
    chunker: str | None = Field(default=None, description="module:function that cuts documents; none: 100 words each")


class Told(NamedTuple):
    """What the worker says of a document (`document_worker`)."""

    pages: int
    blocks: list[tuple[Literal["h", "p", "r"], int, str]]
    dropped: dict[str, int]
    problems: list[Trouble]


_TOLD = TypeAdapter(Told)


_PART: dict[str, type] = {"text": str, "title": str, "page": int}
LONGEST = 20_000
"""Characters of a text that a user's chunker may make."""


@dataclass
class Document:
    """A file, and what it gave: a line of `documents.jsonl`, in the order of the passages. `repeated`: passages that an
    earlier one had. `read`: not taken over from an earlier index.
    """

    path: str
    bytes: int = 0
    mtime_ns: int = 0
    sha256: str = ""
    form: int = FORM
    pages: int = 0
    passages: int = 0
    repeated: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    problems: list[Trouble] = field(default_factory=list)
    read: bool = True
    extra: dict[str, Any] = field(default_factory=dict)

    def is_as(self, other: Document | None) -> bool:
        """Whether its size and time are those of a document that was read."""
        return other is not None and (self.bytes, self.mtime_ns) == (other.bytes, other.mtime_ns) != (0, 0)


class Documents:
    """The documents of a corpus; `known` is an index folder that may have been built of them before."""

    def __init__(self, corpus: Path, config: DocumentsConfig, known: Path | None = None) -> None:
        """Raises ModuleNotFoundError where a package is missing that one of the files is read with."""
        self._root, self._config, self._known = corpus if corpus.is_dir() else corpus.parent, config, known
        self._cut, self._form = (cut, FORM) if config.chunker is None else own_chunker(config.chunker)
        self.others, self._workers, self._gave = Counter[str](), threading.local(), list[Document]()
        self.found = [Document(corpus.name)] if corpus.is_file() else sorted(self._found(), key=lambda one: one.path)
        for one in self.found:
            one.form = self._form
        for kind in {KINDS[Path(one.path).suffix.lower()] for one in self.found if not one.problems}:
            for package in PACKAGES.get(kind, ("lxml",)):
                need(package)
        kept = known / DOCUMENTS if known else None
        self._before = {one.path: one for one in read_records(kept, Document)} if kept and kept.is_file() else {}

    def _found(self) -> Iterator[Document]:
        """Files below the root; hidden ones are passed over, and links are not followed."""
        failed: list[OSError] = []
        for folder, inner, names in os.walk(self._root, onerror=failed.append):
            inner[:] = [name for name in inner if not name.startswith(".")]
            links = [name for name in inner if Path(folder, name).is_symlink()]
            for path in (Path(folder, name) for name in (*links, *names) if not name.startswith((".", "~$"))):
                raw = path.relative_to(self._root).as_posix()
                one = Document(_as_text(raw))
                if path.is_symlink():
                    one.problems.append(("link", 0, "is a link: put what it leads to in its place"))
                elif path.suffix.lower() not in KINDS or not path.is_file():
                    self.others[path.suffix.lower() or "without an ending"] += 1
                    continue
                elif one.path != raw:
                    one.problems.append(("name", 0, "has a name that is no UTF-8: rename it"))
                yield one
        for error in failed:
            problem = ("unreadable", 0, f"cannot be opened: {error.strerror}")
            yield Document(_as_text(os.path.relpath(os.fsdecode(error.filename), self._root)), problems=[problem])

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of all documents, in the order of `items`."""
        return tuple(str(self._root / one.path) for one in self.found)

    @cached_property
    def identity(self) -> str:
        """SHA-256 over names and contents, bounds and form. A file that has kept its size and time is not hashed."""
        whole = hashlib.sha256(f"{self._form} {self._config.model_dump_json(exclude_none=True)}".encode())
        for one in self.found:
            if not one.problems:
                self._look(one)
            whole.update(json.dumps([one.path, one.sha256, one.problems]).encode())
        return whole.hexdigest()

    def _look(self, one: Document) -> None:
        path, before = self._root / one.path, self._before.get(one.path)
        try:
            facts = path.stat()
            one.bytes, one.mtime_ns = facts.st_size, facts.st_mtime_ns
            if one.bytes > self._config.megabytes << 20:
                said = f"has {one.bytes >> 20:,} MiB: --documents.megabytes raises the bound"
                one.problems.append(("large", 0, said))
            else:
                one.sha256 = before.sha256 if before and one.is_as(before) else file_hash(path)
        except OSError as error:
            one.problems.append(("unreadable", 0, f"cannot be opened: {error.strerror}"))

    def items(self) -> Iterator[tuple[int, int, Passage | Trouble]]:
        """Document (its position), page, and each passage and problem in order."""
        seen: dict[bytes, str] = {}
        _ = self.identity
        self._gave = [replace(one, problems=[*one.problems]) for one in self.found]
        first, rows = dict[str, int](), 0
        for one in self._before.values():
            first[one.path], rows = rows, rows + one.passages
        workers: list[BoundedProcess] = []
        with ExitStack() as stack, Progress("read", len(self._gave), "documents") as progress:
            store = stack.enter_context(PassageStore(self._known)) if self._before and self._known else None
            stack.callback(lambda: [worker.end() for worker in workers])
            pool = stack.enter_context(ThreadPoolExecutor(usable_cores()))

            def given(one: Document) -> list[Passage]:
                before = self._before.get(one.path)
                if store and before and not one.problems and self._stands(one, before):
                    start = first[one.path]
                    return [store.read(row) for row in range(start, start + before.passages)]
                return [] if one.problems else self._read(one, workers)

            for begin in range(0, len(self._gave), _WINDOW):
                window = self._gave[begin : begin + _WINDOW]
                for number, (one, passages) in enumerate(zip(window, pool.map(given, window), strict=True), begin):
                    yield from ((number, page, (kind, page, said)) for kind, page, said in one.problems)
                    for passage in passages:
                        words = " ".join(passage.text.casefold().split())
                        key = hashlib.blake2b(words.encode(), digest_size=16).digest()
                        if (other := seen.setdefault(key, passage.id)) != passage.id:
                            one.repeated += 1
                            yield number, 0, ("repeated", 0, f"{passage.id} says the same as {other}")
                        else:
                            one.passages += 1
                            yield number, 0, passage
                    progress.advance(1)

    def _stands(self, one: Document, before: Document) -> bool:
        """Takes over what a document gave before, where its content is the same and all that it gave is at hand."""
        unsure = before.repeated or any(kind in _UNSURE for kind, _, _ in before.problems)
        if unsure or (one.sha256, self._form) != (before.sha256, before.form):
            return False
        one.pages, one.dropped, one.problems, one.read = before.pages, before.dropped, before.problems, False
        return True

    def _read(self, one: Document, workers: list[BoundedProcess]) -> list[Passage]:
        """A document's passages, by the worker of this thread."""
        path = self._root / one.path
        if not hasattr(self._workers, "own"):
            command = (sys.executable, "-I", "-X", "utf8", str(WORKER), str(self._config.memory_mb))
            self._workers.own = BoundedProcess(command, self._config.seconds)
            workers.append(self._workers.own)
        asked = {"path": str(path.absolute()), "kind": KINDS[path.suffix.lower()]}
        reply = self._workers.own.ask(json.dumps(asked).encode())
        trouble: Trouble = ("died", 0, "ended the process that read it (too little memory? --documents.memory_mb)")
        if self._workers.own.late:
            trouble = ("slow", 0, f"took more than {self._config.seconds:g} s: --documents.seconds raises the bound")
        try:
            told = _TOLD.validate_python(decoded(reply or b""))
        except ValueError:  # a document may have taken the process over
            self._workers.own.end()
            told = Told(0, [], {}, [trouble])
        one.pages, one.dropped, one.problems = told.pages, told.dropped, told.problems
        passages = list(self._cut(told.blocks, one.path))
        facts = path.stat() if path.is_file() else None
        if facts is None or not one.is_as(Document("", facts.st_size, facts.st_mtime_ns)):
            one.problems, passages = [("changed", 0, "changed while it was read: run the command again")], []
        elif not passages and not one.problems:
            one.problems = [("empty", 0, "holds no text")]
        return passages

    def finish(self, folder: Path) -> None:
        """Writes what was read into an index folder, and says it."""
        write_records(folder / DOCUMENTS, self._gave)
        dropped = sum((Counter(one.dropped) for one in self._gave), Counter[str]())
        dropped["repeated passages"] = sum(one.repeated for one in self._gave)
        left_out = ", ".join(f"{name} {count:,}" for name, count in dropped.items() if count)
        as_before = sum(not one.read for one in self._gave)
        before = f" ({as_before:,} as before)" if as_before else ""
        pages = sum(one.pages for one in self._gave)
        say(f"index: documents: {len(self._gave):,}{before}{f', of {pages:,} pages' if pages else ''}"
            f"{'; left out: ' if left_out else ''}{left_out}")  # fmt: skip
        if self.others:
            named = ", ".join(f"{ending} {count:,}" for ending, count in self.others.most_common(5))
            say(f"index: files of other types are not read: {named}")


def read_document(path: Path, config: DocumentsConfig) -> tuple[Document, list[Passage]]:
    """What one file was and gave. Raises ModuleNotFoundError where a package is missing."""
    documents = Documents(path, config)
    passages = [value for _, _, value in documents.items() if isinstance(value, Passage)]
    return documents._gave[0], passages


class Originals:
    """The documents that an index folder was built of, as far as they stand where they stood."""

    def __init__(self, folder: Path, corpus: str) -> None:
        path = Path(corpus)
        self._folder, self._root = folder, path if path.is_dir() else path.parent

    @cached_property
    def _known(self) -> dict[str, tuple[int, int, str]]:
        """By path, the size, time and hash of what was read."""
        file = self._folder / DOCUMENTS
        read = read_records(file, Document) if file.is_file() else ()
        return {one.path: (one.bytes, one.mtime_ns, one.sha256) for one in read if one.passages}

    def document(self, passage_id: str, *, checked: bool = False) -> Path | None:
        """As `steprag.agent.retriever.Documented`: a stranger's index leads to no file whose hash it does not have."""
        name = passage_id.rpartition("#")[0]
        size, changed, sha256 = self._known.get(name, (0, 0, ""))
        path = self._root / name
        if not sha256 or path.suffix.lower() not in KINDS or not path.is_file():
            return None
        facts = path.stat()
        if facts.st_size != size or not path.resolve().is_relative_to(self._root.resolve()):
            return None
        same = not checked or facts.st_mtime_ns == changed or file_hash(path) == sha256
        return path if same else None


def cut(blocks: Iterable[Block], path: str) -> Iterator[Passage]:
    """A document's blocks as passages of `MOST` words or a little more. A heading begins a passage, and sentences and
    rows of tables stay whole where they are no longer than one.
    """
    blocks = list(blocks)
    if all(role == "h" for role, _, _ in blocks):
        blocks = [("p", page, text) for _, page, text in blocks]
    made, heading, section = 0, "", list[tuple[str, int, str]]()
    for role, page, text in [*blocks, ("h", 0, "")]:
        if role != "h":
            section.append((role, page, text))
            continue
        for begins, passage in _equal_parts(section):
            made += 1
            title = ", ".join(filter(None, (Path(path).name, f"p. {begins}" if begins else "", heading)))
            yield Passage(f"{path}#{made}", title, passage)
        section, heading = [], text if len(text) <= 120 else f"{text[:119]}…"


def own_chunker(place: str) -> tuple[Callable[[Iterable[Block], str], Iterator[Passage]], int]:
    """A user's `chunk(blocks, path)` in place of `cut`, and a form of its own by its code: another one reads every
    document anew. It returns rows: a text, or an object with `text` and, where it likes, `title` and `page`.

    Raises ConfigError, also while it cuts, for what it raises and for rows of another shape.
    """
    function, form = function_at(place, "documents.chunker"), int(code_hash(place, "documents.chunker")[:12], 16)

    def chunked(blocks: Iterable[Block], path: str) -> Iterator[Passage]:
        try:
            rows = [*function([*blocks], path)]
        except Exception as error:  # whatever a stranger's code raises
            told = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise ConfigError(f"documents.chunker: {place} fails on {path}: {told}") from error
        for number, row in enumerate(rows, 1):
            part: Any = {"text": row} if isinstance(row, str) else row
            typed = isinstance(part, dict) and all(type(value) is _PART.get(key) for key, value in part.items())
            if not typed or not 0 < len(part.get("text", "").strip()) <= LONGEST:
                raise ConfigError(f"documents.chunker: {place} returned {quoted(row)} as row {number} of {path}: give "
                                  f"texts of 1 to {LONGEST:,} characters, or {{text, title, page}}")  # fmt: skip
            page = f"p. {part['page']}" if part.get("page") else ""
            title = ", ".join(filter(None, (Path(path).name, page, part.get("title"))))
            yield Passage(f"{path}#{number}", title, part["text"].strip())

    return chunked, form


def _equal_parts(section: list[tuple[str, int, str]]) -> Iterator[tuple[int, str]]:
    """Page and text of the parts of a section, cut where the fewest words stand between an equal part and a
    paragraph's or sentence's end.
    """
    units: list[tuple[int, int, str, str]] = []  # words so far, page, text, what parts it from the next one
    so_far = 0
    for role, page, text in section:
        pieces = [piece for sentence in ([text] if role == "r" else _sentences(text)) for piece in _short(sentence)]
        for number, piece in enumerate(pieces, 1):
            so_far += len(_WORD.findall(piece))
            units.append((so_far, page, piece, "\n" if number == len(pieces) else " "))
    parts, start = -(-so_far // MOST), 0
    for part in range(1, parts + 1):
        wanted = so_far * part / parts
        end = min(range(start, len(units)), default=start,
                  key=lambda at: abs(units[at][0] - wanted) - _PREFERRED * (units[at][3] == "\n")) + 1  # fmt: skip
        end = len(units) if part == parts else end
        if end > start:
            yield units[start][1], "".join(f"{text}{after}" for _, _, text, after in units[start:end]).strip()
        start = end


def _sentences(text: str) -> Iterator[str]:
    start = 0
    for found in _END.finditer(text):
        if not (found[1] and _SHORT.fullmatch(found[1])):
            yield text[start : found.end()].strip()
            start = found.end()
    if rest := text[start:].strip():
        yield rest


def _short(sentence: str) -> Iterator[str]:
    """The sentence, in pieces of `MOST` words where it is longer."""
    begins = [found.start() for found in _WORD.finditer(sentence)][::MOST] or [0]
    for start, end in zip(begins, [*begins[1:], len(sentence)], strict=True):
        yield sentence[start:end].strip()


def _as_text(path: str) -> str:
    """A path with bytes that are no UTF-8 written out."""
    return path.encode("utf-8", "backslashreplace").decode()
