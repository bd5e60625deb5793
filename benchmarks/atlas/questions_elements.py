"""How facts about elements, discoverers, currencies and languages are asked for; see `questions_geography`."""

from benchmarks.atlas.questions_geography import ASKS, Ask

MATTER: dict[tuple[str, str], Ask] = {
    ("element", "symbol"): Ask(
        "the symbol of {x}",
        ("What is the chemical symbol of {x}?", "How do chemists write {x} for short?"),
        ("chemical symbol of {x}", "symbol for {x}"),
    ),
    ("element", "number"): Ask(
        "the atomic number of {x}",
        ("What is the atomic number of {x}?", "How many protons does an atom of {x} have?"),
        ("atomic number of {x}", "How many protons does {x} have?"),
    ),
    ("element", "discoverer"): Ask(
        "the discoverer of {x}",
        ("Who discovered {x}?", "To whom is the discovery of {x} credited?", "Which chemist found {x}?"),
        ("discoverer of {x}", "Who discovered {x}?", "discovery of {x}"),
        ("the discoverer of {x}", "the person who discovered {x}"),
    ),
    ("element", "year"): Ask(
        "the year when {x} was discovered",
        (
            "In which year was {x} discovered?",
            "When was {x} discovered?",
            "From which year does the discovery of {x} date?",
        ),
        ("year of the discovery of {x}", "When was {x} discovered?"),
    ),
    ("element", "place"): Ask(
        "the country where {x} was discovered",
        ("In which country was {x} discovered?", "Where was {x} discovered?"),
        ("place of the discovery of {x}", "Where was {x} discovered?"),
        ("the country where {x} was discovered", "the country in which {x} was first found"),
    ),
    ("element", "meaning"): Ask(
        "the meaning of the name of {x}",
        (
            "What does the {root_tongue} word behind the name of {x} mean?",
            "What is the meaning of the word that gave {x} its name?",
        ),
        ("origin of the name of {x}", "meaning of the name {x}"),
        inverse=("the element named after the {root_tongue} word for '{v}'",),
    ),
    ("element", "root_tongue"): Ask(
        "the language behind the name of {x}",
        ("From which language does the name of {x} come?", "{X} takes its name from a word of which language?"),
        ("origin of the name of {x}", "language behind the name {x}"),
    ),
    ("element", "honours"): Ask(
        "what {x} is named after",
        ("After what or whom is {x} named?", "What gave {x} its name?"),
        ("origin of the name of {x}", "What is {x} named after?"),
        inverse=("the element named after {v}",),
    ),
    ("element", "producer"): Ask(
        "the leading producer of {x}",
        (
            "Which country leads the production of {x}?",
            "Which country is the leading producer of {x}?",
            "Which country is first among the producers of {x}?",
        ),
        ("leading producer of {x}", "Which country produces the most {x}?"),
        ("the country that produces the most {x}", "the leading producer of {x}"),
    ),
    ("element", "family"): Ask(
        "the family of {x}",
        ("To which family of elements does {x} belong?",),
        ("family of elements of {x}", "group of {x} in the periodic table"),
    ),
    ("element", "period"): Ask(
        "the period of {x}",
        ("In which period of the periodic table does {x} stand?",),
        ("period of {x} in the periodic table",),
    ),
    ("person", "find0"): Ask(
        "the element found by {x}",
        ("Which element did {x} discover?", "For the discovery of which element is {x} remembered?"),
        ("element discovered by {x}", "What did {x} discover?"),
        ("the element discovered by {x}", "the element that {x} identified"),
    ),
    ("person", "place"): Ask(
        "the country where {x} worked",
        ("In which country did {x} work?",),
        ("country where {x} worked",),
        ("the country where {x} worked",),
    ),
    ("currency", "iso"): Ask(
        "the ISO code of {x}",
        (
            "What is the ISO code of {x}?",
            "How do banks abbreviate {x}?",
            "Which three letters stand for {x} on exchange boards?",
        ),
        ("ISO code of {x}", "How do banks write {x}?"),
    ),
    ("currency", "since"): Ask(
        "the year when {x} came into use",
        ("Since which year has {x} been in use?", "In which year did {x} come into use?"),
        ("year when {x} came into use", "Since when has {x} been legal tender?"),
    ),
    ("currency", "before"): Ask(
        "the money that {x} replaced",
        ("Which money did {x} replace?", "What was used before {x}?"),
        ("predecessor of {x}", "What did {x} replace?"),
        inverse=("the currency that replaced the {v}",),
    ),
    ("currency", "country"): Ask(
        "the country that issues {x}",
        ("Which country issues {x}?",),
        ("country that issues {x}",),
        ("the country that issues {x}",),
        (),
    ),
    ("language", "script"): Ask(
        "the script of {x}",
        (
            "In which script is {x} usually written?",
            "Which writing system does {x} use?",
            "In which letters are books in {x} printed?",
        ),
        ("script of {x}", "writing system of {x}", "How is {x} written?"),
    ),
    ("language", "code"): Ask(
        "the three-letter code of {x}",
        ("What is the ISO 639-3 code of {x}?", "Under which three-letter code do catalogues list {x}?"),
        ("ISO 639-3 code of {x}", "three-letter code of {x}"),
    ),
    ("language", "own"): Ask(
        "the name that speakers of {x} use for it",
        ("What do speakers of {x} call their own language?", "What is the native name of {x}?"),
        ("native name of {x}", "What do speakers call {x}?"),
    ),
    ("language", "direction"): Ask(
        "the writing direction of {x}",
        ("In which direction is {x} written?",),
        ("writing direction of {x}",),
    ),
    ("language", "home"): Ask(
        "the country where {x} is spoken",
        ("In which country is {x} at home?", "Where is {x} spoken?"),
        ("country where {x} is spoken", "Where is {x} spoken?"),
        ("the country where {x} is spoken", "the home country of {x}"),
    ),
}
ALL: dict[tuple[str, str], Ask] = {**ASKS, **MATTER}
