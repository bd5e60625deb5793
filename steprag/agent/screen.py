"""Removes sentences that give orders to a model from passages: a defence against obeyed instructions.

It looks for the words of an instruction, so it is a filter and no proof: false statements pass, and so do instructions
in other words or languages (measured in SECURITY.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from steprag.types import Passage

_SENTENCE = re.compile(r"\S.*?(?:[.!?。！？]+[\"'”’)\]]*(?=\s|$)|\n|$)", re.DOTALL)
_INSTRUCTION = re.compile(
    r"\b(?:ignore|disregard|forget|override|do not (?:answer|use|read|search|follow))\b"
    r"|(?:^|[:;,]\s*|\b(?:please|must|should|then|always|and|now)\s+)(?:answer|reply|respond)\b(?!s\b|ed\b)"
    r"|(?:^|[:;]\s*|\bplease\s+)(?:output|write|print|say|return|state|repeat|conclude)\s+(?:that|only|exactly|[\"'“:])"
    r"|\bthe\s+(?:(?:only|one|correct|right|true|final|real|expected|actual|best|relevant)\s+){0,3}"
    r"(?:answer|response|reply|evidence|next query)\s+(?:to\b.{0,60}?\s)?(?:is|are|must|should|will)\b"
    r"|\bsystem prompt|\b(?:previous|prior|above|these|following|earlier)\s+instructions?"
    r"|\binstructions? (?:above|below)"
    r"|\b(?:notes?|messages?|instructions?|attention|hints?|dear)[\s,:]+(?:(?:to|for|the|any|all|an?|ai|language)\s+)*"
    r"(?:assistants?|agents?|models?|readers?|chatbots?|llms?|ais?)\b"
    r"|\b(?:you are|as) an? (?:ai|helpful|language model)\b",
    re.IGNORECASE,
)


def screened(passages: Iterable[Passage]) -> tuple[Passage, ...]:
    """The passages, in order, without sentences of title or text that read as instructions to a model.

    A passage of such sentences only keeps its place with an empty text. Other sentences are unchanged.
    """
    return tuple(_screened(passage) for passage in passages)


def _screened(passage: Passage) -> Passage:
    title, text = without_instructions(passage.title), without_instructions(passage.text)
    return passage if (title, text) == (passage.title, passage.text) else replace(passage, title=title, text=text)


def without_instructions(text: str) -> str:
    """The text without the sentences that read as instructions; itself where there are none."""
    sentences = [found.group().strip() for found in _SENTENCE.finditer(text)]
    kept = [sentence for sentence in sentences if not _INSTRUCTION.search(sentence)]
    return text if len(kept) == len(sentences) else " ".join(kept)
