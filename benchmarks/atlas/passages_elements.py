"""How facts about elements, discoverers, currencies and languages are told; see `passages_geography`."""

from benchmarks.atlas.passages_geography import Layout, Slot

SYMBOL: Slot = (
    ("symbol number", "{N} is a chemical element with the symbol {symbol} and atomic number {number}."),
    (
        "symbol number",
        "The chemical element {n}, written {symbol}, has {number} protons in its nucleus, which is its atomic number.",
    ),
    ("symbol number", "{N} ({symbol}) is element number {number} of the periodic table."),
)
FAMILY: Slot = (
    ("family period", "It is one of the {family} and stands in period {period}."),
    ("family period", "Chemists count it among the {family}; its place is in period {period}."),
    ("column period", "It stands in group {column} and period {period}."),
    ("block period", "It is an {block} element of period {period}."),
)
WEIGHT: Slot = (
    ("weight", "Its atomic weight is about {weight}."),
    ("weight", "An atom of it weighs about {weight} atomic mass units."),
)
FOUND: Slot = (
    ("discoverer year place", "{N} was discovered by {discoverer} in {place} in {year}."),
    (
        "discoverer year place",
        "The discovery of {n} is credited to {discoverer}, who worked in {place}; it dates from {year}.",
    ),
    ("discoverer year place", "In {year}, {discoverer} found {n} in {place}."),
    ("discoverers year place", "{N} was discovered in {place} in {year} by {discoverers}."),
    ("discoverers year place", "In {year}, {discoverers} identified {n} in {place}."),
    ("discoverer year", "{N} was discovered by {discoverer} in {year}."),
    ("discoverers year", "{N} was discovered in {year} by {discoverers}."),
    ("ancient", "{N} has been known since {ancient}, and nobody is named as its discoverer."),
)
ROOT: Slot = (
    ("root_tongue root meaning", "{Its} name comes from the {root_tongue} word {root}, meaning '{meaning}'."),
    ("root_tongue root meaning", "{N} is called after {root}, the {root_tongue} word for '{meaning}'."),
    ("honours", "{N} is named after {honours}."),
    ("honours", "{It} takes its name from {honours}."),
)
USE: Slot = (
    ("use", "{N} is used {use}."),
    ("use", "Among other things, {n} is used {use}."),
)
MINES: Slot = (
    ("producer runners_up", "The leading producer of {n} is {producer}, followed by {runners_up}."),
    ("producer runners_up", "More {n} comes from {producer} than from anywhere else; next come {runners_up}."),
    ("producer runners_up", "{Producer} heads the list of countries that produce {n}, ahead of {runners_up}."),
)
ELEMENT: tuple[tuple[Layout, ...], ...] = (
    (
        ("{t}", (SYMBOL, FAMILY, ROOT)),
        ("Discovery of {n}", (FOUND, WEIGHT)),
        ("Uses of {n}", (USE, MINES)),
    ),
    (
        ("{t}", (SYMBOL, WEIGHT, USE)),
        ("History of {n}", (FOUND, ROOT)),
        ("Production of {n}", (MINES, FAMILY)),
    ),
)
PERSON: tuple[Slot, ...] = (
    (
        (
            "find0 find1 place",
            "{N}, who worked in {place}, is credited with more than one element, {finds} among them.",
        ),
        ("find0 find1", "{N} had a part in the discovery of several elements: {finds}."),
        ("alone find0 place year0", "{N} is remembered for the discovery of {find0} in {place}, dated {year0}."),
        ("alone find0 year0", "{N} had a part in the discovery of {find0} in {year0}."),
    ),
    (
        ("find0 find1 year0 year1", "The work on {find0} dates from {year0}, that on {find1} from {year1}."),
        ("year0 year1", "The first of these is dated {year0}, the next {year1}."),
        ("count", "The tables used here name this chemist for no other element."),
        ("count", "It is the only element that these tables credit to this chemist."),
    ),
)
CURRENCY: tuple[Slot, ...] = (
    (
        ("country iso", "{N} is the money of {country}; banks write it as {iso}."),
        ("country iso", "{N}, with the ISO code {iso}, is issued in {country}."),
        ("country iso", "On exchange boards {n} of {country} appears as {iso}."),
        ("users iso", "{N}, code {iso}, is used in several countries, for example {users}."),
    ),
    (
        ("since before", "It came into use in {since}, in place of the {before}."),
        ("since before", "In {since} it replaced the {before}."),
        ("since", "In its present form it dates from {since}."),
        ("since", "It has been legal tender since {since}."),
    ),
    (
        ("number", "Its numeric code is {number}."),
        ("number", "Computers may also list it under the number {number}."),
    ),
)
LANGUAGE: tuple[Slot, ...] = (
    (
        ("users", "{N} is the only official language of several countries, for example {users}."),
        ("home own", "{N} is a language spoken in {home}; its own speakers call it {own}."),
        ("home own", "Speakers of {n}, a language of {home}, call their tongue {own}."),
        ("home", "{N} is a language spoken in {home}."),
        ("home", "{N} is at home in {home}."),
        ("cradle own", "{N} is a language most closely linked with {cradle}; its own speakers call it {own}."),
        ("cradle own", "Known to its speakers as {own}, {n} is linked above all with {cradle}."),
        ("cradle", "{N} is a language most closely linked with {cradle}."),
        ("cradle", "The language {n} is linked above all with {cradle}."),
        ("own", "{N} is known to its own speakers as {own}."),
        ("code", "{N} is a language that catalogues list as {code}."),
    ),
    (
        ("script direction", "It is usually written in the {script} script, from {direction}."),
        ("script direction", "Its usual writing system is the {script} script, which runs from {direction}."),
        ("script", "Books in {n} are normally printed in {script} letters."),
    ),
    (
        ("code", "Library catalogues list it under the three-letter code {code}."),
        ("code", "{Its} ISO 639-3 code is {code}."),
    ),
)
