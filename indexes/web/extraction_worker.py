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
from collections.abc import Iterator
from typing import IO, Any

FRAME = 64 << 20
"""Bytes of a frame: more than any page that is fetched."""
LONGEST = 400_000
"""Characters of a text that are handed on."""
_META = re.compile(
    rb"""<(?:meta[^>]{0,200}charset|\?xml[^>]{0,200}encoding)\s*=\s*+["']?\s*+([A-Za-z0-9_-]{2,40})""", re.IGNORECASE
)
_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32",
          codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}  # fmt: skip
_SHIFTED = re.compile(rb"\0|\x1b[$(]|~\{")
"""What UTF-8 has nowhere, or seldom: UTF-16 has zeros, ISO 2022 and HZ shift to other letters."""
_SUPERSETS = {"iso8859-1": "cp1252", "ascii": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874",
              "tis-620": "cp874", "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932",
              "euc_kr": "cp949"}  # fmt: skip
"""Codecs as browsers take them."""
_EASTERN = ("gb18030", "big5", "cp932", "euc-jp", "cp949")
_OLD = ("cp866", "cp850", "cp437", "mac-roman", "mac-cyrillic", "iso8859-5", "iso8859-2", "cp852", "cp857")
"""Of DOS, the first Macintosh and early Unix."""
_MIXED = re.compile(r"[A-Za-z][\u0370-\u1fff]|[\u0370-\u1fff][A-Za-z]")
_LONE = re.compile(r"(?<=[A-Za-z])[^\x00-\u2e7f](?![^\x00-\x7f])|(?<![^\x00-\x7f])[^\x00-\u2e7f](?=[A-Za-z])")
_ODD = re.compile(r"[^\W\d_][¡-©«¬®-¶¸¹»-¿×÷†‡•‰‹›“”„™│-▟][^\W\d_]")
"""A sign within a word, as letters of another script have it that are read as Latin ones."""
_TURKISH, _NOT_TURKISH = re.compile(rb"[\xd0\xdd\xde\xf0\xfd\xfe]"), re.compile(rb"[\xe1\xed\xf3\xe6]")
"""Windows-1254 has Turkish letters where 1252 has Icelandic ones, whose texts hold the second ones too."""
_TEXTUAL = re.compile(
    r"utf-?8(-sig)?|utf-?(16|32)([-_]?[lb]e)?|ascii|latin-?1|iso-?8859(-\d+)?|cp\d+|windows-\d+|koi8[-_][rtu]|mac[-_]\w+|"
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
        try:
            text = decoded(page, facts["charset"])
        except UnicodeError:
            text = ""
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
    """The page's text. Raises UnicodeError where its bytes are of no encoding that can be told."""
    codec = encoding_of(page, charset)
    if codec is None:
        raise UnicodeError("is text of an unknown encoding: save it as UTF-8")
    return page.decode(codec, "replace")


def encoding_of(page: bytes, charset: str = "") -> str | None:
    """Python's codec for a text: by its byte order mark, what its sender said, what it says itself, UTF-8, or what its
    bytes look like. One that its bytes are not of is passed over; None: nothing fits.
    """
    for mark, codec in _MARKS.items():
        if page.startswith(mark):
            return codec
    is_shifted = _SHIFTED.search(page)
    shifted = _guessed(page) if is_shifted else None
    if shifted and shifted.startswith(("utf-", "iso2022", "hz")):
        return shifted
    said = _META.search(page[:4096])
    own = codec_of(said.group(1).decode()) if said else None
    for codec in dict.fromkeys((codec_of(charset), own, "utf-8")):
        if codec and _fits(page, codec):
            return codec
    return shifted if is_shifted else _guessed(page)


def _fits(page: bytes, codec: str) -> bool:
    """Whether the bytes are of this codec: one letter in twenty that are no ASCII may be broken, or the cap cut it."""
    text = page.decode(codec, "replace")
    broken = text.count("\ufffd")
    if not broken:
        return True
    others = len(text) - len(text.encode("ascii", "ignore"))
    return 20 * (broken - (len(page) > 4096 and text.endswith("\ufffd"))) < others


def _guessed(page: bytes) -> str | None:
    """The codec that the bytes look like. Letters of two scripts within words, or single Chinese signs beside Latin
    letters, mean that a Western one was missed, and signs within words that an Eastern one was.
    """
    from chardet import EncodingEra, detect

    def best(**among: Any) -> tuple[str, float]:
        found = detect(page, prefer_superset=True, **among)
        return codec_of(found["encoding"] or "") or "", found["confidence"]

    (codec, sure), (old, surer) = best(encoding_era=EncodingEra.MODERN_WEB), best(include_encodings=(*_OLD, "cp1252"))
    if old != "cp1252" and surer > max(1.2 * sure, 0.08):
        codec = old

    def candidates() -> Iterator[str]:
        yield from (codec, old, "cp1252")
        yield best(include_encodings=_EASTERN, no_match_encoding="gb18030")[0]

    codec = next((one for one in candidates() if one and _reads(page.decode(one, "replace"))), "")
    if codec == "cp1252" and _TURKISH.search(page) and not _NOT_TURKISH.search(page):
        codec = "cp1254"
    return codec if codec and _fits(page, codec) else None


def _reads(text: str) -> bool:
    """Whether the letters of a text may stand side by side."""
    runs = len(re.findall(r"[^\x00-\x7f]+", text))
    return 2 * len(_MIXED.findall(text)) <= runs and 2 * len(_LONE.findall(text)) <= runs and not _ODD.search(text)


def codec_of(name: str) -> str | None:
    """Python's codec for a charset as the web names it; None for what is none of text."""
    try:
        codec = codecs.lookup(name.strip().strip("\"'")).name if name else ""
    except (LookupError, ValueError):
        return None
    return _SUPERSETS.get(codec, codec) if _TEXTUAL.fullmatch(codec) else None


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
