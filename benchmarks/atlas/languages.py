"""Currencies and languages from babel (CLDR) and pycountry."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import pycountry
from babel import Locale, UnknownLocaleError
from babel.core import get_global
from babel.numbers import get_currency_name, get_currency_symbol

from benchmarks.atlas.model import Entity, Value, listing, plain

SCRIPTS_LEFT_OUT = frozenset(
    {"zh", "ja", "ko", "sr", "no", "nb", "nn", "az", "uz", "kk", "mn", "ha", "ms", "tg", "tk", "sd", "pa", "ku"}
)
RIGHT_TO_LEFT = frozenset({"Arabic", "Hebrew", "Thaana", "Syriac", "N’Ko", "Adlam", "Hanifi"})
DIRECTION = {"rtl": "right to left", "ltr": "left to right"}
LANGUAGES_LEFT_OUT = frozenset({"ab", "bo", "hnj", "trv", "os", "sdh"})  # their home in CLDR is disputed or doubtful
MENDED = {"New Zaire": "new zaire", "Guyanaese": "Guyanese", "Kyrgystani": "Kyrgyzstani", " & ": " and "}
SHARED = frozenset({"ZAR", "INR"})  # also accepted in neighbouring countries
FIRST_YEAR = 1950  # CLDR's dates of older currencies are patchy


def _lower_noun(name: str) -> str:
    """ "Albanian Lek" → "Albanian lek"; "Papua New Guinean Kina" → "Papua New Guinean kina"."""
    words = name.split(" ")
    kept = {"CFA", "CFP", "East", "Caribbean", "BCEAO", "BEAC"}
    if len(words) == 1:
        return words[0].lower()
    last = words[-1] if words[-1] in kept else words[-1].lower()
    middle = [word.lower() if at and word in ("Convertible", "Silver") else word for at, word in enumerate(words[:-1])]
    return " ".join([*middle, last])


def currency_name(code: str) -> str:
    """The English name in CLDR, as inside a sentence and without its years."""
    name = get_currency_name(code, locale="en").split(" (")[0]
    for slip, mended in MENDED.items():
        name = name.replace(slip, mended)
    return {"XOF": "West African CFA franc", "XAF": "Central African CFA franc"}.get(code, _lower_noun(name))


def _dated(code: str, country: str) -> tuple[int | None, str | None]:
    """The year in which `code` came into use in `country`, and the name of the tender it replaced."""
    rows = [row for row in get_global("territory_currencies")[country] if row[3] and row[1]]
    current = [row for row in rows if row[0] == code]
    if not current:
        return None, None
    start = current[-1][1]
    year = start[0] if start[0] >= FIRST_YEAR else None
    before = [row for row in rows if row[0] != code and row[2] and abs(row[2][0] - start[0]) <= 3 and row[1] < start]
    if year is None or len(before) != 1:
        return year, None
    old = currency_name(before[0][0])
    return year, None if plain(old) == plain(currency_name(code)) or "Hard" in old else old


def load_currencies(users: Mapping[str, Sequence[tuple[str, str]]]) -> list[Entity]:
    """Currencies by ISO code; `users` lists (country code, name inside a sentence) of each."""
    bases: dict[str, list[str]] = defaultdict(list)
    for code in users:
        bases[plain(currency_name(code).split()[-1])].append(code)
    found = []
    for code in sorted(users):
        name = currency_name(code)
        base = name.split()[-1]
        countries = users[code]
        single = len(countries) == 1
        facts = {"iso": Value(code), "users": Value(listing([inside for _, inside in countries[:5]]))}
        number = pycountry.currencies.get(alpha_3=code)
        if number is not None and number.numeric:
            facts["number"] = Value(number.numeric)
        symbol = get_currency_symbol(code, locale="en")
        if symbol != code:
            facts["symbol"] = Value(symbol)
        if single:
            facts["country"] = Value(countries[0][1], link=f"country:{countries[0][0]}")
            year, old = _dated(code, countries[0][0])
            if year:
                facts["since"] = Value(str(year), number=float(year))
            if old:
                facts["before"] = Value(old, (old.split()[-1],))
        if len(bases[plain(base)]) == 1 and single and base != name and code not in SHARED:
            facts["base"] = Value(base, (name,))
        group = f"country:{countries[0][0]}" if single else f"currency:{code}"
        title = name[0].upper() + name[1:]
        found.append(Entity(f"currency:{code}", "currency", f"the {name}", f"the {name}", title, group, facts))
    return found


def _script(code: str) -> str | None:
    if code in SCRIPTS_LEFT_OUT:
        return None
    likely = get_global("likely_subtags").get(code, "").split("_")
    if len(likely) < 2:
        return None
    return Locale("en").scripts.get(likely[1])


def _share(language: str, home: str, people: Mapping[str, float]) -> float:
    """The part of a language's speakers (after CLDR) who live in its home country."""
    speakers: dict[str, float] = {}
    for code, count in people.items():
        rows = get_global("territory_languages").get(code, {})
        percent = sum(row["population_percent"] for tag, row in rows.items() if tag.split("_")[0] == language)
        speakers[code] = percent * count
    return speakers.get(home, 0.0) / (sum(speakers.values()) or 1.0)


def _writing(code: str, name: str) -> dict[str, Value]:
    """The script, its direction, and the language's name for itself where that is in Latin letters."""
    facts: dict[str, Value] = {}
    if script := _script(code):
        facts["script"] = Value(script.split(" (")[0], (f"{script} script", f"{script} alphabet"))
        facts["direction"] = Value(DIRECTION["rtl" if script in RIGHT_TO_LEFT else "ltr"])
    own = _own_name(code)
    if own and all(ord(char) < 0x250 for char in own) and plain(own)[:4] != plain(name)[:4] and "(" not in own:
        facts["own"] = Value(own, (own.lower(),))
    return facts


def _own_name(code: str) -> str | None:
    try:
        return Locale(code).languages.get(code)
    except UnknownLocaleError:
        return None


def load_languages(
    users: Mapping[str, Sequence[str]], countries: Mapping[str, str], people: Mapping[str, float]
) -> list[Entity]:
    """Languages that CLDR names in themselves, and those official in a country of Atlas (`users`: names by code).

    `countries` gives each country code's name inside a sentence, `people` its population.
    """
    found = []
    names = Locale("en").languages
    for row in sorted(pycountry.languages, key=lambda row: row.alpha_3):
        code = getattr(row, "alpha_2", row.alpha_3)
        living = row.type == "L" and (row.scope == "I" or code in users)
        if not living or code not in names or code in LANGUAGES_LEFT_OUT or not (_own_name(code) or code in users):
            continue
        facts = {"code": Value(row.alpha_3), **_writing(code, names[code])}
        home = get_global("likely_subtags").get(code, "").split("_")[-1]
        if len(users.get(code, ())) > 1:
            facts["users"] = Value(listing(list(users[code])[:4]))
        elif home in countries and _share(code, home, people) > 0.93:
            facts["home"] = Value(countries[home], link=f"country:{home}")
        elif home in countries:
            facts["cradle"] = Value(countries[home])
        name, key = names[code], f"language:{code}"
        found.append(Entity(key, "language", name, name, f"{name} language", key, facts))
    return found
