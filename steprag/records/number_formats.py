"""Numbers and dates as a spreadsheet shows them, by the plain ones of its number formats."""

from __future__ import annotations

import datetime
import re
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

_LITERAL = re.compile(r'"([^"]*)"|\\(.)|[_*].|\[\$([^][-]*+)[^][]*+\]|\[(?:[A-Z][a-z]+|Color ?\d+)\]')
"""What a format shows as it stands, a currency, and marks of width and colour, which show nothing."""
_HELD = "\0"
"""In place of a literal."""
_NUMBER = re.compile(r"([^#0?,.A-Z]*)([#0,]*[#0])(?:\.([#0]+))?([^#0?,.A-Z]*)")
_TOKEN = re.compile(r"yyyy|yy|m{1,4}|d{1,4}|h{1,2}|s{1,2}|am/pm", re.IGNORECASE)
_DATES = {"yyyy": "%Y", "yy": "%y", "mmmm": "%B", "mmm": "%b", "mm": "%m", "m": "%m", "dddd": "%A", "ddd": "%a",
          "dd": "%d", "d": "%d", "hh": "%H", "h": "%H", "ss": "%S", "s": "%S", "am/pm": "%p"}  # fmt: skip
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
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
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


def _date(value: datetime.datetime | datetime.date | datetime.time, pattern: str) -> str | None:
    """A date or a time; midnight is left out behind a date."""
    if isinstance(value, datetime.time):
        value = datetime.datetime.combine(datetime.date.min, value)
    if isinstance(value, datetime.datetime) and value.time() == datetime.time() and re.match(r"[^hs]*[yd]", pattern):
        pattern = re.split(r"h", pattern, maxsplit=1)[0].rstrip(" T,")
    if re.search(r"[A-Za-z\[]", _TOKEN.sub("", pattern).replace("T", "")):
        return None
    half, before, text, end = "am/pm" in pattern.lower(), "", "", 0
    for token in _TOKEN.finditer(pattern):
        name, behind = token[0].lower(), _TOKEN.search(pattern, token.end())
        minutes = name in ("m", "mm") and (before[:1] == "h" or (behind is not None and behind[0][0] in "sS"))
        form = "%M" if minutes else "%I" if half and name[0] == "h" else _DATES[name]
        part = value.strftime(form)
        text += pattern[end : token.start()] + (part.lstrip("0") or "0" if len(name) == 1 else part)
        before, end = name, token.end()
    return text + pattern[end:]
