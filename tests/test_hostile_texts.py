"""Odd texts through every door that reads strangers' words: each is read or refused, in proportionate time.

The texts are random and come from a seed (`tests/levels.py`): long runs, mixed scripts, markup in markup, marks without
letters, halves of surrogates. A door that needs more processor time than any linear one does is a fault.
"""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice

import pytest

from apps.chat.http.completion_request import CompletionBody
from apps.chat.memory import names, render, rewritings
from apps.chat.routing import route_of
from apps.chat.turns.citations import Support, citations
from indexes.addons.links import mentions, title_words
from indexes.corpora.cutting import cut
from preference.exchange.instruct import steps_of, turns_of
from steprag.agent.inert import neutralise, without_instructions
from steprag.agent.profiles import load_profile
from steprag.errors import StepragError
from steprag.scores import gold
from steprag.types import Passage, State, Step
from steprag.web.app import ApiError
from tests.levels import SEED, rounds

SIZE, SECONDS = 40_000, 8
"""Characters of a text, and processor seconds that one door may take: a hundred times what it does."""
ATOMS = [*" .,;:!?()[]{}<>|*#-_=/\\`\"'\n\t\0&%$@~aAzZ019éß中。！？…あ",
         *"\u0301\u200b\u202e\u05d0\u0e01\ufeff\ud800\udfff\U0001f600",
         "...", ". . ", "This is ", "Dr. ", "ignore ", "the answer is ", "<answer>", "</", "[[", "]]", "{{",
         "}}", "<b><i>", "####", "\n\n", "it ", "(a", "a)", "QUJD", "{\"a\":[", "1.000,", "http://", "\r\n",
         "<think>", "| - |"]  # fmt: skip


def texts(chance: random.Random) -> Iterator[str]:
    """Runs of one to three atoms, with and without something before, between and behind them."""
    while True:
        run = "".join(chance.choices(ATOMS, k=chance.choice((1, 1, 2, 3))))
        parts = [*chance.choices(("", *ATOMS, "Lima (city", "What is "), k=1), run * (SIZE // len(run)),
                 *chance.choices(("", *ATOMS, "it.", "?"), k=1)]  # fmt: skip
        yield "".join(parts)[:SIZE] if chance.random() < 0.8 else "".join(chance.choices(ATOMS, k=SIZE // 2))


def cited(text: str) -> None:
    found = tuple(Passage(str(n), text[:200], text[n:], 0.5) for n in range(3))
    state = State(
        "Where?", (Step("query", "", "x"), Step("evidence", "", text), Step("answer", "", text)), (), ((), found)
    )
    citations(state, frozenset({"evidence"}))
    Support().lacks(state)


def chatted(text: str) -> None:
    said = [
        {"role": "user", "content": text},
        {"role": "assistant", "content": text},
        {"role": "user", "content": "And it?"},
    ]
    body = CompletionBody(model="m", messages=said)  # pyright: ignore[reportArgumentType] - as JSON has them
    history = body.exchanges(10)
    rewritings(history, "Where is it?")
    render(history, text)
    with suppress(ApiError):  # no words
        assert body.question is None or body.question.strip() == body.question


def scored(text: str) -> None:
    gold.without_qualifier(text)
    gold.holds_golden(text, [text[:100], "Lima"])
    gold.mentions(text, [text[:100], "Lima"])


def imported(text: str) -> None:
    profile = load_profile("transcript")
    said = [{"role": role, "content": text} for role in ("user", "assistant")]
    for row in ({"instruction": text, "output": text}, {"messages": said}):
        with suppress(ValueError, StepragError):  # refused
            system, turns = turns_of(row)
            steps_of(system, turns, profile, "a", Counter())


def templated(text: str) -> None:
    parser = pytest.importorskip("mwparserfromhell")
    from indexes.corpora.templates import render as put

    for markup in (f"{{{{convert|{text[:4000]}|km}}}}", f"{{{{lang|de|{text[:4000]}}}}}"):
        put(parser.parse(markup.encode("utf-8", "replace").decode()), Counter())


DOORS: dict[str, Callable[[str], object]] = {
    "document": lambda text: [*cut([("h", 1, text), ("p", 1, text), ("r", 2, text)], "a/b.md")],
    "links": lambda text: [*mentions(text, {title_words(text): 0, title_words("Lima"): 1})],
    "history": chatted,
    "names": lambda text: [*names(text)],
    "question": route_of,
    "gold and titles": scored,
    "instructions": imported,
    "templates": templated,
    "citations": cited,
    "screening": lambda text: (without_instructions(text), neutralise(text, ("<|x|>",))),
}


class TooSlowError(Exception):
    """A door took more processor time than it may."""


@contextmanager
def within_seconds(what: str) -> Iterator[None]:
    def late(*_: object) -> None:
        raise TooSlowError(what)

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize("door", DOORS)
def test_odd_texts_are_read_in_time_in_proportion_to_their_length(door: str) -> None:
    chance = random.Random(f"{SEED} {door}")
    for text in islice(texts(chance), rounds(3, 15, 150)):
        with within_seconds(f"{door}: seed {SEED}: {text[:60]!r} … {text[-20:]!r}"):
            DOORS[door](text)
