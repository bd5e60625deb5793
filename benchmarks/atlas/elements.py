"""Chemical elements and their discoverers from mendeleev, with spelling slips in its discovery notes mended."""

import re
from collections import defaultdict

from mendeleev.fetch import fetch_table

from benchmarks.atlas.model import Entity, Value, plain

# Notes of mendeleev 1.3.0 → the persons, in the usual spelling. Rows that are not here keep no named discoverer.
PERSONS = {
    "Henry Cavendish": ("Henry Cavendish",),
    "Johann Arfwedson": ("Johan August Arfwedson",),
    "Daniel Rutherford": ("Daniel Rutherford",),
    "Henri Moissan": ("Henri Moissan",),
    "Joseph Priestly, Carl Wilhelm Scheele": ("Joseph Priestley", "Carl Wilhelm Scheele"),
    "Sir William Ramsey, M.W. Travers": ("William Ramsay", "Morris Travers"),
    "Sir William Ramsay; M. W. Travers": ("William Ramsay", "Morris Travers"),
    "Sir Humphrey Davy": ("Humphry Davy",),
    "Hans Christian Oersted": ("Hans Christian Ørsted",),
    "Jöns Berzelius": ("Jöns Jacob Berzelius",),
    "Hennig Brand": ("Hennig Brand",),
    "Carl Wilhelm Scheele": ("Carl Wilhelm Scheele",),
    "Sir William Ramsey, Baron Rayleigh": ("William Ramsay", "Lord Rayleigh"),
    "Lars Nilson": ("Lars Fredrik Nilson",),
    "William Gregor": ("William Gregor",),
    "Nils Sefström": ("Nils Gabriel Sefström",),
    "Louis Vauquelin": ("Louis Nicolas Vauquelin",),
    "Johann Gahn": ("Johan Gottlieb Gahn",),
    "George Brandt": ("Georg Brandt",),
    "Axel Cronstedt": ("Axel Fredrik Cronstedt",),
    "Paul Émile Lecoq de Boisbaudran": ("Paul-Émile Lecoq de Boisbaudran",),
    "Clemens Winkler": ("Clemens Winkler",),
    "Antoine J. Balard": ("Antoine Jérôme Balard",),
    "R. Bunsen, G. Kirchoff": ("Robert Bunsen", "Gustav Kirchhoff"),
    "Gustov Kirchoff, Robert Bunsen": ("Robert Bunsen", "Gustav Kirchhoff"),
    "A. Crawford": ("Adair Crawford",),
    "Johann Gadolin": ("Johan Gadolin",),
    "Martin Klaproth": ("Martin Heinrich Klaproth",),
    "Charles Hatchet": ("Charles Hatchett",),
    "Carlo Perrier, Émillo Segrè": ("Carlo Perrier", "Emilio Segrè"),
    "Karl Klaus": ("Karl Ernst Claus",),
    "William Wollaston": ("William Hyde Wollaston",),
    "Fredrich Stromeyer": ("Friedrich Stromeyer",),
    "Ferdinand Reich, T. Richter": ("Ferdinand Reich", "Theodor Richter"),
    "Franz Müller von Reichenstein": ("Franz-Joseph Müller von Reichenstein",),
    "Bernard Courtois": ("Bernard Courtois",),
    "Carl Mosander": ("Carl Gustaf Mosander",),
    "Eugène Demarçay": ("Eugène-Anatole Demarçay",),
    "Jean de Marignac": ("Jean Charles Galissard de Marignac",),
    "Per Theodor Cleve": ("Per Teodor Cleve",),
    "Georges Urbain": ("Georges Urbain",),
    "Dirk Coster, Georg von Hevesy": ("Dirk Coster", "George de Hevesy"),
    "Anders Ekeberg": ("Anders Gustaf Ekeberg",),
    "Smithson Tenant": ("Smithson Tennant",),
    "Sir William Crookes": ("William Crookes",),
    "Pierre and Marie Curie": ("Pierre Curie", "Marie Curie"),
    "D.R.Corson, K.R.MacKenzie, E.Segré": ("Dale Corson", "Kenneth MacKenzie", "Emilio Segrè"),
    "Fredrich Ernst Dorn": ("Friedrich Ernst Dorn",),
    "Marguerite Derey": ("Marguerite Perey",),
    "André Debierne": ("André-Louis Debierne",),
    "E.M. McMillan, P.H. Abelson": ("Edwin McMillan", "Philip Abelson"),
    "G.T.Seaborg, R.A.James, A.Ghiorso": ("Glenn Seaborg", "Ralph James", "Albert Ghiorso"),
    "G.T.Seaborg, S.G.Tompson, A.Ghiorso": ("Glenn Seaborg", "Stanley Thompson", "Albert Ghiorso"),
    "J.A. Marinsky, L.E. Glendenin, C.D. Coryell": ("Jacob Marinsky", "Lawrence Glendenin", "Charles Coryell"),
    "Walter Noddack, Ida Tacke, Otto Berg": ("Walter Noddack", "Ida Tacke", "Otto Berg"),
    "Fausto and Juan José de Elhuyar": ("Fausto de Elhuyar", "Juan José de Elhuyar"),
}
# The year or place in the notes is doubtful or disputed.
NO_DISCOVERY = frozenset(
    {
        "Helium",
        "Beryllium",
        "Neodymium",
        "Platinum",
        "Iridium",
        "Dubnium",
        "Rutherfordium",
        "Nobelium",
        "Seaborgium",
        "Lutetium",
        "Zirconium",
        "Yttrium",
        "Radon",
        "Palladium",
        "Erbium",
        "Terbium",
    }
)
PLACES = {
    "Sweden": "SE",
    "Germany": "DE",
    "France": "FR",
    "Denmark": "DK",
    "Switzerland": "CH",
    "Austria": "AT",
    "Italy": "IT",
    "Spain": "ES",
    "Finland": "FI",
    "Romania": "RO",
    "Russia": "RU",
    "Japan": "JP",
    "United States": "US",
}
PRODUCERS = {
    "USA": "United States",
    "DR of Congo": "Democratic Republic of the Congo",
    "DRC": "Democratic Republic of the Congo",
}
ORIGIN = re.compile(r"^(?:Medieval )?(Greek|Latin|German|Anglo-Saxon|Spanish): ([^\s,(]+),? ?\(([^)]+)\)")
NAMED = re.compile(r"^Named (?:for|after|in honor of) (.+?)\.?$")
FAMILIES = {1: "alkali metals", 2: "alkaline earth metals", 17: "halogens", 18: "noble gases"}


def _named_for(origin: str) -> dict[str, Value]:
    """The word an element's name comes from, or what it was named for."""
    if match := ORIGIN.match(origin):
        tongue, word, meaning = match.groups()
        meaning = meaning.strip('" ').removeprefix("German for ")
        if not re.search(r"[(:]", meaning):
            return {"root_tongue": Value(tongue), "root": Value(word), "meaning": Value(meaning)}
    if match := NAMED.match(origin):
        named = (
            match.group(1)
            .replace("asteroid, ", "asteroid ")
            .replace("town, ", "town of ")
            .replace("Greek god, ", "Greek god ")
        )
        named = (
            re.sub(r"^the (?:scientist|physicist|astronomer) ", "", named)
            .replace("Mietner", "Meitner")
            .split(" of the Joint")[0]
        )
        named = named.replace("in United States", "in the United States").replace("Etruscan god, ", "the Etruscan god ")
        return {"honours": Value(re.split(r"[,;]", named)[0])}
    return {}


def _use(raw: object) -> Value | None:
    """The first short sentence on uses, as the words after "used"."""
    first = re.split(r"(?<=[a-z)])\.\s", str(raw).strip())[0].rstrip(".")
    match = re.match(r"^Used ((?:in|for|as|to|by|with) .+)$", first)
    return (
        Value(match.group(1).replace(" & ", " and ").replace("substitue", "substitute"))
        if match and 3 <= len(first.split()) <= 17
        else None
    )


def load_matter(country_names: dict[str, str]) -> list[Entity]:
    """Elements, then discoverers. `country_names` gives each country code's name inside a sentence."""
    codes = {plain(name.removeprefix("the ")): code for code, name in country_names.items()}
    elements: list[Entity] = []
    found_by: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for row in fetch_table("elements").to_dict("records"):
        name, lower = row["name"], row["name"].lower()
        number = int(row["atomic_number"])
        facts = {
            "symbol": Value(row["symbol"]),
            "number": Value(str(number), number=float(number)),
            "period": Value(str(int(row["period"]))),
            "block": Value(f"{row['block']}-block"),
        }
        if row["group_id"] == row["group_id"]:
            facts["column"] = Value(str(int(row["group_id"])))
            if int(row["group_id"]) in FAMILIES and name != "Hydrogen":
                facts["family"] = Value(FAMILIES[int(row["group_id"])])
        facts["weight"] = Value(f"{row['atomic_weight']:.4g}")
        if name not in ("Hassium", "Moscovium"):  # what the notes say of these names is wrong
            facts.update(_named_for(str(row["name_origin"])))
        if use := _use(row["uses"]):
            facts["use"] = use
        facts.update(_producers(row["top_3_producers"], codes, country_names))
        if name not in NO_DISCOVERY:
            facts.update(_discovery(row, codes, country_names))
            for person in PERSONS.get(str(row["discoverers"]), ()):
                found_by[person].append((lower, f"element:{row['symbol']}"))
        elements.append(
            Entity(f"element:{row['symbol']}", "element", lower, lower, name, f"element:{row['symbol']}", facts)
        )
    return elements + _people(found_by, {element.key: element for element in elements})


def _discovery(row: dict[str, object], codes: dict[str, str], names: dict[str, str]) -> dict[str, Value]:
    facts: dict[str, Value] = {}
    notes = str(row["discoverers"])
    if notes.startswith("Known to the ancients"):
        return {"ancient": Value("antiquity")}
    persons = PERSONS.get(notes, ())
    if len(persons) == 1:
        last = persons[0].split(" ")[-1]
        facts["discoverer"] = Value(persons[0], (last,), link=f"person:{plain(persons[0])}")
    elif len(persons) in (2, 3):
        joined = f"{', '.join(persons[:-1])} and {persons[-1]}"
        facts["discoverers"] = Value(joined)
    if persons:
        year = int(float(str(row["discovery_year"])))
        facts["year"] = Value(str(year), number=float(year))
        place = str(row["discovery_location"])
        if "/" not in place:
            code = codes.get(plain(place))
            facts["place"] = Value(names[code] if code else place, link=f"country:{code}" if code else None)
    return facts


def _producers(raw: object, codes: dict[str, str], names: dict[str, str]) -> dict[str, Value]:
    parts = re.findall(r"\d\)\s*([^0-9;]+?)\s*(?=\d\)|$)", str(raw))
    wanted = [PRODUCERS.get(part.strip(" ,;"), part.strip(" ,;")) for part in parts]
    keys = [codes.get(plain(part)) for part in wanted]
    if len(keys) != 3 or any(key is None for key in keys):
        return {}
    first, second, third = (str(key) for key in keys)
    return {
        "producer": Value(names[first], link=f"country:{first}"),
        "runners_up": Value(f"{names[second]} and {names[third]}"),
    }


def _people(found_by: dict[str, list[tuple[str, str]]], elements: dict[str, Entity]) -> list[Entity]:
    people = []
    for person in sorted(found_by):
        finds = sorted(found_by[person], key=lambda find: elements[find[1]].facts["year"].number or 0.0)
        facts = {"count": Value(str(len(finds)), number=float(len(finds)))}
        if len(finds) == 1:
            facts["alone"] = Value(finds[0][0])
        for order, (name, key) in enumerate(finds[:4]):
            facts[f"find{order}"] = Value(name, link=key)
            facts[f"year{order}"] = elements[key].facts["year"]
        places = [elements[find[1]].facts.get("place") for find in finds]
        if places[0] and all(place == places[0] for place in places):
            facts["place"] = places[0]
        key = f"person:{plain(person)}"
        people.append(Entity(key, "person", person, person, person, key, facts))
    return people
