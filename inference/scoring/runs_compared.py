"""Runs of `steprag infer` beside each other: which of them one table may hold, and how far they differ."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from inference.interop.flashrag import is_results, read_results
from inference.predictions import read_predictions
from inference.scoring.bertscore import with_bertscore
from inference.scoring.evaluate import episode_seconds
from inference.scoring.figures import KINDS, figures, gain, quality_of, values_of
from inference.scoring.scores import ERRORS, HARNESS, Score, mean, word_score
from steprag.agent.profiles import told_grammar
from steprag.batch.worklist import FAILED, failures_in
from steprag.errors import ConfigError, quoted
from steprag.runs.run import checked_manifest, has_ended
from steprag.scores.gold import people_id
from steprag.scores.stats import mcnemar, mean_interval

COLUMNS = {"": "value", "_low": "low", "_high": "high", "_n": "n"}
"""Columns of a figure: endings of its name, and the key of `inference.scoring.figures.figures` in each."""
ALIKE = ("questions", "index", "harness")
"""Keys of a run's identity that must be equal in all runs of one table."""


@dataclass(frozen=True)
class Scored:
    """A run with its scores by question id; `failed` are the questions that have none, and why (the error's class).

    `seconds`: an episode's median and 95th percentile, None where the run did not note them. `bert`: what scored the
    answers by BERTScore, None where nothing did.
    """

    name: str
    identity: dict[str, Any]
    scores: dict[str, Score]
    failed: dict[str, str]
    seconds: dict[str, float] | None = None
    bert: dict[str, Any] | None = None

    @cached_property
    def figures(self) -> dict[str, dict[str, Any]]:
        """Every mean by name, as `inference.scoring.figures.figures` has it."""
        return figures(list(self.scores.values()))

    def values(self, name: str) -> dict[str, float]:
        """A figure's values by question id."""
        return values_of(KINDS[name], self.scores.values())


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


def read_run(folder: Path, name: str, *, forced: bool = False, scores: Iterable[Score] | None = None) -> Scored:
    """A run with its scores. `scores`: those of its predictions (`word_score`), where the caller has them already.

    Raises ConfigError where the folder is not a run of steprag infer or serve, has questions without an outcome unless
    `forced`, or holds no predictions.
    """
    if is_results(folder):
        return _of_flashrag(folder, name, forced)
    manifest = checked_manifest(folder, "identity")
    told_grammar(manifest)
    stage, identity = manifest.get("stage"), manifest["identity"]
    if stage not in ("infer", "serve"):
        raise ConfigError(f"{folder} is a run of {quoted(stage)}, not of 'infer' or 'serve'")
    each, bert = with_bertscore(folder, list(_scores_in(folder, stage) if scores is None else scores))
    by_id = {one.id: one for one in each}
    failed = {key: str(row["reason"]) for key, row in failures_in(folder).items() if key not in by_id}
    if stage == "infer" and not forced and not has_ended(manifest, len(by_id) + len(failed)):
        raise ConfigError(
            f"{folder} was not run to its end ({manifest.get('status')}): run it again to continue; --force compares "
            "what is there"
        )
    if not by_id:
        why = f"{len(failed)} questions failed; see {FAILED}" if stage == "infer" else "nobody judged an answer"
        raise ConfigError(f"{folder} has no predictions to compare ({why})")
    seconds = episode_seconds(folder / "metrics.jsonl")
    identity = identity if stage == "infer" else {"harness": HARNESS, **identity}
    return Scored(name, identity, by_id, failed, seconds, bert)


def _of_flashrag(folder: Path, name: str, forced: bool) -> Scored:
    """A run of FlashRAG; it does not tell steps and tokens."""
    identity, predictions, failed = read_results(folder)
    if not predictions or (failed and not forced):
        raise ConfigError(f"{folder}: {len(failed)} questions have no pred, and {len(predictions)} have; let FlashRAG "
                          "run to its end, or give --force for those that have")  # fmt: skip
    scored = (replace(word_score(one), steps=None, tokens=None, sampled=None) for one in predictions)
    return Scored(name, identity, {one.id: one for one in scored}, failed)


def _scores_in(folder: Path, stage: str) -> Iterable[Score]:
    """The scores of a run's predictions; those of turns under the names that `steprag pairs people` gives them."""
    for one in read_predictions(folder):
        yield word_score(one if stage == "infer" else replace(one, id=people_id(one.question)))


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
                    "them anyway"
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


def row(run: Scored, base: Scored, direct: Scored | None = None) -> dict[str, Any]:
    """A line of the table of `steprag compare`: plain numbers and texts by column name."""
    line: dict[str, Any] = {
        "run": run.name,
        "questions": len(run.scores),
        "failed": len(run.failed),
        "strict_em": right(run) / len(asked_of(run)),
        **{f"{name}{end}": one[key] for name, one in run.figures.items() for end, key in COLUMNS.items()},
        "gold_recall": run.figures["gold_recall"]["value"] if "gold_recall" in run.figures else None,
        "seconds_median": run.seconds["median"] if run.seconds else None,
        "seconds_p95": run.seconds["p95"] if run.seconds else None,
        **fingerprints(run.identity),
    }
    if run is not base:
        line |= {f"gain_{key}": value for key, value in vars(difference(run, base)).items()}
    return line if direct is None else line | search_errors(run, direct)


def fingerprints(identity: dict[str, Any]) -> dict[str, Any]:
    """The versions behind a run's figures; compare.json holds the whole identity beside them."""
    prompt = identity.get("prompt") or {}
    names = {"harness": identity.get("harness"), "questions_hash": identity.get("questions")}
    return names | {"index": identity.get("index"), "profile": prompt.get("profile"), "prompt_hash": prompt.get("hash")}


def search_errors(run: Scored, direct: Scored) -> dict[str, float | None]:
    """How often the model searches needlessly, and how often it should have searched; both 0 to 1.

    over_search: the share of the questions it answers alone (`known_alone`) for which it still searched.
    under_search: the share of the other questions (`unknown_alone`) to which it gave a wrong answer without a search.
    None where there is no such question.
    """
    known = [run.scores[key] for key, alone in direct.scores.items() if alone.em == 1 and key in run.scores]
    unknown = [run.scores[key] for key, alone in direct.scores.items() if alone.em < 1 and key in run.scores]
    return {
        "over_search": mean(one.searches > 0 for one in known) if known else None,
        "under_search": mean(one.answered and not one.searches and one.em < 1 for one in unknown) if unknown else None,
        "known_alone": len(known),
        "unknown_alone": len(unknown),
    }


def quality(run: Scored, base: Scored) -> dict[str, Any]:
    """`quality_of` a run, the meaning of its `kinds` of errors, and `gains`: every figure less that of `base`, on the
    same questions; none for the base itself.
    """
    names = [] if run is base else [name for name in run.figures if name != "bertscore" or run.bert == base.bert]
    gains = {name: gain(run.values(name), base.values(name)) for name in names}
    told = quality_of(list(run.scores.values()), run.figures, run.bert)
    return {**told, "gains": {name: one for name, one in gains.items() if one}, "kinds": ERRORS}


def compared(runs: list[Scored]) -> list[dict[str, Any]]:
    """The rows of `steprag compare --force` over the questions that all runs came to, each with its `quality`.

    Raises ConfigError where they share none.
    """
    runs = shared(runs)
    return [row(run, runs[0]) | {"quality": quality(run, runs[0])} for run in runs]
