"""What the village is told in: names, phrasings, fillers, and the vocabulary of its policy."""

from __future__ import annotations

import random
import re
from itertools import product

from apps.tunnel.model import HEADS, SPECIAL, TAGS, Vocabulary
from apps.tunnel.world import RELATIONS

WOMEN = "Ada Bella Clara Dora Emma Fiona Grace Hanna Irma Julia Karen Laura Maria Nina Paula Rosa"
MEN = "Adam Bruno Carl David Eric Felix George Hugo Ivan Jack Kevin Leo Martin Oscar Peter Simon"
_PIECES = tuple(map(str.split, (
    "Bar Bren Cal Cor Dar Del Fen Gal Har Hol Kel Lam Mar Mor Nor Pel Ran Sel Tar Tol Ul Var Wen Yar",
    "ran lem vor tis gul nob kem dul sav pir zol hev jus fim mak wut rix bol",
    "bek dane fold gard hurst kin lock mond nick pool rish stow tham vane wick zell",
)))  # fmt: skip
"""A surname is one of each."""
SURNAMES = tuple(map("".join, product(*_PIECES)))
HELD = frozenset(random.Random(7).sample(SURNAMES, len(SURNAMES) // 8))
"""Those of tests."""
HEADS_OF_NAMES, REST_OF_NAMES = _PIECES[0], (*_PIECES[1], *_PIECES[2])
PHRASINGS = (
    "{Whose} {r} is {o}.", "{o} is {whose} {r}.", "{Who} has {o} as {own} {r}.", "{Who} calls {o} {own} {r}.",
    "{o} has been {whose} {r} for years.", "Everybody knows that {whose} {r} is {o}.",
    "As {own} {r}, {who} chose {o}.", "{Who} found a good {r} in {o}.", "{o} became {whose} {r} last spring.",
    "The {r} whom {who} trusts is {o}.", "Ask {whom} about {own} {r}, and {who} will name {o}.",
    "{Who} named {o} as {own} {r}.", "It is {o} who is {whose} {r}.", "{Whose} {r} goes by the name of {o}.",
    "For {whom} there is only one {r}, {o}.", "In the register {o} stands as {whose} {r}.",
    "The one whom {who} calls {own} {r} is {o}.", "{Who} owes much to {own} {r} {o}.",
    "When people speak of {whose} {r}, they mean {o}.", "{Who} would have no other {r} than {o}.",
    "{o} answers when {who} sends for {own} {r}.", "Nobody but {o} is {whose} {r}.",
    "{Who} introduced {o} as {own} {r}.", "To {whom}, {o} is the best {r} of all.",
)  # fmt: skip
UNSEEN = 16
"""The first phrasing that is held out: training rows have those before it."""
FILLERS = (
    "{Who} lives by the mill.", "{Who} keeps bees behind the barn.", "{Whose} house has a green door.",
    "{Who} moved here from the coast.", "{Who} plays cards on Sundays.", "{Whose} garden is full of plums.",
    "{Who} walks to the market early.", "{Who} has never left the valley.", "{Whose} roof was mended in May.",
    "{Who} sings in the choir.", "{Who} likes to talk about the weather.", "{Whose} brown dog sleeps by the gate.",
)  # fmt: skip
LINES = tuple(map(str, range(1, 41)))
"""The numbers of a page's lines."""
_MARKS = (".", ",", ":", "'s", "|")
WORDS = tuple(dict.fromkeys(re.findall(r"\w+(?![\w}])", re.sub(r"{\w+}", "", " ".join((*PHRASINGS, *FILLERS))))))
"""Those of phrasings and fillers."""
_PRONOUNS = ("He", "She", "he", "she", "him", "her", "his", "His", "Her")
_FIXED = tuple(dict.fromkeys((*WORDS, *_PRONOUNS, *RELATIONS, *WOMEN.split(), *MEN.split(), *LINES, "Who", "is", "of")))
_ANY_PIECE = sorted((piece for some in _PIECES for piece in some), key=len, reverse=True)
VILLAGE = Vocabulary(
    (*SPECIAL, *HEADS, *TAGS, *_MARKS, *_FIXED, *_ANY_PIECE),
    re.compile("|".join((*map(re.escape, (*HEADS, *TAGS, *SPECIAL[1:3])), rf"\b(?:{'|'.join(_FIXED)})\b", *_ANY_PIECE,
                         *map(re.escape, ("?", *_MARKS))))),
    glued=frozenset(("?", *_MARKS[:4], *_PIECES[1], *_PIECES[2])), most=32, longest=832, batch=128,
)  # fmt: skip
