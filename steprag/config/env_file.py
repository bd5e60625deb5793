"""`--env FILE` of every command: KEY=VALUE lines, as python-dotenv reads them, for what the environment lacks."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from io import StringIO

from steprag.errors import ConfigError, DataError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def without_env(argv: Sequence[str]) -> list[str]:
    """`argv` without `--env FILE`, whose variables are set. Raises ConfigError and DataError, which show no value."""
    rest, words = list[str](), iter(argv)
    for word in words:
        name, equals, file = word.partition("=")
        if name != "--env":
            rest.append(word)
        elif file := file if equals else next(words, ""):
            _set_from(file)
        else:
            raise ConfigError("--env names a file of KEY=VALUE lines, as in --env .env")
    return rest


def _set_from(file: str) -> None:
    from dotenv import dotenv_values
    from dotenv.parser import parse_stream

    from steprag.records.jsonl import existing

    path = existing(file, "environment file")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(path, "is not UTF-8", remedy="save it as UTF-8") from None
    for one in parse_stream(StringIO(text)):
        whole = one.value is not None and _NAME.fullmatch(one.key or "") and "\0" not in one.value
        if one.error or (one.key is not None and not whole):
            blank = len(one.original.string) - len(one.original.string.lstrip())
            line = one.original.line + one.original.string[:blank].count("\n")
            raise DataError(path, "this line is no KEY=VALUE", line=line, remedy="a comment begins with #")
    for key, value in dotenv_values(stream=StringIO(text)).items():
        os.environ.setdefault(key, value or "")
