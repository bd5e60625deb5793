"""A model's tokens and chat template as its files have them: what of an adapter's is not its base's, and tokens that
the weights have no row for.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steprag.engines.headers import gguf_values
from steprag.engines.tensors import file_state, say_once
from steprag.errors import ConfigError
from steprag.records.jsonl import read_json, shaped

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_GGUF_TOKENS, _GGUF_TEMPLATE = "tokenizer.ggml.tokens", "tokenizer.chat_template"
_OTHERS = ("tokenizer.model", "vocab.json", "vocab.txt")
"""Where tokenizers without a tokenizer.json keep their tokens."""
_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", *_OTHERS)
_compared: set[str] = set()
"""States of files that this process has compared: a command resolves its model more than once."""
_FILLS = re.compile(r"\[PAD\d+\]")
"""Tokens that a conversion to GGUF adds for rows that have none."""


def compare_tokenizers(adapter: Path, base: Path) -> None:
    """Says where an adapter's folder has another vocabulary or chat template than its base, whose ones are used.
    `base`: a folder or a GGUF file. Raises DataError for files that are damaged.
    """
    files = [adapter / name for name in _FILES if (adapter / name).is_file()]
    if not files or (state := file_state(files, str(base))) in _compared:
        return
    _compared.add(state)
    own = _template(adapter)
    if own is not None and own.strip() != (_template(base) or "").strip():
        say_once(f"warning: {adapter} has a chat template of its own; that of {base} is used. Put the adapter's into "
                 "the base's folder if it was trained with it")  # fmt: skip
    if differ := _differing(adapter, base):
        say_once(f"warning: {adapter} has a vocabulary of its own ({differ}); that of {base} is used. Merge the "
                 "adapter into its base if it was trained with it")  # fmt: skip


def check_rows(tokenizer: PreTrainedTokenizerBase, rows: int | None, source: object) -> None:
    """Raises ConfigError for a token that prompts may hold and the model's `rows` of embeddings do not have. Control
    tokens that no chat holds, as those for images, may lie beyond.
    """
    beyond = {token: place for token, place in tokenizer.get_vocab().items() if rows and place >= rows}
    ends = (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token)
    for token, place in beyond.items():
        if token in ends or token in (tokenizer.chat_template or "") or token not in tokenizer.all_special_tokens:
            raise ConfigError(
                f"{source}: its tokenizer has a token or a place that its weights lack ({token!r} at "
                f"{place}, of {rows} rows); give the tokenizer of these weights, or resize the embeddings"
            )


def _differing(adapter: Path, base: Path) -> str:
    """The first token or file that differs; empty where nothing does, or where nothing can be compared."""
    file = adapter / "tokenizer.json"
    if not file.is_file():
        pairs = [(adapter / name, base / name) for name in _OTHERS]
        odd = (one.name for one, other in pairs if one.is_file() and other.is_file() and not _same(one, other))
        return next(odd, "")
    if base.is_dir() and (not (base / file.name).is_file() or _same(file, base / file.name)):
        return ""
    odd = sorted(token for token, _ in _tokens(file).items() ^ _tokens(base).items() if not _FILLS.fullmatch(token))
    return ", ".join(map(repr, odd[:2]))


def _same(one: Path, other: Path) -> bool:
    return one.stat().st_size == other.stat().st_size and one.read_bytes() == other.read_bytes()


def _tokens(source: Path) -> dict[str, int]:
    """Token → id, of a tokenizer.json, a folder that holds one, or a GGUF file."""
    if source.suffix == ".gguf":
        return {str(token): place for place, token in enumerate(gguf_values(source, _GGUF_TOKENS.__eq__)[_GGUF_TOKENS])}
    file = source / "tokenizer.json" if source.is_dir() else source
    with shaped(file, remedy="fetch or save the tokenizer again"):
        told = read_json(file)
        words: Any = told["model"]["vocab"]
        listed = words.items() if isinstance(words, dict) else ((row[0], place) for place, row in enumerate(words))
        return {**dict(listed), **{one["content"]: one["id"] for one in told.get("added_tokens") or ()}}


def _template(source: Path) -> str | None:
    if source.suffix == ".gguf":
        return gguf_values(source, _GGUF_TEMPLATE.__eq__).get(_GGUF_TEMPLATE)
    if (source / "chat_template.jinja").is_file():
        return (source / "chat_template.jinja").read_text(encoding="utf-8")
    settings = source / "tokenizer_config.json"
    told: Any = read_json(settings).get("chat_template") if settings.is_file() else None
    with shaped(settings, remedy="fetch or save the tokenizer again"):  # of several, the one called default
        if told is None or isinstance(told, str):
            return told
        return {one["name"]: one["template"] for one in told}["default"]
