"""How facts are asked for. `{x}` is the entity's label, other braces are its facts, `{v}` the value itself."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Ask:
    """The ways to ask for one relation of one kind of entity.

    `questions` ask outright; `need` names the missing fact; `noun` describes the linked entity by this one; `inverse`
    describes this entity by its value (only where the value is unique); `queries` are search requests.
    """

    need: str
    questions: tuple[str, ...]
    queries: tuple[str, ...] = ()
    noun: tuple[str, ...] = ()
    inverse: tuple[str, ...] = ()


ASKS: dict[tuple[str, str], Ask] = {
    ("country", "capital"): Ask(
        "the capital of {x}",
        ("What is the capital of {x}?", "Which city is the capital of {x}?", "Name the capital city of {x}."),
        ("capital of {x}", "What is the capital of {x}?", "national capital city of {x}"),
        ("the capital of {x}",),
        (
            "the country whose capital is {v}",
            "the country that has its capital at {v}",
            "the nation with {v} as its capital",
        ),
    ),
    ("country", "currency"): Ask(
        "the currency of {x}",
        (
            "What is the currency of {x}?",
            "What do people pay with in {x}?",
            "Which money is legal tender in {x}?",
            "In which currency are prices quoted in {x}?",
        ),
        ("currency of {x}", "What money is used in {x}?", "legal tender in {x}"),
        ("the currency of {x}", "the money used in {x}"),
    ),
    ("country", "language"): Ask(
        "the official language of {x}",
        (
            "What is the official language of {x}?",
            "Which language is official in {x}?",
            "In which language are the laws of {x} written?",
        ),
        ("official language of {x}", "Which language is official in {x}?"),
        ("the official language of {x}",),
    ),
    ("country", "population"): Ask(
        "the population of {x}",
        ("How many people live in {x}?", "What is the population of {x}?", "How many inhabitants does {x} have?"),
        ("population of {x}", "How many people live in {x}?", "number of inhabitants of {x}"),
    ),
    ("country", "area"): Ask(
        "the area of {x}",
        (
            "How many square kilometres does {x} cover?",
            "What is the area of {x} in square kilometres?",
            "How large is {x}, in square kilometres?",
        ),
        ("area of {x} in square kilometres", "How large is {x}?", "surface of {x}"),
    ),
    ("country", "region"): Ask(
        "the region of the world where {x} lies",
        ("In which part of the world does {x} lie?", "To which region of the world does {x} belong?"),
        ("region of the world of {x}", "Where in the world is {x}?"),
    ),
    ("country", "largest"): Ask(
        "the largest city of {x}",
        (
            "What is the largest city of {x}?",
            "Which city of {x} has the most people?",
            "Which city outgrows the capital of {x}?",
        ),
        ("largest city of {x}", "most populous city in {x}"),
        ("the largest city of {x}",),
        ("the country whose largest city, not its capital, is {v}",),
    ),
    ("country", "dialling"): Ask(
        "the dialling code of {x}",
        ("What is the telephone prefix of {x}?", "Which dialling code do callers use to reach {x}?"),
        ("telephone dialling code of {x}", "calling code for {x}"),
    ),
    ("country", "domain"): Ask(
        "the internet domain of {x}",
        ("What is the internet domain of {x}?", "In which letters do web addresses of {x} end?"),
        ("internet domain of {x}", "ending of websites in {x}"),
    ),
    ("country", "letters"): Ask(
        "the three-letter code of {x}",
        (
            "What is the three-letter country code of {x}?",
            "Under which three letters do international lists enter {x}?",
        ),
        ("three-letter country code of {x}",),
    ),
    ("country", "parts"): Ask(
        "the number of {part_kind} in {x}",
        ("How many {part_kind} does {x} have?", "Into how many {part_kind} is {x} divided?"),
        ("number of {part_kind} in {x}", "{part_kind} of {x}"),
    ),
    ("country", "neighbours"): Ask(
        "the land neighbours of {x}", (), ("land neighbours of {x}", "countries that border {x}")
    ),
    ("country", "holiday_date"): Ask(
        "the date of {holiday} in {x}",
        (
            "On what date does {x} celebrate its {holiday}?",
            "When is {holiday} kept in {x}?",
            "On which day of the year does {holiday} fall in {x}?",
        ),
        ("date of {holiday} in {x}", "When is {holiday} celebrated in {x}?"),
    ),
    ("country", "week"): Ask(
        "the first day of the week in {x}",
        ("With which day does the week begin on calendars in {x}?", "What is the first day of the week in {x}?"),
        ("first day of the week in {x}", "weekday that opens the calendar in {x}"),
    ),
    ("country", "own_name"): Ask(
        "the local name of {x}",
        ("What does {x} call itself in its own language?", "By which name is {x} known at home?"),
        ("local name of {x}", "What does {x} call itself?"),
        inverse=("the country that calls itself {v}", "the country known at home as {v}"),
    ),
    ("country", "only_neighbour"): Ask(
        "the only neighbour of {x}",
        (
            "Which is the only country that {x} borders by land?",
            "With which single country does {x} share a land border?",
        ),
        ("only land neighbour of {x}", "country that borders {x}"),
        ("the only land neighbour of {x}", "the one country that {x} borders by land"),
    ),
    ("city", "country"): Ask(
        "the country where {x} lies",
        ("In which country is {x}?", "To which country does {x} belong?"),
        ("country where {x} lies", "In which country is {x}?", "location of {x}"),
        (
            "the country where {x} lies",
            "the country that {x} belongs to",
            "the country in which the city of {x} is found",
        ),
    ),
    ("city", "state"): Ask(
        "the state where {x} lies",
        (),
        ("U.S. state of {x}", "location of {x}"),
        (),
    ),
    ("city", "population"): Ask(
        "the population of {x}",
        (
            "How many people live in {x}?",
            "What is the population of {x}?",
            "How many residents does {x} count?",
        ),
        ("population of {x}", "How many people live in {x}?", "inhabitants of {x}"),
    ),
    ("city", "beside"): Ask(
        "the city that {x} lies {offset} of",
        (
            "{X} lies about {offset} of which city?",
            "Which city must a traveller leave and go about {offset} to reach {x}?",
        ),
        ("where {x} lies on the map", "city near {x}", "distance of {x} from another city"),
        ("the city that {x} lies about {offset} of",),
    ),
    ("city", "seat"): Ask(
        "the {realm} whose capital is {bare}",
        (),
        ("{realm} whose capital is {bare}", "Which {realm} has {bare} as its capital?"),
        ("the {realm} that has {bare} as its capital", "the {realm} that made {bare} its capital"),
    ),
    ("airport", "city"): Ask(
        "the city served by {x}",
        (
            "Which city does {x} serve?",
            "{X} is the airport of which city?",
            "To which city do passengers of {x} travel?",
        ),
        ("city served by {x}", "Which city does {x} serve?"),
        ("the city served by {x}", "the city whose travellers land at {x}"),
    ),
    ("airport", "country"): Ask(
        "the country of {x}",
        ("In which country is {x}?",),
        ("country of {x}", "In which country is {x}?"),
        ("the country where {x} is found", "the country in which {x} was built"),
    ),
    ("airport", "iata"): Ask(
        "the IATA code of {x}",
        ("What is the IATA code of {x}?", "Which three letters stand on tickets to {x}?"),
        ("IATA code of {x}", "ticket code of {x}"),
    ),
    ("airport", "icao"): Ask(
        "the ICAO code of {x}",
        ("What is the ICAO code of {x}?", "Which four letters do pilots use for {x}?"),
        ("ICAO code of {x}", "pilots' code for {x}"),
    ),
    ("airport", "elevation"): Ask(
        "the elevation of {x}",
        ("How many feet above sea level is {x}?", "What is the elevation of {x} in feet?"),
        ("elevation of {x}", "How high is {x}?"),
    ),
    ("state", "capital"): Ask(
        "the capital of {x}",
        ("What is the state capital of {x}?", "From which city is {x} governed?"),
        ("state capital of {x}", "seat of the government of {x}"),
        ("the state capital of {x}",),
        ("the US state governed from {v}", "the US state whose capital is {v}"),
    ),
    ("state", "statehood"): Ask(
        "the year when {x} became a state",
        (
            "In which year did {x} join the United States?",
            "When was {x} admitted to the Union?",
            "In what year did {x} become a state?",
        ),
        ("year {x} became a state", "admission of {x} to the Union"),
    ),
    ("state", "postal"): Ask(
        "the postal abbreviation of {x}",
        ("Which two letters mark mail to {x}?", "What is the postal abbreviation of {x}?"),
        ("postal abbreviation of {x}",),
    ),
    ("state", "counties"): Ask(
        "the number of counties in {x}",
        ("How many counties does {x} have?", "Into how many counties is {x} divided?"),
        ("number of counties in {x}", "counties of {x}"),
    ),
    ("state", "largest"): Ask(
        "the largest city of {x}",
        ("What is the most populous city of {x}?", "Which city of {x} is larger than its capital?"),
        ("largest city of {x}", "most populous city in {x}"),
        ("the largest city of {x}",),
        ("the US state whose largest city, not its capital, is {v}",),
    ),
    ("state", "zone"): Ask(
        "the time zone of {x}",
        ("Which time do clocks in {x} follow?",),
        ("time zone of {x}",),
    ),
}
