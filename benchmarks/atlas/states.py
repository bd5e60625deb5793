"""The fifty US states from us."""

import us

from benchmarks.atlas.model import Entity, Value, counted, plain


def load_states() -> list[Entity]:
    """The fifty US states."""
    titles = {"GA": "Georgia (U.S. state)", "WA": "Washington (state)", "NY": "New York (state)"}
    labels = {"GA": "the US state of Georgia", "WA": "Washington state", "NY": "New York State"}
    zones = {
        "America/New_York": "Eastern",
        "America/Chicago": "Central",
        "America/Denver": "Mountain",
        "America/Los_Angeles": "Pacific",
    }
    found = []
    for state in us.STATES:
        if state.abbr == "DC":
            continue
        facts = {
            "capital": Value(state.capital, link=f"city:US-{state.abbr}:{plain(state.capital)}"),
            "statehood": Value(str(state.statehood_year), number=float(state.statehood_year)),
            "postal": Value(state.abbr),
            "press": Value(state.ap_abbr),
        }
        if len(state.counties) > 2 and state.abbr not in ("AK", "LA", "VA", "CT"):
            facts["counties"] = counted(len(state.counties))
        if len(state.time_zones) == 1 and state.time_zones[0] in zones:
            facts["zone"] = Value(zones[state.time_zones[0]])
        key = f"state:{state.abbr}"
        name = str(state.name)
        found.append(Entity(key, "state", name, labels.get(state.abbr, name), titles.get(state.abbr, name), key, facts))
    return found
