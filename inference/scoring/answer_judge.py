"""`steprag score judge`: a model reads every answer of a run of `steprag infer` and says whether it is right.

For answers that no string comparison catches. Calls are journalled and bounded as everywhere; the judge's prompt is
part of the run's identity. It stands beside EM and never in its place: a judge has errors of its own.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from pydantic import Field

from inference.predictions import predictions_file, read_predictions
from inference.scoring.figures import shown
from inference.scoring.scores import mean
from steprag.agent.judge import VerdictFormat, asked, messages_of, prompt_of, words_of
from steprag.batch.results import ResultKind, Results
from steprag.batch.worklist import ask_all, failures_in, model_asked, run_interruptible
from steprag.config.load import StageConfig, add_options, config_from, parse_arguments
from steprag.config.sections import JudgeConfig
from steprag.console.progress import say_next
from steprag.errors import PART_DONE, ConfigError
from steprag.policy.budget import BudgetConfig
from steprag.policy.protocols import Policy
from steprag.records.json_text import NotJson, decoded
from steprag.records.jsonl import existing, file_hash, read_records, write_json
from steprag.records.turns import Verdict
from steprag.runs.run import checked_manifest, open_run
from steprag.scores.gold import em_of
from steprag.scores.stats import share_interval
from steprag.types import Message, Prediction, Question, Usage

VERDICTS = ResultKind(Verdict, lambda verdict: verdict.id)
PROMPT = Path(__file__).parents[2] / "configs" / "judge" / "answer.yaml"


class AnswerJudgeConfig(StageConfig):
    """`steprag score judge`: the judge and its budget."""

    judge: JudgeConfig = Field(default_factory=JudgeConfig)
    budget: BudgetConfig = Field(default_factory=BudgetConfig)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag score judge", description="A model says which answers are right.")
    parser.add_argument("--predictions", required=True, metavar="RUN", help="run folder of steprag infer")
    parser.add_argument("--out", metavar="DIR", help="where the verdicts go [RUN/judged]")
    parser.add_argument("--json", action="store_true", help="scores as JSON on standard output")
    add_options(parser, AnswerJudgeConfig)
    given = parse_arguments(parser, argv)
    run = existing(given.predictions, "run folder")
    out = Path(given.out) if given.out else run / "judged"
    scores, failed = run_interruptible(judge(config_from(AnswerJudgeConfig, given), run, out))
    sys.stdout.write((json.dumps(scores, indent=2) if given.json else table(scores)) + "\n")
    say_next("compare", run)
    return PART_DONE if failed else 0


async def judge(config: AnswerJudgeConfig, run: Path, out: Path) -> tuple[dict[str, Any], int]:
    """Judges every prediction of `run`; returns the scores, also in metrics.json, and how many requests failed."""
    file = predictions_file(run)
    played = checked_manifest(run, "identity")["identity"]
    predictions = {prediction.id: prediction for prediction in read_predictions(run)}
    if not predictions:
        raise ConfigError(f"{file} holds no prediction to judge")
    words = prompt_of(config.judge, PROMPT, ("question", "golden", "answer"))
    questions = [Question(p.id, p.question, p.golden_answers) for p in predictions.values()]
    identity = {
        "predictions": file_hash(file),
        "prompt": {"hash": file_hash(words)[:16]},
        "judge": model_asked(config.judge),
    }

    async def one(question: Question, policy: Policy) -> Verdict:
        return await verdict(predictions[question.id], policy, words)

    with open_run(out, "judge", identity=identity, config=config.model_dump()) as run_of_judge:
        verdicts = Results(out / "verdicts.jsonl", VERDICTS)
        failed = await ask_all(run_of_judge, questions, verdicts, one, role="judge", model=config.judge,
                                replies=VerdictFormat(), budget=config.budget)  # fmt: skip
        unanswered = len(failures_in(run).keys() - predictions.keys())
        scores = scored(predictions, list(read_records(verdicts.path, Verdict)), failed, unanswered)
        scores |= {"identity": identity, "predictions_of": played}
        write_json(out / "metrics.json", scores)
        run_of_judge.set(usage=scores["usage"])
    return scores, failed


async def verdict(prediction: Prediction, policy: Policy, words: Path = PROMPT) -> Verdict:
    """An episode without an answer is wrong without asking. A reply that is neither word gives `right` None."""
    if prediction.prediction is None:
        return Verdict(prediction.id, right=False, text="", usage=Usage())
    said = await asked(policy, render(prediction, prediction.prediction, words), ("right",), parse, seed=0)
    return Verdict(prediction.id, None if said.score is None else said.score > 0, said.text, said.usage)


def render(prediction: Prediction, answer: str, prompt: Path = PROMPT) -> tuple[Message, ...]:
    """The judge's prompt: question, golden answers and `answer`. All are neutralised: they are data."""
    golden = " / ".join(prediction.golden_answers)
    return messages_of(words_of(prompt), question=prediction.question, golden=golden, answer=answer)


def parse(reply: str) -> float | None:
    """1 for yes or {"right": true}, 0 for no or {"right": false}; None for anything else."""
    text = reply.strip()
    if text.startswith("{"):
        try:
            right = decoded(text).get("right")
        except NotJson:
            return None
        return float(right) if isinstance(right, bool) else None
    word = re.fullmatch(r"(yes|no)\.?", text, re.IGNORECASE)
    return float(word[1].lower() == "yes") if word else None


def scored(
    predictions: dict[str, Prediction], verdicts: list[Verdict], failed: int, unanswered: int = 0
) -> dict[str, Any]:
    """`right`: share of the verdicts that say yes, with its 95 % interval; `agreement`: share that EM says as well.

    Verdicts that the judge did not give (`unread`) and requests that failed are in neither. `strict_right` has every
    question in its denominator, also the `unanswered` ones, which have no prediction.
    """
    read = [(one.right, em_of(predictions[one.id].prediction, predictions[one.id]) == 1.0)
            for one in verdicts if one.right is not None]  # fmt: skip
    hits, asked = sum(right for right, _ in read), len(verdicts) + failed + unanswered
    return {
        "questions": asked,
        "strict_right": hits / asked,
        "strict_right_interval": share_interval(hits, asked),
        "right": hits / len(read) if read else None,
        "right_interval": share_interval(hits, len(read)) if read else None,
        "agreement": mean(right == exact for right, exact in read) if read else None,
        "em": mean(exact for _, exact in read),
        "unread": len(verdicts) - len(read),
        "failed": failed,
        "unanswered": unanswered,
        "usage": sum((one.usage for one in verdicts), Usage()).shown,
    }


def table(scores: dict[str, Any]) -> str:
    """The scores in a few readable lines."""
    if scores["right"] is None:
        return f"the judge gave no verdict on any of {scores['questions']} answers"
    right, agreement, em, strict = (shown("share", scores[key]) for key in ("right", "agreement", "em", "strict_right"))
    return (
        f"right      {right} ({_span(scores['right_interval'])}), says the judge; EM of the same {em}\n"
        f"agreement  {agreement} % with EM\n"
        f"of all     {strict} ({_span(scores['strict_right_interval'])}): every question counts, and those without a "
        "verdict are wrong\n"
        f"questions  {scores['questions']} ({scores['unread']} without a verdict, {scores['failed']} failed, "
        f"{scores['unanswered']} without a prediction)"
    )


def _span(interval: tuple[float, float]) -> str:
    low, high = (shown("share", end) for end in interval)
    return f"95 % interval {low} to {high}"
