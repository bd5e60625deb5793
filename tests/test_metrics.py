"""Answer metrics against hand-computed values of the official scripts' rules."""

from __future__ import annotations

import pytest

from steprag.metrics import exact_match, f1, guessable, normalise


@pytest.mark.parametrize(("text", "normal"), [
    ("The  Beatles!", "beatles"),
    ("J. K. Rowling", "j k rowling"),
    ("an apple a day", "apple day"),
    ("Côte d'Ivoire", "côte divoire"),
    ("3.5 million", "35 million"),
    ("", ""),
])  # fmt: skip
def test_normalisation_is_squads(text: str, normal: str) -> None:
    assert normalise(text) == normal


@pytest.mark.parametrize(("prediction", "golden", "em", "score"), [
    ("The lek", ("lek",), 1.0, 1.0),
    ("Albanian lek", ("lek",), 0.0, 2 / 3),
    ("lek", ("Albanian lek", "lek"), 1.0, 1.0),
    ("no", ("yes",), 0.0, 0.0),
    ("yes it is", ("yes",), 0.0, 0.0),
    ("yes", ("Yes.",), 1.0, 1.0),
    ("", ("lek",), 0.0, 0.0),
    (None, ("lek",), 0.0, 0.0),
    ("new york new york", ("new york",), 0.0, 2 / 3),
])  # fmt: skip
def test_em_and_f1(prediction: str | None, golden: tuple[str, ...], em: float, score: float) -> None:
    assert exact_match(prediction, golden) == em
    assert f1(prediction, golden) == pytest.approx(score)


@pytest.mark.parametrize(
    ("asked", "answer", "expected"),
    [
        ("Is Lek a currency?", "Yes", True),
        ("Which is larger, Texas or Michigan?", "the Michigan", True),
        ("Which is larger, Texas or Michigan?", "Mich", False),
        ("What is the capital of Albania?", "Tirana", False),
    ],
)
def test_answers_that_can_be_guessed(asked: str, answer: str, expected: bool) -> None:
    assert guessable(asked, (answer,)) is expected
