"""What chat templates take for control, and how text from outside is kept from saying it."""

from __future__ import annotations

import re
from collections.abc import Iterable

_MISTRAL = "INST|IMG|AUDIO|THINK|ARGS|PREFIX|SUFFIX|MIDDLE"
_OTHERS = "CLS|SEP|MASK|UNK|PAD|BOS|EOS|[gs]MASK|unused[0-9]+"  # BERT's kin, GLM
_NAMED = rf"/?(?:{_MISTRAL}|{_OTHERS}|[A-Z]+_[A-Z_]+)\]"  # the last: [SYSTEM_PROMPT], [/TOOL_RESULTS], ...
_EXAONE = r"\|[a-z_]{3,24}\|\]"
_MINIMAX = r"(?:[~!]{1,2}[a-z]|![a-z]~|[a-z]~)[\[\]]"  # ]~b], ]~!b[, ]!p~[, [e~[
_FALCON = r">[A-Z][A-Z_]+<<"
CONTROL_TOKEN = re.compile(
    r"<[|｜][^<>\n]{1,40}[|｜]>"  # ChatML (Qwen, SmolLM), Llama 3, Phi, Command R; DeepSeek's full-width bars
    r"|</?s>|<<?/?SYS>>?|</?(?:start|end)_of_turn>|<turn\|>|<\|turn>|<(?:bos|eos|unk|pad|sop|eop)>"
    rf"|\[(?:{_NAMED}|{_EXAONE})|[\[\]]{_MINIMAX}|>{_FALCON}"
)
"""A control token of the families' chat templates, in a completion."""

_MARKUP = re.compile(rf"<(?=[/|｜!]?[A-Za-z_|｜▁])|\[(?={_NAMED}|{_EXAONE}|{_MINIMAX})|\](?={_MINIMAX})|>(?={_FALCON})")
_ALIKE = {"<": "‹", ">": "›", "[": "(", "]": ")", "{": "(", "|": "¦", "｜": "¦"}


def neutralise(text: str, reserved: Iterable[str] = ()) -> str:
    """Text from outside (a passage, a question) with everything that looks like markup made inert.

    - "<" before a letter, slash or bar becomes "‹": no action tag, and no token of the families that write <…>;
    - the first bracket of what the other families write becomes round, or "›": [INST], [SYSTEM_PROMPT], [|user|],
      [gMASK], ]~b], >>ANSWER<<. Brackets with anything else stay: [A], [1990], [USA], [citation needed];
    - of each of `reserved`, the special tokens of the tokenizer that is served (`surviving`), the first character.

    All else stays as it is, and text that is inert already is not changed again.
    """
    inert = _MARKUP.sub(lambda match: _ALIKE[match.group()], text)
    for token in reserved:
        if token in inert:
            inert = inert.replace(token, _broken(token))
    return inert


def surviving(tokens: Iterable[str]) -> tuple[str, ...]:
    """Those of a tokenizer's special tokens that `neutralise` would leave whole, the longest first.

    Single characters are left out: to change them would change all text.
    """
    left = {token for token in tokens if len(token.strip()) > 1 and token in neutralise(token)}
    return tuple(sorted(left, key=lambda token: (-len(token), token)))


def _broken(token: str) -> str:
    """The token with another first character, or with a blank behind it where that is a letter or a digit."""
    first = token[0]
    return _ALIKE.get(first, f"{first} ") + token[1:]
