"""Models and tokenizers from folders or the hub: no code of theirs is run, and weights are safetensors."""

from __future__ import annotations

from typing import Any

from steprag.errors import ConfigError


def from_pretrained(auto: Any, source: str, **options: Any) -> Any:
    """`auto.from_pretrained(source)` for one of transformers' Auto classes, with `trust_remote_code=False`.

    Said outright: left open, transformers asks on standard input whether it may run the folder's Python files. Model
    classes also get `use_safetensors=True`. Raises ConfigError, with the source's name, for what cannot be loaded so.
    """
    if not auto.__name__.endswith(("Tokenizer", "Config")):
        options = {"use_safetensors": True, **options}
    try:
        return auto.from_pretrained(source, trust_remote_code=False, **options)
    except ImportError:
        raise
    except Exception as error:  # noqa: BLE001 - a harmful folder makes it raise anything; tokenizers raise this very class
        told = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        if "trust_remote_code" in told:
            told = "it needs Python code of its own, and StepRAG runs no code that comes with a model"
        raise ConfigError(f"{source} cannot be loaded: {told}") from None
