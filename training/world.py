"""What stage grpo plays in: questions, and the agent's environment over an index."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from indexes import open_retriever
from steprag.agent.checkpoints import profile_for
from steprag.agent.environment import Environment
from steprag.agent.judge import prompt_hash
from steprag.agent.open import make_environment
from steprag.agent.verdicts import prompt_hash as verdicts_hash
from steprag.batch.worklist import SAMPLING
from steprag.engines.models import resolve_model
from steprag.files import existing, file_hash
from steprag.inputs import read_questions
from steprag.policy.client import model_identity
from steprag.types import Question
from training.config import TrainConfig
from training.judging import judged_terms


@dataclass(frozen=True)
class World:
    """`identity`: what decides the episodes beyond the recipe's own section. `opened`: what `open_world` was given, the
    question file and the index, for other processes that play.
    """

    questions: list[Question]
    environment: Environment
    identity: dict[str, Any]
    opened: tuple[str, str] = ("", "")


@contextmanager
def open_world(questions_file: str, index: str, config: TrainConfig) -> Iterator[World]:
    """Reads the questions and opens the index, which is closed with the block.

    Raises DataError, and ConfigError, also where the model was trained on other prompts (unless `prompt.unchecked`).

    The retriever's weights load with its first search: a run that is finished already needs none.
    """
    file = existing(questions_file, "question file")
    questions = read_questions(file)
    profile = profile_for(config.prompt, resolve_model(config.model, config.adapter))
    retriever = open_retriever(index, config.retriever.model_copy(update={"preload": False}))
    identity = {
        "data": {"questions": file_hash(file), "index": retriever.fingerprint},
        "prompt": profile.identity,
        "episode": config.episode.identity,
        "judge": _judge_identity(config, questions),
    }
    try:
        environment = make_environment(profile, retriever, config.episode)
        yield World(questions, environment, identity, (questions_file, index))
    finally:
        asyncio.run(retriever.aclose())


def _judge_identity(config: TrainConfig, questions: list[Question]) -> dict[str, Any] | None:
    terms = judged_terms(config.grpo.rewards, questions)
    if not terms:
        return None
    read = {"verdicts": verdicts_hash()} if terms != {"judge"} else {}
    return {
        **model_identity(config.judge),
        **config.judge.model_dump(include=SAMPLING),
        "prompt": prompt_hash(),
        **read,
    }
