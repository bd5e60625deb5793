"""Models and tokenizers of others, fetched and loaded: no code of theirs is run, and weights are safetensors."""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from steprag.errors import NO_ROOM, ConfigError, StepragError, quoted

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
TOKENIZER_FILES = (
    "tokenizer*.json", "tekken.json", "special_tokens_map.json", "added_tokens.json", "normalizer.json", "vocab.*",
    "merges.txt", "bpe.codes", "dict.txt", "*.model", "*.model.v*", "*.spm", "*.tiktoken", "chat_template.*",
    "additional_chat_templates/*.jinja",
)  # fmt: skip
"""What tokenizers of any make are read from, as patterns in a model's folder."""
MODEL_FILES = ("*.json", "*.safetensors", *TOKENIZER_FILES)
"""What a language model's folder is read from: no code and no pickle."""


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


def copy_tokenizer(base: Path, folder: Path) -> None:
    """Copies the tokenizer's files as they are: what transformers 5 saves names a class that version 4 lacks."""
    for path in (path for pattern in TOKENIZER_FILES for path in base.glob(pattern)):
        target = folder / path.relative_to(base)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, target)


@contextmanager
def asking_the_hub(what: str, remedy: str) -> Iterator[None]:
    """Turns an error of the hub's client into a ConfigError of one line about `what`."""
    # The root of whichever HTTP library the hub's client uses.
    from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage]

    try:
        yield
    # ValueError: a malformed id. RuntimeError: its store of large files (Xet) is out of reach.
    except (HTTPError, OSError, ValueError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            raise
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ConfigError(f"{what}: {reason[:200]} ({remedy})") from None


def fetched(hub: str, files: Sequence[str], what: str) -> Path:
    """The folder of `files` (patterns) of `hub`, fetched unless it is on this machine; its name is the commit.

    Raises ConfigError, which names `what`, if it is neither here nor on the hub.
    """
    from huggingface_hub import snapshot_download

    problem = f"{what} {quoted(hub)}: not on this machine and not fetched"
    with asking_the_hub(problem, "download it elsewhere and give its folder"):
        return Path(snapshot_download(hub, allow_patterns=list(files)))
