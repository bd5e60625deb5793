"""Questions that lean on an earlier one: what does the agent answer as typed, rewritten, and asked outright?

    python benchmarks/followups.py --index DIR [--limit 60] [--policy.… …] [--rewriter.… …]

Atlas' one-hop questions that name their subject become follow-ups: the turn before asks what the subject is, and in the
question "it" stands for the subject. The same agent answers all three forms, greedily. Options are those of `steprag
serve`; without any, the embedded model with its adapter answers and the embedded model without one rewrites. `--split
dev` (dev, and every other question of train) is for looking at; `test` has the others. `--exchanges 2` puts an exchange
about something else before. `--words` plays no episode and counts the rewritings alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from contextlib import aclosing
from dataclasses import dataclass, replace

from apps.chat.config import ChatConfig
from apps.chat.memory import Exchange, LineFormat, Rewriter
from indexes import open_retriever
from inference.inference import answer_one
from inference.scoring.scores import score
from steprag import atlas
from steprag.agent.checkpoints import checked_profile
from steprag.agent.open import make_environment, open_agent
from steprag.config.load import add_options, config_from
from steprag.errors import RequestError
from steprag.policy.open import open_model
from steprag.records.inputs import read_passages, read_questions
from steprag.scores.stats import mcnemar, mean_interval
from steprag.types import Prediction, Question


@dataclass(frozen=True)
class FollowUp:
    """A question, the exchange before it, and the words that lean on it."""

    question: Question
    before: Exchange
    typed: str


def follow_ups(split: str, limit: int) -> list[FollowUp]:
    """The first `limit` one-hop questions of the split whose subject is a passage's title."""
    passages = {passage.id: passage for passage in read_passages(atlas.path("corpus"))}
    others = read_questions(atlas.path("train"))[0 if split == "dev" else 1 :: 2]
    found = []
    for question in [*read_questions(atlas.path(split)), *others]:
        ids = question.metadata.get("supporting_ids", ()) if question.metadata.get("type") == "one-hop" else ()
        for title, text in ((passages[id].title, passages[id].text) for id in ids):
            typed, count = re.subn(rf"\b(?:the )?{re.escape(title)}\b('s)?", lambda match: "its" if match[1] else "it",
                                   question.question, count=1)  # fmt: skip
            if count:
                found.append(FollowUp(question, (f"What is {title}?", text.split(". ")[0].rstrip(".") + "."), typed))
                break
    return found[:limit]


async def rewritten(config: ChatConfig, asked: list[FollowUp], exchanges: int) -> list[str]:
    """The follow-ups as the rewriter has them; other subjects' exchanges stand before their own."""
    rewriting = asyncio.Semaphore(config.rewriter.concurrency)
    choose = config.rewriter.way == "choose"
    async with open_model(config.rewriter, LineFormat(choose)) as model:
        rewriter = Rewriter(model, choose)

        async def rewrite(place: int) -> str:
            history = [asked[(place + 7 * back) % len(asked)].before for back in range(exchanges)][::-1]
            async with rewriting:
                return await rewriter.standalone(model.policy, history, asked[place].typed, seed=0)

        return await asyncio.gather(*map(rewrite, range(len(asked))))


async def played(
    config: ChatConfig, index: str, asked: list[FollowUp], forms: dict[str, list[str]]
) -> dict[str, list[float]]:
    """Which of the questions the agent answers right, in each form: 1 or 0."""
    right: dict[str, list[float]] = {}
    playing = asyncio.Semaphore(config.policy.concurrency)
    async with aclosing(open_retriever(index, config.retriever)) as retriever:
        environment = make_environment(checked_profile(config.prompt, config.policy), retriever, config.episode)
        async with open_agent(config, retriever, environment=environment) as agent:

            async def em(one: FollowUp, words: str) -> float:
                async with playing:
                    asked_now = replace(one.question, question=words)
                    outcome = await answer_one(asked_now, 0, agent.environment, agent.policy.policy)
                if not isinstance(outcome, Prediction):
                    raise RequestError(outcome.detail)
                return float(score(outcome).em == 1)

            for form, texts in forms.items():
                right[form] = await asyncio.gather(*map(em, asked, texts))
    return right


async def measure(config: ChatConfig, given: argparse.Namespace) -> dict[str, object]:
    asked = follow_ups(given.split, given.limit)
    texts = await rewritten(config, asked, given.exchanges)
    same = [float(_bare(words) == _bare(one.question.question)) for one, words in zip(asked, texts, strict=True)]
    told: dict[str, object] = {"questions": len(asked), "rewritten as meant": [sum(same), *mean_interval(same)]}
    if not given.words:
        outright = [one.question.question for one in asked]
        forms = {"as typed": [one.typed for one in asked], "rewritten": texts, "asked outright": outright}
        right = await played(config, given.index, asked, forms)
        gains = [late - early for late, early in zip(right["rewritten"], right["as typed"], strict=True)]
        better, worse = gains.count(1), gains.count(-1)
        told |= {form: [sum(each), *mean_interval(each)] for form, each in right.items()}
        told |= {"rewriting: better, worse": [better, worse], "p": mcnemar(better, worse)}
    wrong = [[one.typed, words] for one, words, fits in zip(asked, texts, same, strict=True) if not fits]
    return {**told, "not as meant": wrong[:10]}


def _bare(words: str) -> str:
    """Without articles: "the Laotian kip" is "Laotian kip"."""
    return words.replace(" the ", " ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", required=True)
    parser.add_argument("--limit", type=int, default=60)
    parser.add_argument("--split", choices=("dev", "test"), default="test")
    parser.add_argument("--exchanges", type=int, default=1)
    parser.add_argument("--words", action="store_true")
    add_options(parser, ChatConfig)
    given = parser.parse_args()
    config = config_from(ChatConfig, given)
    if config == ChatConfig():
        embedded = config.policy.model_copy(update={"adapter": "atlas-warmstart"})
        config = config.model_copy(update={"policy": embedded})
    sys.stdout.write(json.dumps(asyncio.run(measure(config, given)), indent=2) + "\n")


if __name__ == "__main__":
    main()
