"""What is done to a stranger's text behind each door: a function of one text each, by name.

Not among them: wiki markup and web pages, whose parsers take time in the square of some. They live in processes that
are ended in time (`indexes.web.extraction.BoundedProcess`).
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from apps.adapt.facts import facts_in
from apps.adapt.passages import _names_in, subjects_of
from apps.chat.http.completion_request import CompletionBody
from apps.chat.http.file_routes import file_name
from apps.chat.http.openai_api import Chunks, content_of
from apps.chat.http.reasoning import reasoning_of
from apps.chat.memory import render, rewritings
from apps.chat.routing import route_of
from apps.chat.turns import events
from apps.record.record import leads_out
from indexes.addons.bm25 import Analyser
from indexes.addons.links import mentions, title_words
from indexes.corpora import document_worker
from indexes.corpora.cutting import cut
from indexes.tools.mcp_reading import texts_of
from indexes.web.providers import query_of, results_of
from indexes.web.retriever import likely, pieces, plain
from preference.exchange import proguide
from preference.exchange.instruct import steps_of
from steprag.agent.chained import names_of
from steprag.agent.citations import Grounds, Support, citations
from steprag.agent.degenerate import degenerate
from steprag.agent.grammars import GRAMMARS
from steprag.agent.inert import neutralise, without_instructions
from steprag.agent.profiles import load_profile
from steprag.console.terminal import plain as shown
from steprag.engines.reasoning import left_open, split
from steprag.errors import StepragError, nearest, quoted
from steprag.policy.refusals import problem_of
from steprag.policy.replies import sample_of
from steprag.policy.streams import reply_in, whole_reply
from steprag.policy.tool_calls import ToolCalls
from steprag.records.json_text import decoded, literal
from steprag.records.number_formats import shown as number_shown
from steprag.records.talks import talk_of
from steprag.scores.gold import holds_golden, subject
from steprag.scores.gold import mentions as named
from steprag.scores.metrics import cover_match, f1, normalise
from steprag.scores.words import bleu, rouge_l
from steprag.types import Completion, Passage, State, Step
from steprag.web.app import ApiError

Door = Callable[[str], Any]


def cut_up(text: str) -> list[str]:
    """A text as it is streamed."""
    return [text[at : at + 8] for at in range(0, len(text), 8)]


def doors(folder: Path) -> dict[str, Door]:
    """All doors. `folder`: where files are written."""
    found = {**_documents(folder), **_read(), **_chatted(), **_models(), **_scored()}
    return {name: _refusing(door) for name, door in found.items()}


def _refusing(door: Door) -> Door:
    def tried(text: str) -> None:
        with suppress(ValueError, StepragError, ApiError):
            door(text)

    return tried


def _documents(folder: Path) -> dict[str, Door]:
    def document(kind: str, before: str = "", after: str = "") -> Door:
        def read(text: str) -> None:
            path = folder / "a"
            path.write_bytes(f"{before}{text}{after}".encode("utf-8", "replace"))
            document_worker._cut(str(path), kind, "a")

        return read

    return {
        **{kind: document(kind) for kind in ("text", "table", "markdown", "html")},
        "rtf": document("rtf", "{\\rtf1 ", "}"),
        "a paragraph": lambda text: [*cut([("p", 0, text)], "a")],
        "a row": lambda text: [*cut([("r", 0, text)], "a")],
        "a heading": lambda text: [*cut([("h", 0, text), ("p", 0, "a")], "a")],
        "paragraphs": lambda text: [*cut([("p", 0, one) for one in text.split()], "a")],
    }


def _read() -> dict[str, Door]:
    return {
        **{f"analyser {form}": Analyser("english", form).passage for form in (1, 2, 3)},
        "title words": title_words,
        "mentions": lambda text: [*mentions(text, {title_words(text): 0, ("A",): 1})],
        "names": lambda text: named(text, names_of(text)),
        "json": decoded, "literal": literal, "number format": lambda text: number_shown(12.5, text),
        "plain": plain, "pieces": lambda text: [*pieces(text, 100)], "likely": lambda text: likely(text, [text], 1),
        "results": lambda text: results_of([{"url": f"http://{text}", "title": text}], ("url", "title", "title"), 1),
        "web query": query_of,
        "tool result": lambda text: texts_of({"content": [{"type": "text", "text": text}], "structuredContent": text}),
        "terminal": shown, "quoted": quoted, "nearest": lambda text: nearest(text, ["policy.model", "seed"]),
        "facts": lambda text: [*facts_in(Passage("a", text, text))],
        "names in a text": lambda text: [*_names_in(text, {"a"}, Counter())],
        "subjects": subjects_of, "path": leads_out,
        "neutralise": lambda text: neutralise(text, ("<|im_start|>", "ab")),
        "screen": without_instructions,
    }  # fmt: skip


def _chatted() -> dict[str, Door]:
    def deltas(text: str) -> list[events.Event]:
        return [events.step_delta(0, piece) for piece in cut_up(text)]

    def talked(text: str) -> None:
        chunks = Chunks("a", "agent", [])
        chunks.event({"type": "question", "asked": "a", "question": "a", "route": "talk"})
        for event in deltas(text):
            chunks.event(event)

    def asked(text: str) -> None:
        said = [{"role": role, "content": text} for role in ("user", "assistant", "user")]
        body = CompletionBody.model_validate({"model": "agent", "messages": said})
        rewritings(body.exchanges(10), "Where is it?")
        render(body.exchanges(10), body.question or "")

    def cited(text: str) -> None:
        found = (Passage("p", text, text), Passage("o", "o", f"o {text}"))
        steps = (Step("query", "", "q"), Step("evidence", text, text), Step("answer", text, text))
        state = State("q", steps, found[:1], ((), found))
        citations(state, frozenset({"evidence"}))
        Support().lacks(state)

    return {
        "route": route_of, "history": lambda text: rewritings([(text, text)], "Where is it?"), "completion": asked,
        "reasoning": lambda text: reasoning_of(deltas(text)),
        "one step": lambda text: reasoning_of([events.step_delta(0, text)]),
        "talk": talked, "citations": cited, "degenerate": degenerate,
        "answer": lambda text: content_of([events.answer(text, Grounds((), True, None, False))]),
        "file name": lambda text: file_name(f"{text}.md", (".md",)),
    }  # fmt: skip


def _models() -> dict[str, Door]:
    profile = load_profile("transcript")

    def streamed(text: str, before: str = "") -> None:
        async def parts() -> AsyncIterator[bytes]:
            for piece in [before, *cut_up(text)]:
                delta = json.dumps({"choices": [{"index": 0, "delta": {"content": piece}}]})
                yield f"data: {delta}\n\n".encode()

        asyncio.run(whole_reply(parts(), "", lambda _: None))

    def called(text: str) -> None:
        calls = ToolCalls()
        for number, piece in enumerate(cut_up(text)):
            calls.add([{"id": f"{number}", "function": {"name": "a", "arguments": piece}}])

    def said(text: str) -> None:
        talk = talk_of({"messages": [{"role": role, "content": text} for role in ("user", "assistant")]})
        steps_of(talk, profile, "a", Counter())

    grammars = {
        f"grammar {name}": lambda text, one=one: one.parse(Completion(text, "stop"), (one.actions[0].name,))
        for name, one in GRAMMARS.items()
    }
    return {
        **grammars, "split": split, "left open": left_open, "streamed": streamed, "called": called,
        "thought": lambda text: streamed(text, "<think>"), "instruction": said,
        "sample": lambda text: sample_of({"choices": [{"message": {"content": text}, "finish_reason": text}]},
                                         ("</query>",), "", "openai"),
        "reply": lambda text: reply_in(text.encode("utf-8", "replace")),
        "problem": lambda text: problem_of(400, text.encode("utf-8", "replace")),
        "proguide": lambda text: proguide.parse_user(
            f"Question: {text}\nPrevious Thoughts: {text}. Reference: <reference>{text}"),
    }  # fmt: skip


def _scored() -> dict[str, Door]:
    return {
        "subject": subject, "normalise": normalise, "golden": lambda text: holds_golden(text, (text, text[:9])),
        "words": lambda text: (f1(text, (text,)), cover_match(text, (text,))),
        "rouge": lambda text: rouge_l(text, (text,)), "bleu": lambda text: bleu(text, (text,)),
    }  # fmt: skip
