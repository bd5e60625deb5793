"""Credit by turns, by states and by stretches, worked out by hand and played by a model in training."""

from __future__ import annotations

import pytest

from steprag.errors import ConfigError
from steprag.types import Episode, Passage, Question, State, Step, Usage
from tests.grpo_parts import world
from training.config import GrpoSection
from training.play.sampling import SampledStep
from training.play.turn_credit import Fork, check_labelled, credited, label_rises


def said(*steps: tuple[int, int]) -> list[SampledStep]:
    return [SampledStep([prompt], [completion]) for prompt, completion in steps]


CHAINS = [said((0, 1), (1, 1)), said((0, 1), (1, 2)), said((0, 2), (2, 1))]
APART = [Fork(0), Fork(1), Fork(2)]


def section(**keys: object) -> GrpoSection:
    return GrpoSection.model_validate({"scale": "none"} | keys)


def test_a_state_compares_what_was_said_to_it() -> None:
    """Twice the same first step, once another; its third episode's second prompt was put once."""
    found = credited(CHAINS, APART, [1.0, 0.0, 0.0], None, section(credit="state"))
    assert found == [pytest.approx(row) for row in ([1 / 6, 0.5], [1 / 6, -0.5], [-1 / 3, -1 / 3])]
    assert credited(CHAINS, APART, [1.0, 1.0, 1.0], None, section(credit="state")) is None


def test_a_turn_earns_what_it_and_later_ones_raise() -> None:
    rises = [[0.5, 0.0], [0.5, -0.5], [0.0, 0.0]]
    found = credited(CHAINS, APART, [1.0, 0.0, 0.0], rises, section(turns="gold"))
    assert found == [pytest.approx(row) for row in ([1.0, 2 / 3 + 1 / 6], [-0.5, -2 / 3], [-0.5, -1 / 6])]


def test_a_stretch_is_compared_with_all_from_its_fork() -> None:
    """The fourth episode begins behind the first turn of the first."""
    turns = [*CHAINS, said((0, 1), (1, 3))]
    found = credited(turns, [*APART, Fork(0, 1)], [1.0, 0.0, 0.0, 0.0], None, section(branch=1))
    assert found == [pytest.approx(row) for row in ([0.25, 0.5], [-0.25, -0.25], [-0.25, -0.25], [0.25, -0.5])]


def test_labels_raise_by_what_is_found_kept_and_named() -> None:
    """The first keeps what leads to the answer, the second nothing, the third answers at once."""
    asked = Question("q", "Who wrote the anthem of Peru?", ("Torre",), {"supporting_titles": ["Anthem", "Jose"]})
    first, second = Passage("1", "Anthem", "The anthem is by Jose."), Passage("2", "Jose", "Jose Torre wrote it.")

    def episode(*kept: str, passages: tuple[tuple[Passage, ...], ...] = ((first,), (second,))) -> Episode:
        steps, read = list[Step](), [()]
        for text, found in zip(kept, passages, strict=False):
            steps += [Step("query", "", "anthem"), Step("evidence", "", text)]
            read += [found, ()]
        return Episode(State(asked.question, (*steps, Step("answer", "", "Torre")), (), tuple(read)), "answer", Usage())

    episodes = [episode("Anthem: by Jose.", "Jose Torre."), episode("None."), episode()]
    assert label_rises(asked, episodes, world(), "gold") == [[0.5, 0.0, 0.5, 0.0, 0.0], [0.5, -0.5, 0.0], [0.0]]
    assert label_rises(asked, episodes, world(), "chained") == [[0.5, 0.0, 0.5, 0.0, 0.0], [0.5, -0.5, 0.0], [0.0]]


def test_a_label_that_says_nothing_is_refused() -> None:
    bare, guessed = Question("q", "Who?", ("Torre",)), Question("q", "Is it Torre?", ("yes",))
    check_labelled([bare, guessed], section(turns="chained"))
    for label, asked in (("gold", [bare, guessed]), ("chained", [guessed])):
        with pytest.raises(ConfigError, match=f"^grpo.turns {label}: "):
            check_labelled(asked, section(turns=label))
