"""The one decoder of JSON that others wrote: files, replies, columns of a database."""

from __future__ import annotations

import ast
import json
import math
import re
from contextlib import suppress
from typing import Any, Literal, NoReturn

from steprag.errors import shortened


class NotJson(ValueError):
    """Bytes or text that are no JSON, or JSON that no file of ours could hold again.

    The message says what is wrong. `kind`: "encoding" where it is no UTF-8, else "json". `line` counts from 0.
    """

    def __init__(self, problem: str, line: int = 0, kind: Literal["encoding", "json"] = "json") -> None:
        super().__init__(problem)
        self.line = line
        self.kind: Literal["encoding", "json"] = kind


def _no_number(name: str) -> NoReturn:
    raise NotJson(f"{name} is no number in JSON")


def _number(digits: str) -> float:
    """A number with a point or an exponent. Raises NotJson where it is infinity to a float, which no file can hold."""
    value = float(digits)
    if math.isinf(value):
        raise NotJson(f"{shortened(digits, 40)} is more than a float holds")
    return value


_ITEM = r"""(?:(?<!\\)'(?:[^'\\]|\\.)*+'|(?<!\\)"(?:[^"\\]|\\.)*+"|None|-?\d+(?:\.\d+)?)"""
_PYTHON_LIST = re.compile(rf"\[\s*(?=['\"]){_ITEM}(?:[\s,]+{_ITEM})*[\s,]*\]", re.DOTALL)
"""A list of texts as Python writes it, or as NumPy does, without commas."""
_ITEMS = re.compile(_ITEM, re.DOTALL)
LONGEST_LITERAL = 2**16
"""Characters of a text that is read as a list or an object of Python's."""
_SURROGATE = re.compile(r"\\u[dD]")
"""The only way in for half a surrogate pair."""
_STRICT, _LENIENT = json.JSONDecoder(parse_constant=_no_number, parse_float=_number), json.JSONDecoder()


def decoded(content: bytes | str, *, finite: bool = True) -> Any:
    """The JSON value of a text, or of UTF-8, behind a byte order mark or without one. `finite` False takes NaN and
    Infinity, which metrics of ours may hold.

    Raises NotJson for anything else: no UTF-8, no JSON, half a surrogate pair, nesting that Python cannot follow (about
    1,000 levels), a number of more than 4,300 digits or, with `finite`, one that is infinity to a float.
    """
    try:
        text = (content.decode() if isinstance(content, bytes) else content).removeprefix("\ufeff")
        value = _value(text, _STRICT if finite else _LENIENT)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start)
        raise NotJson(f"not UTF-8: byte {error.object[error.start]:#04x}", line, "encoding") from None
    except json.JSONDecodeError as error:
        raise NotJson(f"not JSON: {error.msg} at column {error.colno}", error.lineno - 1) from None
    except UnicodeEncodeError:
        raise NotJson("half a surrogate pair, which is no character", kind="encoding") from None
    except RecursionError:
        raise NotJson("lists or objects are nested too deep") from None
    except NotJson:
        raise
    except ValueError:  # Python's limit: 4,300 digits
        raise NotJson("a number has too many digits") from None


def _value(text: str, decoder: json.JSONDecoder) -> Any:
    """As `decoder.decode`, which looks for blanks around every text: most of ours have a newline behind or none."""
    try:
        value, end = decoder.scan_once(text, 0)  # pyright: ignore[reportAttributeAccessIssue] - typeshed lacks it
    except StopIteration:
        return decoder.decode(text)
    return value if text[end:] in ("", "\n") else decoder.decode(text)


def as_json(value: Any) -> Any:
    """A value of Parquet, a workbook, an array or the hub as JSON has it: NaN is null, dates and bytes are text."""
    if isinstance(value, dict):
        return {name: as_json(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, str | bool | int | float) else str(value)


def literal(text: str) -> Any:
    """The list or object that a text holds as JSON, Python or NumPy write it; None for any other text."""
    text = text.strip()
    if len(text) > LONGEST_LITERAL or text[:1] not in ("[", "{"):
        return None
    with suppress(NotJson):
        return decoded(text)
    try:
        if text[0] == "{":
            value = ast.literal_eval(text)
        else:  # item by item: Python would join texts without a comma between
            value = [ast.literal_eval(item) for item in _ITEMS.findall(text)] if _PYTHON_LIST.fullmatch(text) else None
        return decoded(json.dumps(value))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
