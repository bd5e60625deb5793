"""Rows of other tools' formats, from canonical pairs and supervised steps. The system prompt stays one in all of them.

A row that a format cannot hold raises ValueError with the reason: nothing is dropped.
"""

from __future__ import annotations

from typing import Any

from steprag.records.training_rows import Pair, Trajectory
from steprag.types import Message, Question

VERL_SYSTEM = (
    "Answer the question in small steps. Call the tool search for what you need to know, read what it finds, and "
    "search again where that does not suffice. End with the answer alone, as <answer> … </answer>."
)
"""What the model is told where verl plays the episodes, by tool calls in the model's own format."""
_SHAREGPT = {"user": "human", "assistant": "gpt"}


def openai_pair(pair: Pair) -> dict[str, Any]:
    """OpenAI's preference fine-tuning (method `dpo`)."""
    return {
        "input": {"messages": list(pair.prompt), "tools": [], "parallel_tool_calls": True},
        "preferred_output": list(pair.chosen),
        "non_preferred_output": list(pair.rejected),
    }


def openai_step(step: Trajectory) -> dict[str, Any]:
    """OpenAI's supervised fine-tuning."""
    return {"messages": [*step.prompt, *step.completion]}


def verl_pair(pair: Pair) -> dict[str, Any]:
    """verl's Parquet row: its columns for prompts with a ground truth, and the two steps beside them."""
    provenance = {"tree": pair.tree, "chosen_node": pair.chosen_node, "rejected_node": pair.rejected_node,
                  "chosen_reward": pair.chosen_reward, "rejected_reward": pair.rejected_reward}  # fmt: skip
    return {
        **_verl(pair, provenance),
        "chosen": pair.chosen[0]["content"],
        "rejected": pair.rejected[0]["content"],
    }


def verl_step(step: Trajectory) -> dict[str, Any]:
    """verl's Parquet row for supervised training: `messages`, beside the columns of a prompt with a ground truth."""
    provenance = {"tree": step.tree, "node": step.node, "outcome": step.outcome}
    return {**_verl(step, provenance), "messages": [*step.prompt, *step.completion]}


def verl_question(question: Question) -> dict[str, Any]:
    """verl's Parquet row for reinforcement learning with a tool `search`: the question, and its golden answers."""
    asked = [{"role": "system", "content": VERL_SYSTEM}, {"role": "user", "content": question.question}]
    return {
        "data_source": question.dataset or "steprag",
        "prompt": asked,
        "ability": "agentic-rag",
        "reward_model": {"style": "rule", "ground_truth": {"target": list(question.golden_answers)}},
        "extra_info": {"question_id": question.id},
    }


def _verl(row: Pair | Trajectory, provenance: dict[str, Any]) -> dict[str, Any]:
    known = {"question_id": row.question_id, "action": row.action, "depth": row.depth, **provenance}
    return {
        "data_source": row.source,
        "prompt": list(row.prompt),
        "ability": "agentic-rag",
        "reward_model": {"style": "rule", "ground_truth": {"target": list(row.golden_answers)}},
        "extra_info": known,
    }


def llamafactory_pair(pair: Pair) -> dict[str, Any]:
    """LLaMA-Factory's ShareGPT ranking row."""
    row = _sharegpt(pair.prompt)
    replies = {"chosen": pair.chosen, "rejected": pair.rejected}
    return {**row, **{name: _turn(*_one_reply(name, messages)) for name, messages in replies.items()}}


def llamafactory_step(step: Trajectory) -> dict[str, Any]:
    """LLaMA-Factory's ShareGPT row for supervised training."""
    row = _sharegpt(step.prompt)
    return {**row, "conversations": [*row["conversations"], *map(_turn, _one_reply("completion", step.completion))]}


def _sharegpt(prompt: tuple[Message, ...]) -> dict[str, Any]:
    """System prompt and turns under the rules of LLaMA-Factory's converter, which drops what breaks them."""
    if not prompt or prompt[0]["role"] != "system" or not prompt[0]["content"]:
        raise ValueError("no system message: LLaMA-Factory would put its template's own there")
    turns = prompt[1:]
    wanted = ["user" if place % 2 == 0 else "assistant" for place in range(len(turns))]
    if len(turns) % 2 == 0 or [turn["role"] for turn in turns] != wanted:
        raise ValueError("after the system message, turns must alternate from user to user")
    return {"system": prompt[0]["content"], "conversations": [_turn(turn) for turn in turns]}


def _one_reply(name: str, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    if [message["role"] for message in messages] != ["assistant"] or not messages[0]["content"].strip():
        raise ValueError(f"{name} must be one assistant message with text")
    return messages


def _turn(message: Message) -> dict[str, str]:
    return {"from": _SHAREGPT[message["role"]], "value": message["content"]}


def llamafactory_entry(file_name: str, ranking: bool) -> dict[str, Any]:
    """The entry of `dataset_info.json` for a file of the rows above."""
    columns = {"messages": "conversations", "system": "system"}
    if ranking:
        columns |= {"chosen": "chosen", "rejected": "rejected"}
    tags = {"role_tag": "from", "content_tag": "value", "user_tag": "human", "assistant_tag": "gpt"}
    ranked: dict[str, Any] = {"ranking": True} if ranking else {}
    return {"file_name": file_name, "formatting": "sharegpt", **ranked, "columns": columns, "tags": tags}


def proguide_entry(file_name: str) -> dict[str, Any]:
    """The entry of `dataset_info.json` for a ten-field file; its `instruction` is mapped to the system prompt.

    LLaMA-Factory's own default would join `instruction` and `input` in the user turn.
    """
    columns = {"system": "instruction", "prompt": "input", "chosen": "chosen", "rejected": "rejected"}
    return {"file_name": file_name, "ranking": True, "columns": columns}
