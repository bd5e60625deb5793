"""What the tests of GRPO share: a question with two answers, and a tiny model that has learnt to speak in steps."""

from __future__ import annotations

import asyncio
from pathlib import Path

from steprag.agent.environment import Environment
from steprag.agent.profiles import load_profile
from steprag.engines.tokens import prompt_tokens, reply_tokens
from steprag.types import Completion, Message, Question, State
from tests.fakes import DictRetriever, answer, evidence, query
from tests.models import make_llama

ASKED = Question("q", "Is Lima in Peru?", ("yes",), {"supporting_ids": ["2"]})
YES, NO, SEARCH = answer("yes", "So."), answer("no", "So."), query("Lima", "So.")
KEPT = evidence("Lima is the capital of Peru.")


def world() -> Environment:
    return Environment(load_profile("transcript"), DictRetriever(), top_k=1, depth=5)


def spoken() -> list[tuple[tuple[Message, ...], str]]:
    """Prompts of the question's states, each with a step that may follow: search, or answer either way."""
    environment = world()
    state, found = environment.start(ASKED.question), []
    found += [(environment.observe(state).messages, text) for text in (YES, NO, SEARCH)]
    for taken in (SEARCH, KEPT):
        step = environment.parse(state, Completion(taken, "stop"))
        state: State = asyncio.run(environment.apply(state, step))
        following = (KEPT,) if taken == SEARCH else (YES, NO)
        found += [(environment.observe(state).messages, text) for text in following]
    return found


def make_speaker(folder: Path) -> Path:
    """A tiny llama that has learnt `spoken` by heart: of a state's steps it takes one at random."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    texts = [message["content"] for prompt, _ in spoken() for message in prompt] + [text for _, text in spoken()]
    make_llama(folder, texts)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    rows = []
    for prompt, text in spoken():
        ids = prompt_tokens(prompt, tokenizer)
        reply = reply_tokens(prompt, Message(role="assistant", content=text), tokenizer)
        rows.append((torch.tensor(ids + reply), torch.tensor([-100] * len(ids) + reply)))
    inputs, labels = zip(*rows, strict=True)
    batch = {
        "input_ids": torch.nn.utils.rnn.pad_sequence(inputs, batch_first=True),
        "labels": torch.nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=-100),
    }
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)
    for step in range(60):
        optimiser.param_groups[0]["lr"] = 0.01 * min(1, (step + 1) / 10) * (1 - step / 90)
        model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
    model.save_pretrained(folder)
    return folder
