"""Templates of wiki markup as text: what readers see of the common inline ones of the English Wikipedia.

Which parameter a template shows is what its page under `Template:` documents. What is not in the tables is left out and
counted: infoboxes, citations and notes as the page's frame, others by their name.
"""

from __future__ import annotations

import calendar
import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

FRAME = "the page's frame"
"""The name under which infoboxes, citations, notes and the like are counted: no prose is lost with them."""
_FRAME = re.compile(
    r"infobox|taxobox|speciesbox|cite\b|citation|sfn|efn|refn?\b|reflist|notelist|rp$|main\b|see also|further"
    r"|short desc|use \w+|good article|featured|coord|authority|navbox|portal|commons|wikiquote|sister|ipa|respell|pron"
    r"|audio|listen|cn$|fact$|when$|who$|clarify|dubious|dead link|webarchive|unreferenced|refimprove|more "
    r"|multiple issues|about|for$|other uses|redirect|distinguish|hatnote|toc|clear|flagicon|flagdeco|anchor"
    r"|defaultsort|pp-|hs$|ntsh|sidebar|.*\bstub$|.*sidebar$|lead |year nav|succession|s-|col-|div col|break$|update"
    r"|outdated|vague|displaytitle"
)
_FORMS = {
    "{1|text|quote}": "nowrap|nobr|nobreak|nowraplinks|small|smaller|big|larger|smallcaps|sc|abbr|abbrlink|tooltip|em"
    "|strong|bold|italic|math|mvar|var|code|mono|samp|kbd|key press|sub|sup|visible anchor|vanchor|va|chem2|angbr"
    "|not a typo|sic|typo|overline|isbn|flag|flagcountry|flagu|flagg|nts|birth-date|death-date|start-date"
    "|quote|blockquote|cquote|quotation|quote box|poem|nfl year|nfly|mlb year|baseball year|nba year|gloss|plainlist"
    "|flatlist|spaces|ordinal to word|title case|center|noitalic|nobold|avoid wrap|raise|lower|wikt|in lang|dts format"
    "|formatnum|lc|uc|lcfirst|ucfirst",
    "{2}": "lang|langx|color|colour|font color|background color|wikt-lang|resize|sort|size",
    "{2|1}": "url|wiktionary|script|wt|oldstyledate|rquote",
    "{lt|1}": "ill|interlanguage link|interlanguage link multi",
    "√{1}": "sqrt|radic",
    "π": "pi",
    "{1} {2}": "sortname|ship|bibleverse|currency|sclass",
    "lit. '{1}'": "lit|literal translation|lit.",
    "×10^{1}": "e",
    "US${1}": "us$|usd|us dollar",
    "A${1}": "a$|aud",
    "C${1}": "c$|ca$|cad",
    "NZ${1}": "nz$|nzd",
    "HK${1}": "hk$|hkd",
    "£{1}": "£|gbp|pound sterling",
    "€{1}": "€|eur|euro",
    "¥{1}": "¥|jpy|yen|jpy¥",
    "CN¥{1}": "cn¥|cny|rmb",
    "₹{1}": "₹|inr|indian rupee",
    "₩{1}": "₩|krw",
    " – ": "snd|spnd|spaced ndash|sndash|spaced en dash",
    "–": "ndash|en dash|–",
    "—": "mdash|em dash|spaced mdash",
    " ": "nbsp|space|thin space|thinsp|br|·|•|dot|middot|bullet",
    "'": "'|`|'\"|apostrophe",
    "'s": "'s",
    "|": "!",
    "=": "=",
    "ʻ": "okina|'okina|hamza|ayin",
}
_SHOWN = {name: form for form, names in _FORMS.items() for name in names.split("|")}
_PLACE = re.compile(r"\{([\w|]+)\}")
_BETWEEN = {"to": "to", "to about": "to about", "and": "and", "or": "or", "and/or": "and/or", "-": "–", "–": "–",
            "by": "by", "x": "×", "×": "×", "xx": "×", "*": "×", "+/-": "±", "±": "±", "+": "+", "plus": "+",
            "minus": "−", ",": ",", ", and": ", and", ", or": ", or"}  # fmt: skip
"""Words between the numbers of a range in {{convert}}, some also with `(-)` behind."""
_SCALES = {"e2": "hundred", "e3": "thousand", "e6": "million", "e9": "billion", "e12": "trillion"}
_SCALED = re.compile(r"(e\d+)(\S.*)")
"""A unit of {{convert}} with a power of ten before it: `e6acre`."""
_MARKS = {"c.": "circa|ca|c.|ca.", "fl.": "floruit|fl.|fl", "b.": "b.|born in", "d.": "d.|died in", "r.": "reign|r."}
"""What stands before a date or a range of two, also without one: `{{circa}} 1911`."""
_NUMBER = re.compile(r"[+\-−]?[.,]*+\d[\d.,]*+(?:[eE][+\-]?\d++)?(?:[+⁄/]\d++(?:[⁄/]\d++)?)?")
_DATES = re.compile(
    r"(birth|death|start|end|film|release|launch|opening|completion|sort)? ?(date|year|dts|dob|bda|dda)\b"
)

Values = Mapping[str, str]
"""A template's parameters as text: "1", "2", … by place, others by name. Empty ones are absent."""


def render(code: Any, dropped: Counter[str]) -> None:
    """Puts what templates show in their places, the inner ones first; `dropped` counts those that show nothing.

    `code` is mwparserfromhell's Wikicode.
    """
    from mwparserfromhell.nodes import Template, Text  # pyright: ignore[reportMissingImports] - the extra "wikipedia"

    for place, node in enumerate(code.nodes):
        for child in node.__children__():
            render(child, dropped)
        if isinstance(node, Template):
            code.nodes[place] = Text(shown(node, dropped))


def shown(template: Any, dropped: Counter[str]) -> str:
    """What a template shows, whose parameters have no templates any more; nothing where no table has it."""
    name, colon, argument = str(template.name).strip().replace("_", " ").partition(":")
    name = name.strip().lower()
    given = {
        str(one.name).strip(): one.value.strip_code(normalize=True, collapse=True).strip() for one in template.params
    }
    given |= {"1": argument.strip()} if colon else {}  # {{formatnum:2450}}
    values = {key: value for key, value in given.items() if value}
    if name in _SHOWN:
        text = _filled(_SHOWN[name], values)
    elif maker := _maker(name):
        text = maker(values)
    else:
        text = _ship(name, values)
    if not text:
        dropped[FRAME if _FRAME.match(name) else name[:40]] += 1
    return text


def _filled(form: str, values: Values) -> str:
    """The form with its places filled; nothing where none of them has a value."""
    places = [next((values[key] for key in found.split("|") if key in values), "") for found in _PLACE.findall(form)]
    if not any(places):
        return "" if places else form
    return _PLACE.sub(lambda _: places.pop(0), form).strip()


def _maker(name: str) -> Callable[[Values], str] | None:
    if name.startswith(("lang-", "script/")):
        return lambda values: values.get("1", "")
    if _DATES.match(name):
        return _date
    return _MAKERS.get(name)


def _by_place(values: Values) -> list[str]:
    return [values[key] for key in sorted((key for key in values if key.isdecimal()), key=int)]


def _measure(values: Values) -> str:
    """{{convert}}: numbers with the unit that they were given in, not the one that they are turned into."""
    parts: list[str] = []
    given = _by_place(values)
    for part, following in zip(given, [*given[1:], ""], strict=True):
        between = _BETWEEN.get(part.removesuffix("(-)"))
        scaled = _SCALED.fullmatch(part)
        unit = f"{_SCALES.get(scaled[1], f'×10^{scaled[1][1:]}')} {scaled[2]}" if scaled else part
        parts.append(between or unit)
        if not between and not _NUMBER.fullmatch(part) and not _NUMBER.fullmatch(following):
            break
    return " ".join(parts).replace(" ,", ",").replace(" ×10^", "×10^")


def _value(values: Values) -> str:
    """{{val}}: a number with its power of ten and its unit."""
    power = f"×10^{values['e']}" if "e" in values else ""
    unit = next((values[key] for key in ("u", "ul", "up", "upl") if key in values), "")
    return f"{values.get('1', '')}{power} {unit}".strip()


def _height(values: Values) -> str:
    return " ".join(f"{values[unit]} {unit}" for unit in ("m", "cm", "ft", "in") if unit in values)


def _fraction(values: Values) -> str:
    given = _by_place(values)
    return f"1/{given[0]}" if len(given) == 1 else " ".join([*given[:-2], "/".join(given[-2:])])


def _date(values: Values) -> str:
    """Year, month, day as "12 March 1911"; the first of two dates; a date in words as it stands."""
    given = _by_place(values)
    if not given or not given[0].isdecimal():
        return given[0] if given else ""
    numbers = given[: next((place for place, one in enumerate(given[:3]) if not one.isdecimal()), 3)]
    year, month, day = [*numbers, "", ""][:3]
    named = calendar.month_name[int(month)] if month and 1 <= int(month) <= 12 else ""
    return " ".join(part for part in (day.lstrip("0") if named else "", named, year) if part)


def _marked(mark: str, values: Values) -> str:
    """A mark and what it stands before; of two dates both are uncertain in a circa, the other marks stand once."""
    return f"{mark} {(' – c. ' if mark == 'c.' else '–').join(_by_place(values)[:2])}".rstrip()


def _year_date(values: Values) -> str:
    return f"{'as of' if 'lc' in values else 'As of'} {_date(values)}" if values else ""


def _age(values: Values) -> str:
    """Whole years between two dates; nothing where the second is today."""
    given = [int(one) for one in _by_place(values) if one.isdecimal()]
    if len(given) != 6:
        return ""
    return str(given[3] - given[0] - (given[4:] < given[1:3]))


def _years_ago(values: Values) -> str:
    return f"{'–'.join(given[:2])} million years ago" if (given := _by_place(values)) else ""


def _foreign_name(values: Values) -> str:
    first, *others = [*_by_place(values), ""]
    more = ", ".join(filter(None, others))
    return f"{first} ({more})" if more else first


def _ordinal(values: Values) -> str:
    number = values.get("1", "")
    end = {"1": "st", "2": "nd", "3": "rd"}.get(number[-1:], "th") if number[-2:-1] != "1" else "th"
    return number + end if number.isdecimal() else number


def _ship(name: str, values: Values) -> str:
    """{{USS|Enterprise|CV-6}}: a prefix of two to four letters that is the template's name."""
    if not re.fullmatch(r"uss|hms|hmas|hmcs|rms|ss|ms|mv|sms|usns|uscgc|css", name) or "1" not in values:
        return ""
    return f"{name.upper()} {values['1']}" + (f" ({values['2']})" if "2" in values else "")


_MAKERS: dict[str, Callable[[Values], str]] = {
    **dict.fromkeys(("convert", "cvt"), _measure),
    "val": _value,
    "height": _height,
    **dict.fromkeys(("frac", "fraction", "sfrac"), _fraction),
    "as of": _year_date,
    **{name: partial(_marked, mark) for mark, names in _MARKS.items() for name in names.split("|")},
    "age": _age,
    **dict.fromkeys(("mya", "million years ago"), _years_ago),
    **dict.fromkeys(("nihongo", "nihongo3", "nihongo krt"), _foreign_name),
    **dict.fromkeys(("transl", "transliteration"), lambda values: "".join(_by_place(values)[-1:])),
    "zh": lambda values: ", ".join(values[key] for key in ("c", "t", "s", "p", "w", "j") if key in values),
    **dict.fromkeys(("ordinal", "nth"), _ordinal),
    **dict.fromkeys(("chem", "gaps", "linktext"), lambda values: "".join(_by_place(values))),
    **dict.fromkeys(("hlist", "ubl", "unbulleted list", "flat list"), lambda values: ", ".join(_by_place(values))),
}
