"""Models and tokenizers from folders or the hub: no code of theirs is run, and weights are safetensors."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from steprag.errors import ConfigError, StepragError


def from_pretrained(auto: Any, source: str, **options: Any) -> Any:
    """`auto.from_pretrained(source)` for one of transformers' Auto classes, with `trust_remote_code=False`.

    Said outright: left open, transformers asks on standard input whether it may run the folder's Python files. Model
    classes also get `use_safetensors=True`. Raises ConfigError, with the source's name, for what cannot be loaded so.
    """
    if not auto.__name__.endswith(("Tokenizer", "Config")):
        options = {"use_safetensors": True, **options}
    with loading(source):
        return auto.from_pretrained(source, trust_remote_code=False, **options)


@contextmanager
def loading(source: object) -> Iterator[None]:
    """A block in which a library loads a model of others. Raises ConfigError, with the source's name, for what it
    cannot load; a missing package stays one. A folder may also name a module or a class that its library lacks.
    """
    try:
        yield
    except StepragError:
        raise
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and _is_missing(error.name or ""):
            raise
        told = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        if "trust_remote_code" in told:
            told = "it needs Python code of its own, and StepRAG runs no code that comes with a model"
        raise ConfigError(f"{source} cannot be loaded: {told}") from None


def _is_missing(module: str) -> bool:
    """Whether the package that holds the module is not installed."""
    package = module.split(".")[0]
    return package != "" and importlib.util.find_spec(package) is None
