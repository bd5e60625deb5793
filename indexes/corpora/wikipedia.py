"""Wikipedia dumps (`pages-articles.xml`, plain or compressed): articles as passages of 100 words.

mwxml reads the dump, mwparserfromhell the wiki markup; both come with the extra `wikipedia`. Articles are cut into
disjoint blocks of 100 words as DPR's corpus is (Karpukhin et al. 2020), but the last block keeps its own length.
"""

from __future__ import annotations

import io
import multiprocessing
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from indexes.corpora.cutting import WORDS
from indexes.corpora.templates import FRAME, render
from steprag.console.progress import say
from steprag.engines.threads import usable_cores
from steprag.errors import ConfigError, DataError
from steprag.records.packed import NotWhole, open_bytes
from steprag.types import Passage

WINDOW = 256
"""Pages that a process parses at a time; a few windows are in memory at once."""
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
    namespaces than articles are left out. Raises DataError where the dump is damaged or ends early.
    """
    import_parsers()
    pages, dropped = _pages(path), Counter[str]()
    with multiprocessing.get_context("spawn").Pool(processes or usable_cores()) as pool:
        while window := list(islice(pages, WINDOW * (processes or usable_cores()))):
            for number, passages, left_out in pool.map(_cut, window, chunksize=16):
                dropped += left_out
                for passage in passages:
                    yield number, passage
    _say_dropped(dropped)


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
        raise ConfigError("a Wikipedia dump needs two more packages: pip install -e '.[wikipedia]'") from None


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


def _cut(page: tuple[int, str, str, str]) -> tuple[int, list[Passage], Counter[str]]:
    number, page_id, title, markup = page
    dropped = Counter[str]()
    words = plain_text(markup, dropped).split()
    blocks = [" ".join(words[start : start + WORDS]) for start in range(0, len(words), WORDS)]
    return number, [Passage(f"{page_id}-{block}", title, text) for block, text in enumerate(blocks)], dropped


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
