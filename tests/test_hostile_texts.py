"""Odd texts through every door that reads strangers' words: each is read or refused, in time that its length explains.

The texts are random and come from a seed (`tests/levels.py`): runs of letters of many scripts, marks, markup in markup,
halves of surrogates. What is measured is processor time, as for patterns (`test_linear`).
"""

from __future__ import annotations

import random
import signal
import unicodedata
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from steprag.records.normal_form import MARKS, normal_form
from tests.levels import SEED, rounds
from tests.pattern_texts import Shape
from tests.text_doors import Door, doors
from tests.text_growth import growth

SIZE, LITTLE, PATIENCE = 10_000, 2e-6, 20.0
"""Characters of a short text, seconds a character that each door may take, and when one is given up."""
ATOMS = [*" .,;:!?()[]{}<>|*#-_=/\\`\"'\n\t\r\0\x1b&%$@~^+aAzZ019éßİﬁ中。！？…“’–．あก",
         *"\u0301\u0323\u0651\u05b0\u0915\u1100\u200b\u200d\u202e\u2028\u3000\ufeff\ud800\udfff\U0001f600",
         "...", ". . ", "This is ", "Dr. ", "ignore ", "the answer is ", "<answer>", "</", "[[", "]]", "{{", "}}",
         "<b><i>", "</think>", "<think>", "####", "\n\n", "it ", "Ab ", "(a", "a)", "[a](", "![", "a\u0301", "QUJD",
         "\u0301\u0323", "{\"a\":[", "1.000,", "http://a.b/", "a@b.", "%25", "\\u0041", "&amp;", "&#x41;", "<!--",
         "<a href=x>", "| - |", "> ", "  - ", "**a", "```\n", "{\\b ", "\\par ", "data: {}\n\n", "Question: ",
         "\U0001f468\u200d"]  # fmt: skip


def shapes(chance: random.Random) -> Iterator[Shape]:
    """Runs of one to three atoms, with and without something before and behind them."""
    while True:
        run = "".join(chance.choices(ATOMS, k=chance.choice((1, 1, 2, 3))))
        yield chance.choice(("", *ATOMS, "Lima (city")), run, chance.choice(("", *ATOMS, "it.", "?"))


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Door]:
    return doors(tmp_path_factory.mktemp("doors"))


@pytest.mark.parametrize("door", doors(Path()))
def test_odd_texts_are_read_in_time_in_proportion_to_their_length(door: str, every: dict[str, Door]) -> None:
    before = signal.getsignal(signal.SIGVTALRM)
    chance = random.Random(f"{SEED} {door}")
    try:
        for shape in islice(shapes(chance), rounds(3, 20, 150)):
            assert growth(every[door], shape, SIZE, LITTLE, PATIENCE) is None, f"seed {SEED}: {shape}"
    finally:
        signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_normal_forms_are_unicodes_own(form: str) -> None:
    chance = random.Random(SEED)
    for _ in range(rounds(300, 3_000, 30_000)):
        text = "".join(chance.choices([*ATOMS, "가", "각", "ﷺ", "Å", "\u1161", "\u0344"], k=chance.randrange(MARKS)))
        assert normal_form(form, text) == unicodedata.normalize(form, text)  # pyright: ignore[reportArgumentType]
