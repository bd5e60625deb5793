"""Numbers and dates as a spreadsheet shows them, by the plain ones of its number formats."""

from __future__ import annotations

import datetime
import re
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

_LITERAL = re.compile(r'"([^"]*)"|\\(.)|[_*].|\[\$([^\]-]*)[^\]]*\]|\[(?:[A-Z][a-z]+|Color ?\d+)\]')
"""What a format shows as it stands, a currency, and marks of width and colour, which show nothing."""
_HELD = "\0"
"""In place of a literal."""
_NUMBER = re.compile(r"([^#0?,.A-Z]*)([#0,]*[#0])(?:\.([#0]+))?([^#0?,.A-Z]*)")
_TOKEN = re.compile(r"yyyy|yy|m{1,4}|d{1,4}", re.IGNORECASE)
_DATES = {"yyyy": "%Y", "yy": "%y", "mmmm": "%B", "mmm": "%b", "mm": "%m", "m": "%m", "dddd": "%A", "ddd": "%a",
          "dd": "%d", "d": "%d"}  # fmt: skip
_TIME = re.compile(r"[ T,]{0,3}h{1,2}:mm(?::ss)?(?:\.0{1,3})?(?: am/pm)?", re.IGNORECASE)
_LOCAL = ("mm-dd-yy", "m/d/yy h:mm")
"""Built-in formats, whose order of day and month is that of the country where the file is opened."""
_MOST = 10**15
"""Numbers of more digits are not exact."""


def shown(value: Any, code: str) -> Any:
    """A cell's value as its format shows it; a text, and a number in a general format, as it is. None for a format that
    is not read.
    """
    if isinstance(value, str | bool):
        return value
    sections = code.split(";")
    if isinstance(value, datetime.date):
        return None if code in _LOCAL else _filled(sections[0], value, _date)
    if not isinstance(value, int | float) or abs(value) > _MOST:
        return None
    if code in ("General", "@", ""):
        return value if isinstance(value, int) else float(f"{value:.15g}")
    negative = value < 0 and len(sections) > 1
    text = _filled(sections[negative], Decimal(repr(abs(value))), _number)
    return f"-{text}" if text and value < 0 and not negative else text


def _filled(section: str, value: Any, show: Any) -> str | None:
    """The value in a section of a format, by `show` and with the literals where they stand."""
    literals = ["".join(filter(None, found.groups())) for found in _LITERAL.finditer(section)]
    text = show(value, _LITERAL.sub(_HELD, section))
    if text is None:
        return None
    first, *others = text.split(_HELD)
    return "".join([first, *(literal + other for literal, other in zip(literals, others, strict=False))]).strip()


def _number(value: Decimal, pattern: str) -> str | None:
    match = _NUMBER.fullmatch(pattern)
    if not match:
        return None
    before, whole, part, behind = match[1], match[2], match[3] or "", match[4]
    value *= 100 ** pattern.count("%")
    digits, _, rest = f"{value.quantize(Decimal(1).scaleb(-len(part)), ROUND_HALF_UP):f}".partition(".")
    rest = rest[: part.count("0")] + rest[part.count("0") :].rstrip("0")
    digits = f"{int(digits):,}" if "," in whole else digits.zfill(whole.count("0"))
    return f"{before}{digits}{'.' * bool(rest)}{rest}{behind}"


def _date(value: Any, pattern: str) -> str | None:
    """A date, without the midnight behind it; times are not read."""
    if getattr(value, "hour", 0) or getattr(value, "minute", 0) or getattr(value, "second", 0):
        return None
    pattern = _TIME.sub("", pattern)
    if not pattern or re.search(r"[A-Za-z\[]", _TOKEN.sub("", pattern)):
        return None

    def part(token: re.Match[str]) -> str:
        text = value.strftime(_DATES[token[0].lower()])
        return text.lstrip("0") if len(token[0]) == 1 else text

    return _TOKEN.sub(part, pattern)
