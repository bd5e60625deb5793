"""Tools that are Python functions, named `module:function` in a tools file."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from steprag.agent.schemas import NAMES
from steprag.agent.tools import ToolSpec, spec_of
from steprag.errors import ConfigError, RetrieverError
from steprag.extras import function_at
from steprag.records.jsonl import as_utf8
from steprag.types import Passage

TYPES: dict[object, str] = {**NAMES, NoneType: "null"}


class CallableTool:
    """A function of flat arguments that returns a text, a list of texts, or what `str` makes one of.

    It runs in a thread of its own, unless it is a coroutine, which must not block. What it raises fails the one call,
    as RetrieverError.
    """

    def __init__(self, name: str, place: str, description: str) -> None:
        """Imports the function, which runs its module's code. Raises ConfigError where that cannot be."""
        self._function = function_at(place, "python")
        self.spec: ToolSpec = _spec(name, self._function, description)
        self.fingerprint = place

    async def ready(self) -> None:
        """It is imported already."""

    async def call(self, arguments: Mapping[str, Any], top_k: int) -> Sequence[Passage]:
        """What the function returns."""

        def called() -> list[str]:
            with self._failing():
                return _texts(self._function(**arguments), top_k)

        if not inspect.iscoroutinefunction(self._function):
            return said(self.spec.name, await _aside(called))
        with self._failing():
            return said(self.spec.name, _texts(await self._function(**arguments), top_k))

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except (Exception, SystemExit) as error:  # whatever a stranger's code raises, it is this call that failed
            raise RetrieverError(as_utf8(f"tool {self.spec.name}: {type(error).__name__}: {error}"[:300])) from error

    async def aclose(self) -> None:
        """Nothing is held."""


def _texts(result: Any, top_k: int) -> list[str]:
    """A result, or each of several, as text; `str` of a stranger's object is his code too."""
    several = result[:top_k] if isinstance(result, list | tuple) else [result]
    return [one if isinstance(one, str) else str(one) for one in several if one is not None]


async def _aside(work: Callable[[], list[str]]) -> list[str]:
    """What `work` returns, in a thread that nobody waits for at the end: one that hangs must not keep the program.

    Raises RetrieverError, as `work` does.
    """
    done: Future[list[str]] = Future()
    done.set_running_or_notify_cancel()  # who gives it up does not cancel it: the thread may still tell

    def run() -> None:
        try:
            done.set_result(work())
        except RetrieverError as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return await asyncio.wrap_future(done)


def _spec(name: str, function: Callable[..., Any], description: str) -> ToolSpec:
    """From the signature: every parameter has a type (str, int, float, bool, a Literal, or these or None); one with a
    default may be left out, and `*` and `**` are. Raises ConfigError.
    """
    try:
        hints, signature = get_type_hints(function), inspect.signature(function)
    except (NameError, TypeError, ValueError) as error:  # an annotation that names nothing, a function without any
        raise ConfigError(f"tool {name}: its parameters cannot be read: {error}") from None
    properties: dict[str, Any] = {}
    required = []
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ConfigError(f"tool {name}: parameter {parameter.name} cannot be given by name; take the / out")
        properties[parameter.name] = _schema(hints.get(parameter.name))
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    told = description or (inspect.getdoc(function) or "").partition("\n")[0]
    return spec_of(name, told, {"properties": properties, "required": required})


def _schema(hint: object) -> dict[str, Any]:
    if get_origin(hint) in (Union, UnionType):
        return {"anyOf": [_schema(one) for one in get_args(hint)]}
    return {"enum": list(get_args(hint))} if get_origin(hint) is Literal else {"type": TYPES.get(hint)}


def said(tool: str, texts: Sequence[str]) -> list[Passage]:
    """Texts of a tool as passages, each named by its content, so that the journal keeps equal ones once."""
    held = [as_utf8(text) for text in texts if text.strip()]
    return [Passage(hashlib.sha256(text.encode()).hexdigest()[:16], tool, text) for text in held]
