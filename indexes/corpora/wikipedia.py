"""Wikipedia dumps (`pages-articles.xml`, plain or compressed): articles as passages of 100 words.

mwxml reads the dump, mwparserfromhell the wiki markup; both come with the extra `wikipedia`. Articles are cut into
disjoint blocks of 100 words as DPR's corpus is (Karpukhin et al. 2020), but the last block keeps its own length.
"""

from __future__ import annotations

import io
import json
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from indexes.corpora.cutting import WORDS
from indexes.corpora.templates import FRAME, render
from indexes.web.extraction import BoundedProcess
from indexes.web.extraction_worker import limit, read, write
from steprag.console.progress import say
from steprag.engines.threads import usable_cores
from steprag.errors import ConfigError, DataError, quoted
from steprag.extras import remedy
from steprag.records.packed import NotWhole, open_bytes
from steprag.types import Passage

WINDOW = 256
"""Pages that wait in memory, for each process that parses."""
SECONDS, MEMORY = 30.0, 2 << 30
"""What an article may take to be read; the longest of the English Wikipedia take some seconds."""
NAMED = 8
"""Templates and tags that are named when the dump is read; the others are counted."""
_DROPPED = {
    **dict.fromkeys(("ref", "references", "gallery", "imagemap", "templatestyles", "section", "templatedata"), FRAME),
    **dict.fromkeys(("categorytree", "inputbox", "mapframe", "maplink"), FRAME),
    **{tag: f"<{tag}>" for tag in ("table", "math", "chem", "ce", "timeline", "score", "hiero", "graph")},
    **{tag: f"<{tag}>" for tag in ("syntaxhighlight", "source")},
}
"""Tags that are left out with all that is in them, and the name under which they are counted."""
_PLAIN = re.compile(r"[^\\{}^_$]*")
"""A chemical formula that reads as it stands: `H2O`."""
_BREAK = re.compile(r"</?[bh]r\b[^<>]*>|(</(?:p|li|div|d[dt]|blockquote)\s*>)", re.IGNORECASE)
"""Tags that part words for a reader: those without content are a blank, others end before one."""
_MEDIA = re.compile(r"\s*(file|image|category|media)\s*:", re.IGNORECASE)
_ENDING = re.compile(r"^\s*(see also|references|external links|further reading|notes|bibliography)\s*$", re.IGNORECASE)


def dump_passages(path: Path, *, processes: int | None = None) -> Iterator[tuple[int, Passage]]:
    """(page's position in the dump, passage) in the dump's order; ids are PAGE-BLOCK. Redirects and other
    namespaces than articles are left out, and so are articles that exceed `SECONDS` or `MEMORY`, which are named.
    Raises DataError where the dump is damaged or ends early.
    """
    import_parsers()
    pages, dropped, odd, idle = _pages(path), Counter[str](), list[str](), SimpleQueue[BoundedProcess]()
    cores = processes or usable_cores()
    code = f"import sys; sys.path[:0] = {sys.path!r}; from {__name__} import read_articles; read_articles()"

    def read_text(page: tuple[int, str, str, str]) -> bytes | None:
        worker = idle.get()
        try:
            return worker.ask(page[3].encode("utf-8", "replace"))
        finally:
            idle.put(worker)

    with ThreadPoolExecutor(cores) as pool, ExitStack() as stack:
        for _ in range(cores):
            idle.put(worker := BoundedProcess((sys.executable, "-I", "-X", "utf8", "-c", code), SECONDS))
            stack.callback(worker.end)
        while window := list(islice(pages, WINDOW * cores)):
            for (number, id, title, _), told in zip(window, pool.map(read_text, window), strict=True):
                if told is None:
                    odd.append(title)
                    continue
                text, left_out = json.loads(told)
                dropped.update(left_out)
                words = text.split()
                for block, start in enumerate(range(0, len(words), WORDS)):
                    yield number, Passage(f"{id}-{block}", title, " ".join(words[start : start + WORDS]))
    _say_dropped(dropped)
    if odd:
        say(f"index: articles left out, whose markup takes more than {SECONDS:g} s or {MEMORY >> 20:,} MiB, or cannot "
            f"be read: {len(odd):,} (the first is {quoted(odd[0])})")  # fmt: skip


def read_articles() -> None:
    """Answers the markup of an article with its text and what is left out of it, until standard input ends. Lives in a
    process of its own: the parser's time may grow with the square of a page, and no signal ends it otherwise.
    """
    limit(RLIMIT_AS=MEMORY, RLIMIT_FSIZE=0, RLIMIT_CORE=0)
    while (frame := read(sys.stdin.buffer)) is not None:
        signal.alarm(int(SECONDS) + 1)  # whoever asks may have been killed
        left_out = Counter[str]()
        text = plain_text(frame.decode(), left_out)
        signal.alarm(0)
        write(sys.stdout.buffer, json.dumps((text, left_out)).encode())


def _say_dropped(dropped: Counter[str]) -> None:
    """Says which templates and tags show no text in the passages."""
    frame, total = dropped.pop(FRAME, 0), dropped.total()
    named = ", ".join(f"{name} {count:,}" for name, count in dropped.most_common(NAMED))
    more = f" and {len(dropped) - NAMED} other kinds" if len(dropped) > NAMED else ""
    if frame or total:
        say(f"index: templates and tags left out: {total:,}{f' ({named}{more})' if total else ''}, and {frame:,} of"
            f" {FRAME} (infoboxes, citations, notes)")  # fmt: skip


def import_parsers() -> None:
    """Raises ConfigError where the extra is not installed."""
    try:
        import mwparserfromhell  # noqa: F401  # pyright: ignore[reportMissingImports] - the extra "wikipedia"
        import mwxml  # noqa: F401  # pyright: ignore[reportMissingImports] - the extra "wikipedia"
    except ImportError:
        raise ConfigError(f"a Wikipedia dump needs two more packages: {remedy('wikipedia')}") from None


def _pages(path: Path) -> Iterator[tuple[int, str, str, str]]:
    """Position, page id, title and markup of every article that is no redirect."""
    import mwxml  # pyright: ignore[reportMissingImports] - the extra "wikipedia"

    with io.TextIOWrapper(open_bytes(path), encoding="utf-8") as stream:
        try:
            pages: Any = mwxml.Dump.from_file(stream)
            for number, page in enumerate(pages, 1):
                if page.namespace == 0 and page.redirect is None:
                    markup = next((revision.text for revision in page), None)
                    yield number, str(page.id), str(page.title), markup or ""
        except (NotWhole, UnicodeDecodeError, SyntaxError) as error:  # ElementTree's ParseError is a SyntaxError
            raise DataError(path, f"not a whole Wikipedia dump: {error}", remedy="fetch it again") from None


def plain_text(markup: str, dropped: Counter[str]) -> str:
    """An article's prose: without tables, formulas, references, pictures, categories and the lists at its end.
    Templates are what they show; `dropped` counts those that show nothing, and the tags that are left out.
    """
    import mwparserfromhell  # pyright: ignore[reportMissingImports] - the extra "wikipedia"

    wikicode: Any = mwparserfromhell.parse(_BREAK.sub(r"\1 ", markup))
    for tag in wikicode.ifilter_tags(matches=_is_dropped):
        if _remove(wikicode, tag):
            dropped[_DROPPED[_named(tag)]] += 1
    for link in wikicode.ifilter_wikilinks(matches=lambda node: _MEDIA.match(str(node.title))):
        _remove(wikicode, link)
    render(wikicode, dropped)
    kept = []
    for section in wikicode.get_sections(flat=True, include_lead=True):
        headings = section.filter_headings()
        if headings and _ENDING.match(str(headings[0].title)):
            continue
        for heading in headings:
            section.remove(heading)
        kept.append(section.strip_code(normalize=True, collapse=True))
    return "\n".join(kept)


def _named(tag: Any) -> str:
    return str(tag.tag).strip().lower()


def _is_dropped(tag: Any) -> bool:
    name = _named(tag)
    return name in _DROPPED and not (name in ("chem", "ce") and _PLAIN.fullmatch(str(tag.contents)))


def _remove(wikicode: Any, node: Any) -> bool:
    """Whether it was there: not inside one that is gone already."""
    try:
        wikicode.remove(node)
    except ValueError:
        return False
    return True
