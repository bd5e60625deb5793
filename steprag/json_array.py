"""A JSON array of any length, item by item. Libraries for it were tried: ijson's parser crashes on deep nesting."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import Any, BinaryIO

from steprag.json_text import NotJson, decoded

_STEP = 1 << 20
"""Bytes that are read at first; twice as many each time that an item is longer."""
_BLANKS = " \t\r\n"
_DECODER = json.JSONDecoder()


def array_items(stream: BinaryIO, longest: int) -> Iterator[Any]:
    """The items of a JSON array in UTF-8; little more of it than one item is in memory.

    Raises NotJson as `decoded` does, and for an item of more than `longest` characters.
    """
    window = _Window(stream)
    window.take("[", "it is no array")
    mark = window.mark()
    while mark != "]":
        yield window.item(longest)
        mark = window.mark()
        if mark != "]":
            window.take(",", "it ends before its end, or no comma follows an item")
    window.take("]", "")
    if window.mark():
        raise NotJson("something follows the array")


class _Window:
    """The text from `_place` on, as much of it as was needed."""

    def __init__(self, stream: BinaryIO) -> None:
        self._read = codecs.getreader("utf-8")(stream).read
        self._text, self._place, self._ended = "", 0, False

    def _grow(self, count: int = _STEP) -> None:
        try:
            piece = self._read(count)
        except UnicodeDecodeError as error:
            raise NotJson(f"not UTF-8: byte {error.object[error.start]:#04x}", kind="encoding") from None
        self._text, self._place, self._ended = self._text[self._place :] + piece, 0, not piece

    def mark(self) -> str:
        """The next character that is no blank; it is not passed. Nothing at the end."""
        while True:
            while self._place < len(self._text) and self._text[self._place] in _BLANKS:
                self._place += 1
            if self._place < len(self._text) or self._ended:
                return self._text[self._place : self._place + 1]
            self._grow()

    def take(self, wanted: str, problem: str) -> None:
        """Passes a character that must be next."""
        if self.mark() != wanted:
            raise NotJson(problem)
        self._place += 1

    def item(self, longest: int) -> Any:
        """The value that begins next; it is passed."""
        self.mark()
        step = _STEP
        while True:
            try:
                _, end = _DECODER.raw_decode(self._text, self._place)
            except json.JSONDecodeError:
                end = len(self._text)  # cut off, or no JSON: more text will tell
            except (ValueError, RecursionError):
                decoded(self._text[self._place :])  # raises, and says why
                raise
            if end < len(self._text) or self._ended:
                value = decoded(self._text[self._place : end])
                self._place = end
                return value
            if end - self._place > longest:
                raise NotJson(f"an item of more than {longest:,} characters, or no JSON")
            self._grow(step)
            step *= 2
