"""What is done to a stranger's text behind each door: a function of one text each, by name."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from apps.adapt.passages import _names_in, subjects_of
from apps.adapt.writers import facts_in
from apps.chat.http.completion_request import CompletionBody
from apps.chat.http.file_routes import file_name
from apps.chat.http.listing import exported, holds, summaries
from apps.chat.http.openai_api import Chunks
from apps.chat.http.reasoning import Reasoning
from apps.chat.memory import render, rewritings
from apps.chat.routing import route_of
from apps.chat.turns import events
from apps.chat.turns.citations import Support, citations
from indexes.addons.bm25 import Analyser
from indexes.addons.links import mentions, title_words
from indexes.corpora import templates
from indexes.corpora.cutting import cut
from indexes.web.retriever import likely, pieces, plain
from preference.exchange import proguide
from steprag.agent.grammars import GRAMMARS
from steprag.agent.inert import neutralise, without_instructions
from steprag.console.terminal import plain as shown
from steprag.engines.reasoning import goes_on, left_open, split
from steprag.errors import StepFormatError, nearest, quoted
from steprag.policy.replies import sample_of
from steprag.policy.streams import reply_in, whole_reply
from steprag.records.json_text import NotJson, decoded, literal
from steprag.records.number_formats import shown as number_shown
from steprag.records.talks import talk_of
from steprag.scores.gold import holds_golden, subject
from steprag.scores.metrics import normalise
from steprag.types import Completion, Passage, State, Step

Door = Callable[[str], Any]


def _tried(work: Door, *errors: type[Exception]) -> Door:
    def tried(text: str) -> None:
        try:
            work(text)
        except errors:
            pass

    return tried


def _cited(text: str) -> Any:
    state = State("q", (Step("query", "", "q"), Step("evidence", text, text), Step("answer", text, text)),
                  (Passage("p", text, text),), ((), (Passage("p", text, text), Passage("o", "o", f"o {text}"))))  # fmt: skip
    return citations(state, frozenset({"evidence"})), Support().lacks(state)


def _pieces(text: str) -> Iterator[str]:
    return (text[at : at + 7] for at in range(0, len(text), 7))


def _streamed(text: str) -> Any:
    async def parts() -> AsyncIterator[bytes]:
        for piece in _pieces(text):
            yield f"data: {json.dumps({'choices': [{'index': 0, 'delta': {'content': piece}}]})}\n\n".encode()

    return asyncio.run(whole_reply(parts(), "", lambda piece: None))


def _raw_stream(text: str) -> Any:
    async def parts() -> AsyncIterator[bytes]:
        for piece in _pieces(text):
            yield piece.encode("utf-8", "replace")

    return asyncio.run(whole_reply(parts(), "", lambda piece: None))


def _reasoned(text: str) -> Any:
    told = Reasoning()
    return [told.of(events.step_delta(0, piece)) for piece in _pieces(text)]


def _talked(text: str) -> Any:
    chunks = Chunks("a", "agent", [])
    chunks.event({"type": "question", "asked": "a", "question": "a", "route": "talk"})
    return [chunks.event(events.step_delta(0, piece)) for piece in _pieces(text)]


def _asked(text: str) -> Any:
    body = CompletionBody.model_validate({"model": "agent", "messages": [
        {"role": "user", "content": text}, {"role": "assistant", "content": text}, {"role": "user", "content": text}]})
    return body.question, body.exchanges(10), body.ignored


def _sampled(text: str) -> Any:
    reply = {"choices": [{"message": {"content": text}, "finish_reason": text}]}
    return sample_of(reply, ("</query>",), "", "openai")


def doors() -> dict[str, Door]:
    grammars = {f"grammar {name}": _tried(lambda text, one=one: one.parse(Completion(text, "stop"), (one.actions[0].name,)),
                                          StepFormatError) for name, one in GRAMMARS.items()}  # fmt: skip
    stems = {f"analyser {version}": Analyser("english", version).passage for version in (1, 2, 3)}
    return {
        "a paragraph": lambda text: [*cut([("p", 0, text)], "a")],
        "a row": lambda text: [*cut([("r", 0, text)], "a")],
        "a heading": lambda text: [*cut([("h", 0, text), ("p", 0, "a")], "a")],
        "paragraphs": lambda text: [*cut([("p", 0, one) for one in text.split()], "a")],
        "title words": title_words,
        "mentions": lambda text: [*mentions(text, {("A",): 0})],
        "subject": subject,
        "golden": lambda text: holds_golden(text, (text,)),
        "normalise": normalise,
        "rewritings": lambda text: rewritings([(text, text)], "Where is it?"),
        "rewriter": lambda text: render([(text, text)], text),
        "route": route_of,
        "convert": lambda text: templates._measure({"1": text, "2": text}),
        "template": lambda text: templates._FRAME.match(text),
        "talk": _tried(lambda text: talk_of({"instruction": text, "output": text}), ValueError),
        "proguide": lambda text: proguide.parse_user(f"Question: {text}\nPrevious Thoughts: {text}. Reference: <reference>{text}"),
        "content": proguide.content,
        "neutralise": lambda text: neutralise(text, ("<|im_start|>", "ab")),
        "screen": without_instructions,
        "citations": _cited,
        "split": split, "left open": left_open, "goes on": goes_on,
        "reasoning": _reasoned, "talked": _talked, "streamed": _streamed, "raw stream": _tried(_raw_stream, ValueError),
        "sample": _tried(_sampled, ValueError),
        "reply": _tried(lambda text: reply_in(text.encode("utf-8", "replace")), ValueError),
        "json": _tried(decoded, NotJson), "literal": literal,
        "format": lambda text: number_shown(12.5, text),
        "plain": plain, "pieces": lambda text: [*pieces(text, 100)], "likely": lambda text: likely(text, [text], 1),
        "terminal": shown, "quoted": quoted, "nearest": lambda text: nearest(text, ["policy.model", "seed"]),
        "file name": _tried(lambda text: file_name(text + ".md", (".md",)), Exception),
        "facts": lambda text: [*facts_in(Passage("a", text, text))],
        "names": lambda text: [*_names_in(text, {"a"}, Counter())],
        "subjects": subjects_of,
        "completion": _tried(_asked, Exception),
        **grammars, **stems,
    }  # fmt: skip
