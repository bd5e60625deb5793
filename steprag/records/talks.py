"""Rows that people train on: instructions and replies (Alpaca), conversations (ShareGPT, messages); and what a row of
another form is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from steprag.errors import quoted
from steprag.records.spellings import TURNING, first, folded, plain

ROLES = {word: role for role, words in {
    "system": "system developer", "user": "user human", "assistant": "assistant gpt chatgpt bing bard model",
}.items() for word in words.split()}  # fmt: skip
"""Who speaks, by OpenAI's, ShareGPT's and Gemma's words; all others are tools."""
ASKED, MORE = ("instruction", "question", "prompt", "problem"), ("input", "context")
REPLY = ("output", "answer", "response", "completion", "solution")
"""What Alpaca's fields are called there, in GSM8K, in Dolly and their kin."""
NOTHING = ("", "<noinput>", "noinput")
MESSAGES, SYSTEM = ("messages", "conversations", "conversation"), ("system", "system_prompt", "system_message")
LEARNED = ("weight", "train", "training", "loss", "loss_mask", "loss_weight", "train_on_turn", "trainable",
           "mask", "masked")  # fmt: skip
"""What says of a row or a message whether it is learned, or stands there as context alone (OpenAI, axolotl)."""
CONTEXT = "marked as context, which is not learned"
HELD = ("images", "image", "videos", "video", "audios", "audio")
"""What no step holds."""
UNREAD = frozenset({*TURNING, "tools", "functions"})
_PAIRS = ("preferences between whole answers (DPO), which no command reads: give the better ones as prompt and "
          "completion to steprag pairs instruct")  # fmt: skip
_TALKS, _ASKED = "instruction data: steprag pairs instruct FILE", "questions: steprag generate --questions FILE"
FORMS = (
    ("chosen_action_type", "pairs of RAG_ProGuide: steprag pairs import FILE"),
    ("chosen rejected question_id", "pairs of a pairs folder: steprag train --pairs FOLDER"),
    ("rejected", _PAIRS), ("conversation_a", _PAIRS), ("messages", _TALKS), ("conversations", _TALKS),
    ("conversation", _TALKS), ("instruction output", _TALKS), ("prompt completion", _TALKS),
    ("question golden_answers", _ASKED), ("question answer", _ASKED), ("question answers", _ASKED),
)  # fmt: skip
"""Fields, and the form whose rows have them all with the command that reads it; the first that fits."""


@dataclass(frozen=True)
class TalkTurn:
    """A question and its reply. `thought`: reasoning that stands beside the reply; `learned`: not context alone."""

    asked: str
    reply: str
    thought: str
    learned: bool


@dataclass(frozen=True)
class Talk:
    """The system prompt and the turns of a row. `unread`: its fields that nobody reads and that may matter."""

    system: str
    turns: tuple[TalkTurn, ...]
    unread: frozenset[str]


def form_of(row: object) -> str:
    """What a row is by its fields, with the command that reads it; nothing for one of no known form."""
    fields = {name for name, value in row.items() if value is not None} if isinstance(row, dict) else set[str]()
    return next((form for names, form in FORMS if {*names.split()} <= fields), "")


def talk_of(row: Any) -> Talk:
    """The system prompt and the turns of a row. Raises ValueError for what has none, or is not to be learned."""
    if not isinstance(row, dict):
        raise ValueError("no object")
    _check(row)
    said = [_message(one) for one in _messages(row)]
    system = [str(row[name]) for name in SYSTEM if row.get(name)] + [text for who, text, *_ in said if who == "system"]
    talk = [one for one in said if one[0] != "system"]
    talk = talk[bool(talk) and talk[0][0] == "assistant" :]  # a greeting comes before any question
    talk = talk[: len(talk) - (bool(talk) and talk[-1][0] == "user")]  # a question that nobody answers
    if not talk or [who for who, *_ in talk] != ["user", "assistant"] * (len(talk) // 2):
        raise ValueError("question and reply do not take turns")
    turns = tuple(TalkTurn(asked[1], *reply[1:]) for asked, reply in zip(talk[::2], talk[1::2], strict=True))
    if not any(turn.learned for turn in turns):
        raise ValueError(CONTEXT)
    return Talk("\n".join(filter(str.strip, dict.fromkeys(system))), turns, _unread(row))


def _check(row: dict[str, Any]) -> None:
    """Raises ValueError for a row that is not to be learned, or holds more than texts."""
    if (form := form_of(row)) in (_PAIRS, *(form for _, form in FORMS[:2])):
        raise ValueError(f"of another form, {form}")
    if held := next((name for name in HELD if row.get(name)), None):
        raise ValueError(f"with {held}, which no step holds")
    if bad := next((name for name in ("label", "kto_tag") if row.get(name) in (False, "False", "false")), None):
        raise ValueError(f"marked as a bad answer ({bad}: false)")
    if not _is_learned(row):
        raise ValueError(CONTEXT)


def _unread(row: dict[str, Any]) -> frozenset[str]:
    lists = [row[name] for name in MESSAGES if isinstance(row.get(name), list)]
    names = {"name" for said in lists for one in said if one.get("name")}
    read = (None, "", "[]", [], True)  # a good answer has the label True
    return frozenset(names | {name for name in row.keys() - {*LEARNED}
                              if folded(name) in UNREAD and row[name] not in read})  # fmt: skip


def _messages(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages of a row, each an object. Raises ValueError."""
    said = next((row[name] for name in MESSAGES if row.get(name)), None)
    if said is None and isinstance(row.get("prompt"), list) and isinstance(row.get("completion"), list):  # TRL
        said = [*row["prompt"], *row["completion"]]
    said = _alpaca(row) if said is None else said
    if not isinstance(said, list) or not all(isinstance(one, dict) for one in said):
        raise ValueError("its messages are no list of objects")
    return said


def _message(one: dict[str, Any]) -> tuple[str, str, str, bool]:
    """Who speaks, the text, the reasoning in a field of its own, and whether it is learned. Raises ValueError."""
    who = ROLES.get(str(one.get("role") or one.get("from")).lower())
    text = one.get("content") or one.get("value") or ""
    if isinstance(text, list):  # OpenAI's parts
        parts = [part.get("text") if isinstance(part, dict) else part for part in text]
        text = "".join(map(str, parts)) if all(isinstance(part, str) for part in parts) else text
    if who is None or not isinstance(text, str) or one.get("tool_calls") or one.get("function_call"):
        raise ValueError("a turn is a tool's, or no text")
    return who, text, str(one.get("reasoning_content") or one.get("reasoning") or ""), _is_learned(one)


def _is_learned(one: dict[str, Any]) -> bool:
    """Whether a row or a message is to be learned, by its marks. Raises ValueError for marks that may mean either."""
    for name in (name for name in LEARNED if one.get(name) is not None):
        value = str(one[name]).strip().lower().removesuffix(".0")
        if name.startswith("mask") or value not in ("true", "1", "false", "0"):
            raise ValueError(f"{name} {quoted(one[name])} is not clear: mark context by weight 0, the rest by weight 1")
        if value in ("false", "0"):
            return False
    return True


def _alpaca(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The same as messages; `history` is a list of [question, reply]."""
    told, more, reply = first(row, ASKED), str(first(row, MORE) or ""), first(row, REPLY)
    if told is None or reply is None:
        raise ValueError("neither instruction and output nor messages")
    asked = "\n".join(filter(str.strip, (str(told), more * (more.strip().lower() not in NOTHING))))
    earlier = row.get("history") or []
    turns = [*(earlier if isinstance(earlier, list) else [None]), (asked, plain(reply) or reply)]
    if not all(isinstance(turn, list | tuple) and len(turn) == 2 for turn in turns):
        raise ValueError("history is no list of [question, reply]")
    roles = ("user", "assistant")
    messages = [{"role": role, "content": text} for turn in turns for role, text in zip(roles, turn, strict=True)]
    return [*messages[:-1], {**row, "name": None, **messages[-1]}]
