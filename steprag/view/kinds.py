"""The files that a page lists, and what it shows of each record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from steprag.agent.compliance import written
from steprag.batch.results import ResultKind
from steprag.batch.tree_results import TREES
from steprag.metrics import normalise
from steprag.training_rows import Pair, preference_key
from steprag.types import Prediction, Turn
from steprag.view.doors import SCORE, behind


@dataclass(frozen=True)
class GroupEpisode:
    """An episode of GRPO as training writes it down (`episodes.jsonl`)."""

    step: int
    question: str
    finish: str
    reward: float
    rewards: dict[str, float]
    advantage: float | None = None
    prediction: str | None = None
    refused: str | None = None
    steps: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FileKind:
    """A file's name in a run folder and the records in it. `indexed`: it has an index that counts as `kind` does."""

    name: str
    kind: ResultKind[Any]
    indexed: bool = False

    def takes(self, name: str) -> bool:
        """Whether a file of that name, given by itself, is read as this kind: "trees.round2.jsonl.gz" is trees."""
        first, mine = name.partition(".")[0], self.name.partition(".")[0]
        return first == mine and ("val" in name.split(".")) == ("val" in self.name.split("."))


def _pair(pair: Pair) -> dict[str, Any]:
    asked = next((m["content"] for m in pair.prompt if m["role"] == "user"), "")
    return {
        "key": preference_key(pair),
        "action": pair.action,
        "rejected_action": pair.rejected_action,
        "depth": pair.depth,
        "margin": pair.margin,
        "visits": [pair.chosen_visits, pair.rejected_visits],
        "nodes": [pair.chosen_node, pair.rejected_node],
        "tree": pair.tree,
        "question": asked.partition("\n")[0].removeprefix("Question: ")[:300],
    }


_PLAYED = ("finish", "steps", "searches", "sampled", "words", "written")
"""Of a score what tells how the episode went, not whether it is right."""


def _scored(prediction: Prediction) -> dict[str, Any]:
    score = behind(SCORE)(prediction)
    told = {name: score[name] for name in ("em", "f1", "gold", "tokens", "error", "groups", *_PLAYED)}
    return {**told, "question": prediction.question, "said": prediction.prediction}


def _turn(turn: Turn) -> dict[str, Any]:
    score = behind(SCORE)(turn)  # without golden answers its marks mean nothing
    return {**{name: score[name] for name in _PLAYED}, "question": turn.question, "said": turn.prediction}


def _episode(episode: GroupEpisode) -> dict[str, Any]:
    told = ("step", "finish", "reward", "rewards", "advantage", "prediction")
    refused = [] if episode.refused is None else [(None, episode.refused, episode.finish)]
    said = episode.prediction
    return {
        **{name: getattr(episode, name) for name in told},
        "steps": len(episode.steps),
        "words": None if said is None else len(normalise(said).split()),
        "written": written([*((None, text, None) for text in episode.steps), *refused]),
    }


PAIRS = ResultKind(Pair, lambda pair: pair.question_id, _pair)
FILES: dict[str, tuple[FileKind, ...]] = {
    "trees": (FileKind("trees.jsonl", TREES, indexed=True), FileKind("trees.jsonl.gz", TREES)),
    "pairs": (FileKind("pairs.train.jsonl", PAIRS), FileKind("pairs.val.jsonl", PAIRS)),
    "predictions": (
        FileKind("predictions.jsonl", ResultKind(Prediction, lambda one: one.id, _scored)),
        FileKind("turns.jsonl", ResultKind(Turn, lambda one: one.id, _turn)),
    ),
    "episodes": (FileKind("episodes.jsonl", ResultKind(GroupEpisode, lambda one: one.question, _episode)),),
}
"""By what the page calls them."""
