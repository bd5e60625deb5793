"""Text from outside: makes the control tokens of chat templates inert in it, and removes sentences that give orders.

`screened` looks for the words of an instruction, so it is a filter and no proof: false statements pass, and so do
instructions in other words or languages (measured in SECURITY.md).
"""

from __future__ import annotations

import asyncio
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache

from steprag.types import Passage

_MISTRAL = "INST|IMG|AUDIO|THINK|ARGS|PREFIX|SUFFIX|MIDDLE"
_OTHERS = "CLS|SEP|MASK|UNK|PAD|BOS|EOS|[gs]MASK|unused[0-9]+"  # BERT's kin, GLM
_NAMED = rf"/?(?:{_MISTRAL}|{_OTHERS}|[A-Z]+_[A-Z_]+[0-9]*)\]"  # the last: [SYSTEM_PROMPT], [UNUSED_TOKEN_146], ...
_EXAONE = r"\|[a-z_]{3,24}\|\]"
_MINIMAX = r"(?:[~!]{1,2}[a-z]|![a-z]~|[a-z]~)[\[\]]"  # ]~b], ]~!b[, ]!p~[, [e~[
_FALCON = r">[A-Z][A-Z_]+<<"
CONTROL_TOKEN = re.compile(
    r"<[|｜][^<>\n]{1,40}[|｜]>"  # ChatML (Qwen, SmolLM), Llama 3, Phi, Command R; DeepSeek's full-width bars
    r"|</?s>|<<?/?SYS>>?|</?(?:start|end)_of_turn>|<turn\|>|<\|turn>|<(?:bos|eos|unk|pad|sop|eop)>"
    r"|<(?:seed:[a-z_]+|reserved_\d+|extra_id_\d+|SPECIAL_\d+|mask:\d+|fim_[a-z]+|file_sep|repo_name)>"
    rf"|\[(?:{_NAMED}|{_EXAONE})|[\[\]]{_MINIMAX}|>{_FALCON}"
)
"""A control token of the families' chat templates, in a completion."""

_MARKUP = re.compile(rf"<(?=[/|｜!]?[A-Za-z_|｜▁])|\[(?={_NAMED}|{_EXAONE}|{_MINIMAX})|\](?={_MINIMAX})|>(?={_FALCON})")
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_UNSEEN = ("Mn", "Me", "Cf", "Cc")
_FILLERS = "\u115f\u1160\u3164\uffa0"
_ALIKE = {"<": "‹", ">": "›", "[": "(", "]": ")", "{": "(", "|": "¦", "｜": "¦"}


def neutralise(text: str, reserved: Iterable[str] = ()) -> str:
    """Text from outside (a passage, a question) with everything that looks like markup made inert.

    - "<" before a letter, slash or bar becomes "‹": no action tag, and no token of the families that write <…>;
    - the first bracket of what the other families write becomes round, or "›": [INST], [SYSTEM_PROMPT], [|user|],
      [gMASK], ]~b], >>ANSWER<<. Brackets with anything else stay: [A], [1990], [USA], [citation needed];
    - of each of `reserved`, the special tokens of the tokenizer that is served (`surviving`), the first character.

    The same where the text only becomes such markup once a tokenizer has normalised it: full-width or styled characters
    that mean plain ones, invisible ones in between, other case. All else stays as it is, and text that is inert already
    is not changed again.
    """
    inert = _MARKUP.sub(lambda match: _ALIKE[match.group()], text)
    for token in reserved:
        if token in inert:
            inert = inert.replace(token, _broken(token))
    plain = inert.isascii() and not _CONTROLS.search(inert)
    seen = inert if plain else inert.translate(_plain_forms("".join(sorted(set(inert)))))
    marks = list(_disguised(seen, tuple(reserved))) if seen is not inert or reserved else []
    return _without(inert, dict(marks)) if marks else inert


def _disguised(seen: str, reserved: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Place and replacement of each first character, in the text as a tokenizer sees it."""
    yield from ((match.start(), _ALIKE[match.group()]) for match in _MARKUP.finditer(seen))
    lower = "".join(one.lower() if len(one.lower()) == 1 else one for one in seen) if reserved else ""
    for token in reserved:
        wanted, place = token.lower(), -1
        while (place := lower.find(wanted, place + 1)) >= 0:
            yield place, _broken(seen[place])


def _without(text: str, marks: dict[int, str]) -> str:
    """The text with characters replaced whose places are those in the text as a tokenizer sees it."""
    parts, place = [], 0
    for character in text:
        length = len(_plain_form(character))
        parts.append(next((marks[at] for at in range(place, place + length) if at in marks), character))
        place += length
    return "".join(parts)


@lru_cache(4096)
def _plain_forms(characters: str) -> dict[int, str]:
    """For `str.translate`: the characters that a tokenizer may read as other characters."""
    forms = {ord(one): _plain_form(one) for one in characters if not one.isascii() or not one.isprintable()}
    return {place: form for place, form in forms.items() if form != chr(place)}


@lru_cache(65536)
def _plain_form(character: str) -> str:
    """A character after compatibility decomposition, without marks and invisible characters."""
    if character in "\t\n\r" or (character.isascii() and character.isprintable()):
        return character
    parts = unicodedata.normalize("NFKD", character)
    return "".join(one for one in parts if unicodedata.category(one) not in _UNSEEN and one not in _FILLERS)


def surviving(tokens: Iterable[str]) -> tuple[str, ...]:
    """The special tokens of a tokenizer that `neutralise` would leave whole in some case, the longest first.

    Single characters are left out: to change them would change all text.
    """
    left = {
        token
        for token in tokens
        if len(token.strip()) > 1 and any(one in neutralise(one) for one in (token, token.lower(), token.upper()))
    }
    return tuple(sorted(left, key=lambda token: (-len(token), token)))


def _broken(token: str) -> str:
    """The token with another first character, or with a blank behind it where that is a letter or a digit."""
    first = token[0]
    return _ALIKE.get(first, f"{first} ") + token[1:]


AT_ONCE = 50_000
"""Characters that are screened in some tens of milliseconds."""
_MARKS, _CLOSERS = r"[.!?。！？]++", r"[\"'”’)\]]*+"
_SENTENCE = re.compile(rf"\S(?:[^\n.!?。！？]++|{_MARKS}{_CLOSERS}(?!\s|\Z))*+(?:{_MARKS}{_CLOSERS}|\n|\Z)")
_BREAK = re.compile(r"[\n|](?:[\s|*>#-]|:(?=-)|(?<=-):)*")
"""What parts lines, and cells of a table, in the passages of documents, with marks of lists, quotes and rules."""
_INSTRUCTION = re.compile(
    (
        r"\b(?:ignore|disregard|forget|override|do not (?:answer|use|read|search|follow))\b"
        r"|(?:^|[:;,]\s*|\b(?:please|must|should|then|always|and|now)\s+)(?:answer|reply|respond)\b(?!s\b|ed\b)"
        r"|(?:^|[:;]\s*|\bplease\s+)(?:output|write|print|say|return|state|repeat|conclude)\s+(?:that|only|exactly|[\"'“:])"
        r"|\bthe\s+(?:(?:only|one|correct|right|true|final|real|expected|actual|best|relevant)\s+){0,3}"
        r"(?:answer|response|reply|evidence|next query)\s+(?:to\b.{0,60}?\s)?(?:is|are|must|should|will)\b"
        r"|\bsystem prompt|\b(?:previous|prior|above|these|following|earlier)\s+instructions?"
        r"|\binstructions? (?:above|below)"
        r"|\b(?:notes?|messages?|instructions?|attention|hints?|dear)[\s,:]+(?:(?:to|for|the|any|all|an?|ai|language)\s+)*"
        r"(?:assistants?|agents?|models?|readers?|chatbots?|llms?|ais?)\b"
        r"|\b(?:you are|as) an? (?:ai|helpful|language model)\b"
    ).replace(" ", r"\s+"),  # of several lines, what parted them is blanks here
    re.IGNORECASE,
)


def screened(passages: Iterable[Passage]) -> tuple[Passage, ...]:
    """The passages, in order, without sentences of title or text that read as instructions to a model.

    A passage of such sentences only keeps its place with an empty text. Other sentences are unchanged.
    """
    return tuple(
        replace(passage, title=without_instructions(passage.title), text=without_instructions(passage.text))
        for passage in passages
    )


async def screened_apart(passages: Iterable[Passage]) -> tuple[Passage, ...]:
    """As `screened`; of more than `AT_ONCE` characters in a thread, so that a service goes on to answer others."""
    given = tuple(passages)
    long = sum(len(one.title) + len(one.text) for one in given) > AT_ONCE
    return await asyncio.to_thread(screened, given) if long else screened(given)


def without_instructions(text: str) -> str:
    """The text without the sentences that read as instructions, also over several lines or cells of a table; itself
    where there are none.
    """
    sentences = [(found.span(), found.group().strip()) for found in _SENTENCE.finditer(text)]
    plain = _BREAK.sub(lambda found: " " * len(found.group()), text)
    found = (one.span() for one in _INSTRUCTION.finditer(plain)) if plain != text else ()
    over = [(start, end) for start, end in found if _BREAK.search(text, start, end)]  # in order, and apart
    ends = [end for _, end in over]
    kept = []
    for (start, end), sentence in sentences:
        first = bisect_right(ends, start)  # the first that ends behind the sentence's start
        if not (first < len(over) and over[first][0] < end) and not _INSTRUCTION.search(sentence):
            kept.append(sentence)
    return text if len(kept) == len(sentences) else " ".join(kept)
