"""Questions that lean on an earlier one: what does the agent answer as typed, rewritten, and asked outright?

    python benchmarks/followups.py --index DIR [--limit 60] [--policy.… …] [--rewriter.… …]

Atlas' one-hop questions that name their subject become follow-ups: the turn before asks what the subject is, and in the
question "it" stands for the subject. The same agent answers all three forms, greedily. Options are those of `steprag
serve`; without any, the embedded model with its adapter answers and the embedded model without one rewrites.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from contextlib import aclosing
from dataclasses import dataclass, replace

from indexes import open_retriever
from inference.chat.config import ChatConfig
from inference.chat.memory import Exchange, QuestionFormat, standalone
from inference.inference import answer_one
from inference.scores import score
from steprag import atlas
from steprag.agent.checkpoints import checked_profile
from steprag.agent.open import make_environment, open_agent
from steprag.config import add_options, config_from
from steprag.errors import RequestError
from steprag.inputs import read_passages, read_questions
from steprag.policy.client import open_model
from steprag.stats import mcnemar
from steprag.types import Prediction, Question

FORMS = ("as typed", "rewritten", "asked outright")


@dataclass(frozen=True)
class FollowUp:
    """A question, the exchange before it, and the words that lean on it."""

    question: Question
    before: Exchange
    typed: str


def follow_ups(limit: int) -> list[FollowUp]:
    """The first `limit` one-hop questions of the test split whose subject is a passage's title."""
    passages = {passage.id: passage for passage in read_passages(atlas.path("corpus"))}
    found = []
    for question in read_questions(atlas.path("test")):
        ids = question.metadata.get("supporting_ids", ()) if question.metadata.get("type") == "one-hop" else ()
        for title, text in ((passages[id].title, passages[id].text) for id in ids):
            typed, count = re.subn(rf"\b(?:the )?{re.escape(title)}\b('s)?", lambda match: "its" if match[1] else "it",
                                   question.question, count=1)  # fmt: skip
            if count:
                found.append(FollowUp(question, (f"What is {title}?", text.split(". ")[0].rstrip(".") + "."), typed))
                break
    return found[:limit]


async def measure(config: ChatConfig, index: str, limit: int) -> dict[str, object]:
    asked = follow_ups(limit)
    rewriting = asyncio.Semaphore(config.rewriter.concurrency)
    async with open_model(config.rewriter, QuestionFormat()) as rewriter:

        async def rewrite(one: FollowUp) -> str:
            async with rewriting:
                return await standalone(rewriter.policy, [one.before], one.typed, seed=0)

        rewritten = await asyncio.gather(*map(rewrite, asked))
    forms = {
        "as typed": [one.typed for one in asked],
        "rewritten": rewritten,
        "asked outright": [one.question.question for one in asked],
    }
    right: dict[str, list[int]] = {}
    playing = asyncio.Semaphore(config.policy.concurrency)
    async with aclosing(open_retriever(index, config.retriever)) as retriever:
        environment = make_environment(checked_profile(config.prompt, config.policy), retriever, config.episode)
        async with open_agent(config, retriever, environment=environment) as agent:

            async def em(one: FollowUp, words: str) -> int:
                async with playing:
                    asked_now = replace(one.question, question=words)
                    outcome = await answer_one(asked_now, 0, agent.environment, agent.policy.policy)
                if not isinstance(outcome, Prediction):
                    raise RequestError(outcome.detail)
                return int(score(outcome).em == 1)

            for form in FORMS:
                pairs = zip(asked, forms[form], strict=True)
                right[form] = await asyncio.gather(*(em(one, words) for one, words in pairs))
    same = sum(words == one.question.question for one, words in zip(asked, rewritten, strict=True))
    gains = list(zip(right["rewritten"], right["as typed"], strict=True))
    better, worse = sum(a > b for a, b in gains), sum(a < b for a, b in gains)
    return {
        "questions": len(asked),
        **{form: sum(right[form]) for form in FORMS},
        "rewritten word for word as asked outright": same,
        "rewriting: better, worse": [better, worse],
        "p": mcnemar(better, worse),
        "examples": [[one.typed, words] for one, words in list(zip(asked, rewritten, strict=True))[:5]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", required=True)
    parser.add_argument("--limit", type=int, default=60)
    add_options(parser, ChatConfig)
    given = parser.parse_args()
    config = config_from(ChatConfig, given)
    if config == ChatConfig():
        embedded = config.policy.model_copy(update={"adapter": "atlas-warmstart"})
        config = config.model_copy(update={"policy": embedded})
    sys.stdout.write(json.dumps(asyncio.run(measure(config, given.index, given.limit)), indent=2) + "\n")


if __name__ == "__main__":
    main()
