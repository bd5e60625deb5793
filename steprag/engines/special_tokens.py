"""The special tokens of a model's own tokenizer, read from its files: text from outside must not hold them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from steprag.engines.headers import gguf_values
from steprag.engines.models import ModelFiles
from steprag.errors import DataError
from steprag.files import read_json

_TOKENS, _KINDS = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
_CONTROL = 3
"""llama.cpp's type of a control token."""


def special_tokens(files: ModelFiles) -> frozenset[str]:
    """What the tokenizer reads as control. None for a hub id, whose files are elsewhere, and for the embedded model,
    all of whose special tokens begin with "<" and a letter or a bar.

    Raises DataError where a file of the tokenizer is damaged.
    """
    if files.hf is not None:
        return frozenset(_of_folder(files.hf))
    if files.gguf is not None and not files.embedded:
        return frozenset(_of_gguf(files.gguf))
    return frozenset()


def _of_folder(folder: Path) -> Iterator[str]:
    for name, key in (("tokenizer.json", "added_tokens"), ("tokenizer_config.json", "added_tokens_decoder")):
        if (folder / name).is_file():
            listed = read_json(folder / name).get(key) or ()
            if not isinstance(listed, dict | list | tuple):
                raise DataError(folder / name, f"{key} is no list", remedy="fetch or save the model again")
            for token in listed.values() if isinstance(listed, dict) else listed:
                if isinstance(token, dict) and token.get("special") and isinstance(token.get("content"), str):
                    yield token["content"]


def _of_gguf(path: Path) -> Iterator[str]:
    found = gguf_values(path, (_TOKENS, _KINDS).__contains__)
    tokens, kinds = found.get(_TOKENS), found.get(_KINDS)
    if isinstance(tokens, list) and isinstance(kinds, list):
        yield from (str(token) for token, kind in zip(tokens, kinds, strict=False) if kind == _CONTROL)
