"""Runs of `steprag infer` beside each other: what may stand in one table, and how far they differ."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from inference.evaluate import episode_seconds
from inference.predictions import read_predictions
from inference.quality import TextScores, figures, read_bertscore, text_scores
from inference.scores import HARNESS, Score, mean, score
from steprag.batch.worklist import FAILED, failures_in
from steprag.errors import ConfigError, quoted
from steprag.runs import checked_manifest, has_ended
from steprag.stats import mcnemar, mean_interval
from steprag.training_rows import people_id

ALIKE = ("questions", "index", "harness")
"""Keys of a run's identity that must be equal in all runs of one table."""


@dataclass(frozen=True)
class Scored:
    """A run with its scores by question id; `failed` are the questions that have none, and why (the error's class).

    `seconds`: an episode's median and 95th percentile, None where the run did not note them. `texts`: scores of words
    by question id; `bert`: what scored them by BERTScore, None where nothing did.
    """

    name: str
    identity: dict[str, Any]
    scores: dict[str, Score]
    failed: dict[str, str]
    seconds: dict[str, float] | None = None
    texts: dict[str, TextScores] = field(default_factory=dict)
    bert: dict[str, Any] | None = None

    @cached_property
    def figures(self) -> dict[str, dict[str, Any]]:
        """Every mean by name, as `inference.quality.figures` tells it."""
        return figures(list(self.scores.values()), self.texts)


@dataclass(frozen=True)
class Difference:
    """EM of a run less that of the first, on the `questions` that both answered, in points of 1.

    `p`: exact McNemar test of the same questions; `better`, `worse`: questions that only one of both got right.
    `strict`: the same difference over all questions of either run, those that failed in one counted as wrong there.
    """

    em: float
    low: float
    high: float
    p: float
    better: int
    worse: int
    questions: int
    strict: float


def read_run(folder: Path, name: str, *, forced: bool = False) -> Scored:
    """Raises ConfigError where the folder is not a run of steprag infer or serve, has questions without an outcome
    unless `forced`, or holds no predictions.
    """
    manifest = checked_manifest(folder, "identity")
    stage, identity = manifest.get("stage"), manifest["identity"]
    if stage not in ("infer", "serve"):
        raise ConfigError(f"{folder} is a run of {quoted(stage)}, not of 'infer' or 'serve'")
    bert, likeness = read_bertscore(folder)
    scores, texts = {}, {}
    for one in read_predictions(folder):
        key = one.id if stage == "infer" else people_id(one.question)  # as `steprag pairs people` calls it
        texts[key] = text_scores([one], likeness if bert else None)[one.id]
        scores[key] = score(replace(one, id=key))
    failed = {key: str(row["reason"]) for key, row in failures_in(folder).items() if key not in scores}
    if stage == "infer" and not forced and not has_ended(manifest, len(scores) + len(failed)):
        raise ConfigError(
            f"{folder} was not run to its end ({manifest.get('status')}): run it again to go on; --force compares what "
            "is there"
        )
    if not scores:
        why = f"{len(failed)} questions failed; see {FAILED}" if stage == "infer" else "nobody judged an answer"
        raise ConfigError(f"{folder} has no predictions to compare ({why})")
    seconds = episode_seconds(folder / "metrics.jsonl")
    identity = identity if stage == "infer" else {"harness": HARNESS, **identity}
    return Scored(name, identity, scores, failed, seconds, texts, bert)


def check_alike(runs: list[Scored]) -> None:
    """Raises ConfigError where two runs differ in a key of `ALIKE` or in their questions. Conversations have no file of
    questions: what was asked tells.
    """
    first = runs[0]
    for run in runs[1:]:
        for key in ALIKE:
            one, other = first.identity.get(key), run.identity.get(key)
            if one != other and not (key == "questions" and None in (one, other)):
                raise ConfigError(
                    f"{first.name} and {run.name} differ in {key} ({one} and {other}): not one table; --force compares "
                    "them all the same"
                )
        if asked_of(run) != asked_of(first):
            raise ConfigError(
                f"{first.name} and {run.name} have other questions (see limit, sample and seed); "
                "--force compares the shared"
            )


def asked_of(run: Scored) -> set[str]:
    """The ids of the questions that have an outcome: a score or a failure."""
    return run.scores.keys() | run.failed.keys()


def shared(runs: list[Scored]) -> list[Scored]:
    """The runs with the questions that all of them were asked, and no others. Raises ConfigError where that is none."""
    common = set.intersection(*map(asked_of, runs))
    cut = [
        replace(
            run,
            scores={key: value for key, value in run.scores.items() if key in common},
            failed={key: value for key, value in run.failed.items() if key in common},
            seconds=run.seconds if asked_of(run) == common else None,
        )
        for run in runs
    ]
    if empty := next((run.name for run in cut if not run.scores), None):
        raise ConfigError(f"{empty} answered no question that all runs share")
    return cut


def check_direct(direct: Scored) -> None:
    """Raises ConfigError where the run that should not search did."""
    if searched := sum(one.searches > 0 for one in direct.scores.values()):
        raise ConfigError(
            f"--direct searched for {searched} of its questions: over-search is told by a run that does not search "
            "(--prompt.profile direct, or --episode.depth 1)"
        )


def groups_of(runs: list[Scored]) -> dict[str, list[Scored]]:
    """For every group of questions (`Score.groups`) the runs with these alone, where there are at least two groups of a
    sort and all runs answered one of its questions; in the order of their names. A question that failed has no group.
    """
    names = sorted({group for run in runs for one in run.scores.values() for group in one.groups})
    parts = {name: [_part(run, name) for run in runs] for name in names}
    whole = max(len(run.scores) for run in runs)
    return {
        name: part
        for name, part in parts.items()
        if set.intersection(*(set(run.scores) for run in part)) and all(len(run.scores) < whole for run in part)
    }


def _part(run: Scored, group: str) -> Scored:
    return replace(run, scores={key: one for key, one in run.scores.items() if group in one.groups}, failed={})


def difference(run: Scored, base: Scored) -> Difference:
    """Raises ConfigError where the runs share no question."""
    both = [key for key in base.scores if key in run.scores]
    if not both:
        raise ConfigError(f"{run.name} and {base.name} share no question")
    gains = [run.scores[key].em - base.scores[key].em for key in both]
    low, high = mean_interval(gains)
    better, worse = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    strict = (right(run) - right(base)) / len(asked_of(run) | asked_of(base))
    return Difference(mean(gains), low, high, mcnemar(better, worse), better, worse, len(both), strict)


def right(run: Scored) -> float:
    """How many questions the run answered right, by EM."""
    return sum(one.em for one in run.scores.values())
