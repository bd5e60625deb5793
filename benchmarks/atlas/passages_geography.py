"""How facts are told: sentence patterns, each with the relations it states.

In a pattern ``{N}`` is the name at the start of a sentence, ``{n}`` inside one, ``{P}`` and ``{p}`` the possessives,
``{It}`` a pronoun where the line before names the entity (else the name). Other braces are relations of the entity.
"""

Pattern = tuple[str, str]  # relations, separated by spaces; the sentence
Slot = tuple[Pattern, ...]  # one of the patterns whose relations the entity has is chosen
Layout = tuple[str, tuple[Slot, ...]]  # title pattern ({t} is the entity's title), slots

REGION: Slot = (
    ("region capital", "{N} is a country in {region} with {capital} as its capital."),
    ("region capital", "{N}, whose capital is {capital}, lies in {region}."),
    ("region capital", "Situated in {region}, {n} has its capital at {capital}."),
    ("region capital", "{capital} is the capital of {n}, a country in {region}."),
    ("region", "{N} is a country in {region}."),
)
REGION_ALONE: Slot = (
    ("region", "{N} is a country in {region}."),
    ("region", "{N} belongs to {region}."),
    ("region demonym", "{N} lies in {region}, and the adjective for its people is {demonym}."),
    ("region demonym", "{N} is a country in {region}; a person or thing from there is called {demonym}."),
)
OWN: Slot = (
    ("own_name", "In the local language {n} calls itself {own_name}."),
    ("own_name", "At home {n} goes by the name {own_name}."),
    ("demonym", "Something that comes from there is called {demonym}."),
    ("demonym", "The adjective for its people is {demonym}."),
)
CAPITAL: Slot = (
    ("capital", "{It} has {capital} as its capital."),
    ("capital", "The capital of {n} is {capital}."),
    ("capital", "{capital} serves as the national capital of {n}."),
    ("capital", "{P} capital is {capital}."),
)
LARGEST: Slot = (
    ("largest", "The most populous city of {n} is {largest}, which is not the capital."),
    ("largest", "Far more people live in {largest}, the largest city of {n}, than in the capital."),
    ("largest", "{largest} is the biggest city of {n}, ahead of the capital."),
)
PEOPLE: Slot = (
    ("population", "{It} has a population of {population}."),
    ("population", "About {population} people live in {n}."),
    ("population", "The number of inhabitants of {n} is given as {population}."),
    ("population", "{N} is home to {population} people."),
)
TONGUE: Slot = (
    ("language", "The official language of {n} is {language}."),
    ("language", "{language} is the sole official language of {n}."),
    ("language", "Laws and schoolbooks of {n} are written in {language}, its one official language."),
    ("language", "In {n} the official language is {language}."),
)
MONEY: Slot = (
    ("currency", "{P} currency is the {currency}."),
    ("currency", "The legal tender of {n} is the {currency}."),
    ("currency", "Prices in {n} are quoted in the {currency}."),
    ("currency", "In {n} people pay with the {currency}."),
)
WIRES: Slot = (
    ("dialling domain", "Calls from abroad begin with {dialling}, and websites of {n} end in {domain}."),
    ("dialling domain", "{It} uses the dialling code {dialling} and the internet domain {domain}."),
    ("dialling domain", "{Its} internet domain is {domain} and its telephone prefix is {dialling}."),
    ("domain", "Internet addresses of {n} end in {domain}."),
)
AREA: Slot = (
    ("area", "{It} covers an area of {area} square kilometres."),
    ("area", "{N} extends over {area} square kilometres."),
    ("area", "The territory of {n} measures {area} square kilometres."),
    ("area", "{P} surface is {area} square kilometres."),
)
BORDERS: Slot = (
    ("only_neighbour", "{Its} only land neighbour is {only_neighbour}."),
    ("only_neighbour", "{N} borders a single country, {only_neighbour}."),
    ("neighbours", "{Its} land neighbours are {neighbours}."),
    ("neighbours", "{N} shares its land borders with {neighbours}."),
    ("neighbours", "By land {n} touches {neighbours}."),
    ("some_neighbours", "Among its many neighbours are {some_neighbours}."),
    ("continent", "{N} is counted as a part of {continent}."),
)
FEAST: Slot = (
    ("holiday holiday_date", "{N} celebrates its {holiday} on {holiday_date}."),
    ("holiday holiday_date", "Every year on {holiday_date}, {n} keeps {holiday}."),
    ("holiday holiday_date", "{holiday} falls on {holiday_date} in {n}."),
)
WEEK: Slot = (
    ("week", "Calendars in {n} show {week} as the first day of the week."),
    ("week", "In {n} the week is counted from {week}."),
    ("week", "On a calendar printed for {n}, the week opens with {week}."),
)

PARTS: Slot = (
    ("parts part_kind", "The ISO list divides {n} into {parts} {part_kind}."),
    ("parts part_kind", "In ISO 3166-2, {n} is made up of {parts} {part_kind}."),
    ("parts part_kind", "The international standard lists {parts} {part_kind} in {n}."),
)
SPOKEN: Slot = (
    ("language spoken", "The official language of {n} is {language}, but one also hears {spoken}."),
    ("language spoken", "In {n} the official language is {language}; also widely spoken: {spoken}."),
    ("spoken", "Widely spoken languages in {n} include {spoken}."),
    ("spoken", "Among the languages that people of {n} speak are {spoken}."),
    *TONGUE,
)
CODE: Slot = (
    ("letters", "International lists enter {n} under the three letters {letters}."),
    ("letters", "{P} three-letter country code is {letters}."),
    ("letters", "On passports and in statistics {n} appears as {letters}."),
)
AROUND: Slot = (
    ("around", "The middle of the country is found near {around}."),
    ("around", "Its centre lies at about {around}."),
)

COUNTRY: tuple[tuple[Layout, ...], ...] = (
    (
        ("{t}", (REGION, OWN, WIRES)),
        ("Economy of {n}", (MONEY, CODE, (("mined", "The country is named first among the producers of {mined}."),))),
        ("Geography of {n}", (AREA, BORDERS, PARTS, AROUND)),
        ("Demographics of {n}", (PEOPLE, LARGEST, SPOKEN)),
        ("Public holidays in {n}", (FEAST, WEEK)),
    ),
    (
        ("{t}", (REGION_ALONE, BORDERS, PEOPLE)),
        ("Cities of {n}", (CAPITAL, LARGEST)),
        ("Money in {n}", (MONEY, WIRES)),
        ("Languages of {n}", (SPOKEN, OWN, CODE)),
        ("Time and calendar in {n}", (FEAST, WEEK)),
        (
            "Land area of {n}",
            (AREA, PARTS, AROUND, (("mined", "In mining, {n} is named first among the producers of {mined}."),)),
        ),
    ),
    (
        ("{t}", (REGION_ALONE, MONEY, TONGUE)),
        ("Government of {n}", (CAPITAL, FEAST, PARTS, CODE)),
        ("Communications in {n}", (WIRES, WEEK)),
        ("Geography of {n}", (BORDERS, AREA, AROUND)),
        ("Population of {n}", (PEOPLE, LARGEST, SPOKEN, OWN)),
    ),
)

CITY: tuple[Slot, ...] = (
    (
        ("country population", "{N} is a city in {country} with {population} inhabitants."),
        ("country population", "{N} is a city of {population} people in {country}."),
        ("country population", "The city of {n}, in {country}, has a population of {population}."),
        ("country population", "In {country}, the city of {n} counts {population} residents."),
        ("country population", "Some {population} people live in {n}, a city of {country}."),
        ("country population", "{N}, in {country}, is a city with a population of {population}."),
        ("state population", "{N} is a city in the U.S. state of {state} with {population} inhabitants."),
        ("state population", "{N} is a city in {state}, in the United States, home to {population} people."),
        ("state population", "The American city of {n}, {state}, has a population of {population}."),
    ),
    (
        ("beside offset", "It lies about {offset} of {beside}."),
        ("beside offset", "From {beside} it lies about {offset}."),
        ("beside offset", "Travellers from {beside} find {n} about {offset}."),
        ("beside offset", "{Its} place on the map is some {offset} of {beside}."),
        ("beside offset", "{N} stands about {offset} of {beside}."),
        ("clock", "Clocks in {n} are set after the time zone {clock}."),
        ("clock", "Its time zone is listed as {clock}."),
    ),
    (
        ("spot", "Its coordinates are roughly {spot}."),
        ("spot", "On the map it is found near {spot}."),
        ("spot", "It stands at about {spot}."),
    ),
    (
        ("seat", "{N} is the capital of {seat}."),
        ("seat", "{N} is also the capital of {seat}."),
    ),
)

AIRPORT: tuple[Slot, ...] = (
    (
        ("city", "{N} serves the city of {city}."),
        ("city", "{N} is an airport for {city}."),
        ("city", "Air travellers to {city} land at {n}."),
        ("city", "The city of {city} is served by {n}."),
    ),
    (
        ("offset", "It lies about {offset} of the city centre."),
        ("offset country", "It was built {offset} of the centre, in {country}."),
        ("offset country", "This airport in {country} lies about {offset} of the centre."),
        ("offset", "The terminal is some {offset} of the centre."),
    ),
    (
        ("elevation iata", "{Its} runway stands {elevation} feet above sea level, and tickets show the code {iata}."),
        ("elevation iata", "{Its} IATA code is {iata}; its elevation is {elevation} feet."),
        ("elevation iata", "Known by the letters {iata}, {n} has an elevation of {elevation} feet."),
    ),
    (
        ("icao", "Pilots use the ICAO code {icao}."),
        ("icao", "Its four-letter ICAO code is {icao}."),
    ),
)

STATE: tuple[Layout, ...] = (
    (
        "{t}",
        (
            (
                (
                    "statehood postal",
                    "{N} became a state of the United States in {statehood}; its postal abbreviation is {postal}.",
                ),
                ("statehood postal", "{N} was admitted to the Union in {statehood} and is abbreviated {postal}."),
                ("statehood postal", "In {statehood} {n} joined the United States. Mail to it is marked {postal}."),
            ),
            (
                ("zone", "Clocks there follow {zone} Time."),
                ("zone", "The whole state keeps {zone} Time."),
            ),
        ),
    ),
    (
        "Cities and counties of {n}",
        (
            (
                ("capital", "The state capital of {n} is {capital}."),
                ("capital", "{capital} is the seat of {p} state government."),
                ("capital", "{N} is governed from {capital}."),
            ),
            (
                ("largest", "{largest}, not the capital, is the most populous city of {n}."),
                ("largest", "The largest city of {n} is {largest}."),
            ),
            (
                ("counties", "{It} is divided into {counties} counties."),
                ("counties", "There are {counties} counties in {n}."),
            ),
        ),
    ),
)
