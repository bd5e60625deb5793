"""What Atlas leaves out or mends of its data packages, and why."""

from benchmarks.atlas.model import Value


def _codes(text: str) -> frozenset[str]:
    return frozenset(text.split(" "))


# Dependent territories, dissolved states and places whose status or capital is disputed are left out.
LEFT_OUT = _codes(
    "AI AN AQ AS AW AX BL BM BQ BV CC CK CS CW CX EH FK FO GF GG GI GL GP GS GU HK HM IL IM IO JE KY MF MO MP MQ "
    "MS NC NF NU PF PM PN PR PS RE SH SJ SX TC TF TK TW UM VA VG VI WF XK YT"
)
NAMES = {
    "NL": "Netherlands",
    "TL": "Timor-Leste",
    "ST": "São Tomé and Príncipe",
    "CV": "Cape Verde",
    "GE": "Georgia",
}
ALIASES = {
    "TR": ("Türkiye",),
    "CZ": ("Czech Republic",),
    "CV": ("Cabo Verde",),
    "CI": ("Côte d'Ivoire",),
    "US": ("USA", "United States of America"),
    "GB": ("UK",),
    "TL": ("East Timor",),
    "SZ": ("Swaziland",),
    "MM": ("Burma",),
    "CD": ("DR Congo",),
    "CG": ("Congo",),
    "AE": ("UAE",),
}
TITLES = {"GE": "Georgia (country)"}
# Where the packages disagree, are out of date, or the matter is disputed, the fact is left out or mended here.
CAPITALS = {"KZ": "Astana", "US": "Washington, D.C.", "MM": "Naypyidaw"}
NO_CAPITAL = _codes("DJ SG LU MC SM LK GQ KI BI BO SZ PW NL ZA BJ CI")
NO_LANGUAGE = _codes("UA UG ZA BO BA ME NO KM ML BF NE GQ SN PE EC ET BI SD IN KZ MV CN FJ")
NO_AREA = _codes("OM RS FR BH MC KM BT PH UA RU IN PK MA SD CN")
NO_CURRENCY = _codes("BG ZW")  # the euro from 2026; a new currency every few years
DAYS = ("Independence Day", "National Independence Day", "National Day", "Republic Day", "Constitution Day")
MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
NO_PARTS = _codes("AO BI BF DE LY MC MG LB SC SS DO IE LK UA RU IN CN PH SG")
REGIONS = {
    "Caribbean": Value("the Caribbean"),
    "Australia and New Zealand": Value("Oceania"),
    "Middle Africa": Value("Middle Africa", ("Central Africa",)),
    "Northern America": Value("Northern America", ("North America",)),
    "South-eastern Asia": Value("South-eastern Asia", ("Southeast Asia", "Southeastern Asia")),
}
CONTINENTS = {
    "AF": "Africa",
    "AS": "Asia",
    "EU": "Europe",
    "NA": "North America",
    "SA": "South America",
    "OC": "Oceania",
}
NO_DEMONYM = _codes("DJ IS PH KG TJ CV MV SA SI")  # not an adjective, or a spelling out of use
NO_OWN_NAME = _codes("CD CG MD CI")
NO_ONLY_NEIGHBOUR = _codes("CA CU DK")  # the others are short or recent borders
SHARED_DIALLING = _codes("US CA RU KZ")
NOT_SPOKEN = frozenset({"no", "cop"})  # CLDR counts its parts besides Norwegian, and Coptic is read in church alone
