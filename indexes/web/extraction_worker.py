"""The process that reads pages: bytes of a stranger's page in, title and text out. Run as a file, by `extraction`.

It imports nothing of this package. Frames on both pipes: four bytes of length, big-endian, then so many bytes. In come
two a page, a JSON object {"url", "charset"} and the page; out goes one, {"title", "text"}. Its limits are its own, set
before it reads anything: memory (its argument, in MiB), no files, no processes.
"""

from __future__ import annotations

import codecs
import json
import re
import struct
import sys
from typing import IO, Any

FRAME = 64 << 20
"""Bytes of a frame: more than any page that is fetched."""
LONGEST = 400_000
"""Characters of a text that are handed on."""
_META = re.compile(rb"""<meta[^>]{0,200}charset\s*=\s*["']?\s*([A-Za-z0-9_-]{2,40})""", re.IGNORECASE)
_TEXTUAL = re.compile(
    r"utf-?8(-sig)?|utf-?16([-_]?[lb]e)?|ascii|latin-?1|iso-?8859(-\d+)?|cp\d+|windows-\d+|koi8[-_][rtu]|mac[-_]\w+|"
    r"shift_?jis\w*|euc_?\w+|iso2022_\w+|gb\w+|hz|big5\w*|johab|tis-620|kz1048|ptcp154"
)
"""Codecs of characters; others decode anything but text, or take very long."""


def main() -> None:
    limit(RLIMIT_AS=int(sys.argv[1]) << 20, RLIMIT_FSIZE=0, RLIMIT_CORE=0)
    from trafilatura import bare_extraction

    limit(RLIMIT_NPROC=0)  # behind the import, in which NumPy starts threads
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while (head := read(source)) is not None and (page := read(source)) is not None:
        facts = json.loads(head)
        text = decoded(page, facts["charset"])
        found: Any = bare_extraction(
            text, url=facts["url"], include_comments=False, include_tables=True, with_metadata=True
        )
        title, said = (found.title or "", found.text or "") if found is not None else ("", "")
        write(sink, json.dumps({"title": title[:1000], "text": said[:LONGEST]}).encode())


def limit(**limits: int) -> None:
    """Bounds this process for good, by the system's names. Where the system has no such limits, time alone bounds."""
    try:
        import resource
    except ImportError:
        return
    for what, most in limits.items():
        if hasattr(resource, what):
            resource.setrlimit(getattr(resource, what), (most, most))


def decoded(page: bytes, charset: str) -> str:
    """The page's text: by its byte order mark, what its sender said, what it says itself, UTF-8, or Windows-1252."""
    if page.startswith(codecs.BOM_UTF8):
        return page.decode("utf-8-sig", "replace")
    if page.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return page.decode("utf-16", "replace")
    said = _META.search(page[:4096])
    for name in (charset, said.group(1).decode() if said else ""):
        if (codec := codec_of(name)) is not None:
            return page.decode(codec, "replace")
    try:
        return page.decode("utf-8")
    except UnicodeDecodeError as error:
        cut = len(page) - error.start < 4  # the cap fell into a character
        return page.decode("utf-8" if cut else "cp1252", "replace")


def codec_of(name: str) -> str | None:
    """Python's codec for a charset as the web names it; None for what is none of text."""
    try:
        codec = codecs.lookup(name.strip().strip("\"'")).name if name else ""
    except (LookupError, ValueError):
        return None
    if not _TEXTUAL.fullmatch(codec):
        return None
    return "cp1252" if codec in ("iso8859-1", "ascii") else codec  # as browsers take them


def read(source: IO[bytes]) -> bytes | None:
    """One frame; None at the end of the stream."""
    head = source.read(4)
    if len(head) < 4:
        return None
    (size,) = struct.unpack(">I", head)
    if size > FRAME:
        return None
    body = source.read(size)
    return body if len(body) == size else None


def write(sink: IO[bytes], body: bytes) -> None:
    """Sends one frame."""
    sink.write(struct.pack(">I", len(body)) + body)
    sink.flush()


if __name__ == "__main__":
    main()
