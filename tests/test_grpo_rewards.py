"""Rewards of episodes: hand-made ones, each term alone, and what a group of them comes to."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from steprag.agent.grammar import START, Action
from steprag.agent.grammars import GRAMMARS, TRANSCRIPT
from steprag.agent.rollout import episode_of, rollout
from steprag.errors import ConfigError
from steprag.types import Episode, Passage, Question, State, Step, Usage
from tests.fakes import WORLD, ScriptedPolicy, answer, evidence, query
from tests.grpo_parts import world
from training.rewards import REWARDS, Played, advantages, check_names, score

QUESTION = Question(
    "q", "Which currency does Albania use?", ("the lek", "Albanian lek"), {"supporting_titles": ["Tirana", "Albania"]}
)
TIRANA, ALBANIA, LIMA, _ = WORLD


def played(*steps: str, found: tuple[Passage, ...] = (), refused: str | None = None, **values: object) -> Played:
    """An episode of these completions; each query found `found`. It ended at an answer or at what was refused."""
    taken = tuple(_step(text) for text in steps)
    retrieved = tuple(found for step in taken if step.action == "query")
    finish = "answer" if refused is None else "no_action"
    episode = Episode(State(QUESTION.question, taken), finish, Usage(), retrieved, refused)
    return replace(Played(QUESTION, episode, TRANSCRIPT, tokens=40), **values)  # pyright: ignore[reportArgumentType]


def _step(text: str) -> Step:
    action = text.rsplit("</", 1)[1].rstrip(">")
    return Step(action, text, text.split(f"<{action}>")[1].split("</")[0].strip())


def values(episode: Played) -> dict[str, float | None]:
    return {name: reward(episode) for name, reward in REWARDS.items()}


def test_a_good_episode_is_worth_this() -> None:
    steps = query("Tirana"), evidence("Tirana is in Albania."), query("lek"), answer("Lek.")
    good = values(played(*steps, found=(TIRANA, LIMA), judged=0.75))
    assert good == {
        **{"em": 1.0, "f1": 1.0, "rouge": 2 / 3, "judge": 0.75, "format": 1.0, "cost": 2.0, "length": 0.4},
        "recall": 0.5,  # Tirana was found, Albania was not
        "evidence": 0.5,  # Albania is named, but not from a passage about it
    }


def test_any_golden_answer_counts_and_the_best_one_decides() -> None:
    assert REWARDS["em"](played(answer("albanian lek"))) == 1.0
    assert REWARDS["f1"](played(answer("Albanian money"))) == 0.5
    assert REWARDS["em"](played(answer("Albanian money"))) == 0.0


def test_rouge_is_the_longest_common_subsequence_with_the_best_golden_answer() -> None:
    """Of "the lek" 1 word … Of "Albanian lek" 2 of 4 and of 2: 2/3."""
    assert REWARDS["rouge"](played(answer("The Albanian lek, surely"))) == pytest.approx(2 / 3)
    assert REWARDS["rouge"](played(answer("Lek Albanian"))) == pytest.approx(1 / 2), "order counts"
    assert REWARDS["rouge"](played(refused="?")) == 0.0


def test_yes_and_no_are_right_or_wrong() -> None:
    yes_no = Question("b", "Is it?", ("yes",))
    assert REWARDS["f1"](played(answer("yes"), question=yes_no)) == 1.0
    assert REWARDS["f1"](played(answer("yes it is"), question=yes_no)) == 0.0
    assert REWARDS["f1"](played(answer("no"), question=yes_no)) == 0.0


def test_an_episode_that_breaks_off_keeps_what_it_did_before() -> None:
    broken = values(played(query("Tirana"), refused="I do not know", found=(ALBANIA,), judged=None))
    assert (broken["em"], broken["f1"], broken["judge"]) == (0, 0, 0)
    assert broken["format"] == 0.5
    assert (broken["recall"], broken["evidence"], broken["cost"]) == (0.5, 0, 1)


def test_without_gold_passages_recall_and_evidence_say_nothing() -> None:
    plain = values(played(query("Tirana"), answer("lek"), found=(TIRANA,), question=replace(QUESTION, metadata={})))
    assert plain["recall"] is plain["evidence"] is None


def test_evidence_is_what_a_step_keeps_whatever_its_action_is_called() -> None:
    renamed = replace(
        TRANSCRIPT,
        name="renamed",
        actions=(Action("find", "", effect="call"), Action("note", ""), Action("say", "", effect="end")),
        transitions={START: ("find",), "find": ("note",), "note": ("say",)},
    )
    steps = [Step("find", "", "Tirana"), Step("note", "", "Tirana is a capital."), Step("say", "", "lek")]
    episode = Episode(State(QUESTION.question, tuple(steps)), "answer", Usage(), ((TIRANA,),))
    assert REWARDS["evidence"](Played(QUESTION, episode, renamed, tokens=40)) == 0.5
    assert REWARDS["evidence"](Played(QUESTION, episode, GRAMMARS["search-r1"], tokens=40)) is None, "it keeps nothing"


@pytest.mark.parametrize("says", ["", "the prompt", "nonsense without end"])
def test_a_completion_that_is_no_step_scores_nothing(says: str) -> None:
    """Empty, the whole prompt said again with all its tags and leads, or noise: 0 in every term."""
    environment = world()
    start = environment.start(QUESTION.question)
    prompt = "\n".join(message["content"] for message in environment.observe(start).messages)
    policy = ScriptedPolicy(lambda _, __: prompt if says == "the prompt" else says)
    episode = asyncio.run(episode_of(rollout(environment, policy, start, seed=0)))
    scores = score([Played(QUESTION, episode, TRANSCRIPT, tokens=300, judged=1.0)], dict.fromkeys(REWARDS, 1.0))
    assert scores.terms == {name: [0.0] for name in REWARDS}
    assert scores.totals == [0.0]


def test_terms_are_weighed_and_kept_alone() -> None:
    right, wrong = played(query("a"), answer("lek")), played(answer("sol"))
    scores = score([right, wrong], {"em": 1.0, "format": 0.5, "cost": -0.1, "length": 0.0})
    assert scores.totals == pytest.approx([1.4, 0.5])
    assert scores.terms == {"em": [1, 0], "format": [1, 1], "cost": [1, 0], "length": [0.4, 0.4]}


def test_a_term_that_is_missing_once_counts_for_nobody_of_the_group() -> None:
    """A judge that gave one of them no score must not make that one worse than the others."""
    group = [played(answer("lek"), judged=1.0), played(answer("lek"), judged=None), played(refused="")]
    scores = score(group, {"judge": 1.0, "em": 0.5})
    assert scores.totals == [0.5, 0.5, 0.0]
    assert scores.terms["judge"] == [1.0, None, 0.0]


def test_a_group_without_variance_has_no_advantages() -> None:
    assert advantages([0.3, 0.3, 0.3 + 1e-9], "group") is None
    assert advantages([0.0, 0.0], "none") is None
    assert advantages([0.0, 1.0], "none") == [-0.5, 0.5]
    assert advantages([1.0, 2.0, 3.0], "group") == [-1.0, 0.0, 1.0]


def test_unknown_rewards_are_refused_with_the_nearest() -> None:
    check_names(dict.fromkeys(REWARDS, 1.0))
    with pytest.raises(ConfigError, match="unknown reward 'evidense'; did you mean 'evidence'"):
        check_names({"f1": 1.0, "evidense": 1.0})
