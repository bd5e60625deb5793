"""Words and forms of English by which facts are read from sentences (`apps.adapt.facts`)."""

from __future__ import annotations

import re

CAPITAL = r"[^\W\d_a-zß-öø-ÿ][\w'’-]*"
NAME = rf"(?:[Tt]he )?{CAPITAL}(?:,? (?:of |and |de |the )*{CAPITAL})*"
LONGEST = 400
"""Characters at most of a text that a pattern here is given: a sentence."""


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


BE = _set("is are was were")
AUX = BE | _set("must may can will should")
PAST = _set("""began became bought built came chose drew fell found gave got grew held kept led left lost made met paid
    ran rose said sang sat sent set sold spoke spent taught told took went won wrote""")
PERSONAL = _set("will agreed asked checks leads married proposed reported said showed teaches told wrote")
"""Verbs of people, so that one name that does so is a person's."""
ROLES = _set("""captain chair chief child director editor father founder head king leader manager mayor mother owner
    president queen secretary treasurer""")
PLACED = _set("""born buried died found hangs held kept lies lived lives located situated stands stored studied taught
    work works""")
PREPOSITIONS = _set("""about above after at before between by during for from in into near of on over since through to
    under until with within without""")
PRONOUNS = _set("he she it his her its")
UNCLEAR = re.compile(
    r"\b(?:I|it|its|he|him|his|she|her|they|them|their|we|us|our|you|your|this|these|those|ones?)\b", re.IGNORECASE
)
ODD = re.compile(r"\b(?:also|and|or|that|then|to|who|not?|there|nobody|each|every)\b|[^\w’' -]|\B- ", re.IGNORECASE)
"""In a subject: it is not the sentence's, or none that a question can be asked of."""
NUMBERS = "two three four five six seven eight nine ten eleven twelve"
COUNTING = _set(f"both few many several some {NUMBERS}")
ADVERB = re.compile(r"(?:Today|Now|Then|Later|Soon|Currently|Usually|However),? ")
BREAK = re.compile(r"; |: |, (?:and|but) (?=[A-Z]|the |an? )")
CUT = re.compile(r",? (?:which|who|where|when|while|because|although|but|so|that|why|how|whether)\b|, ")
AND = re.compile(r" and (?=(?:\w{3,}ed|was|is|has|are|were|have|\w{3,}s (?:the|an?|at|by|for|in|on|to|with)) )")
MONTH = "(?:January|February|March|April|May|June|July|August|September|October|November|December)"
DATE = (rf"(?:\d{{1,2}} {MONTH}(?: \d{{4}})?|{MONTH}(?: \d{{1,2}})?(?:,? \d{{4}})?|(?:1[0-9]|20)\d\d|\d{{1,2}}:\d\d|"
         r"(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)days?)")  # fmt: skip
FRONTED = re.compile(rf"(?P<when>(?:In|On|Since|By|Until) {DATE}),? (?P<rest>.+)")
WHEN = re.compile(rf"(?P<before>.*?)\b(?P<how>in|on|at|since|until|by|for|to) (?P<value>{DATE}(?: and {DATE})?)\b")
WHERE = re.compile(
    rf"(?P<before>.*?)\b(?:in|at|near|(?<!based )on) (?P<value>(?:the (?:(?!by|for|with)[a-z]+ ){{0,3}})?(?!{DATE})"
    rf"{CAPITAL}(?: (?:of )?{CAPITAL})*)(?=$|,| (?:and|in|on|at|by|to|from|of|for|since|until|with) )"
)
MONEY = _set("dollars euros francs kroner pounds")
COUNTED = (r"(?!(?:after|ago|and|are|before|each|for|from|has|have|later|past|per|was|were|with)\b)"
            r"[a-z][a-z-]{2,}")  # fmt: skip
COUNT = re.compile(
    r"(?P<before>(?:[^\d]*? )??)(?:(?:about|around|only|nearly|at least) )?"
    rf"(?P<value>\d[\d,]*(?:\.\d+)?(?: million)?|{NUMBERS.replace(' ', '|')}) "
    rf"(?P<noun>{COUNTED}(?: {COUNTED})?)"
    rf"(?P<of> of {COUNTED}(?: {COUNTED})?)?(?P<each> (?:a|each|per) (?:day|week|month|year|night))?"
)
BY = re.compile(rf"(?P<before>(?!then )\w+(?:ed|en|wn|lt|de|nt|ld|un))\b.*? by (?P<value>{NAME})")
GAP = re.compile(rf"(?<=[a-z] )(?P<value>{DATE}|\d[\d,.:]*\d|\d|{CAPITAL}(?: {CAPITAL})+)(?! ?[–&]|[\w-])")
CALLED = re.compile(rf"(?P<before>called) (?P<value>{NAME})")
