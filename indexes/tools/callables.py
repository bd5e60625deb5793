"""Tools that are Python functions, named `module:function` in a tools file."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_type_hints

from indexes.tools.toolbox import said
from steprag.agent.tools import ToolSpec, spec_of
from steprag.errors import ConfigError, RetrieverError, quoted
from steprag.types import Passage

TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}


class CallableTool:
    """A function of flat arguments that returns a text, a list of texts, or what `str` makes one of.

    It runs in a thread, unless it is a coroutine. What it raises fails the one call, as RetrieverError.
    """

    def __init__(self, name: str, place: str, description: str) -> None:
        """Imports the function, which runs its module's code. Raises ConfigError where that cannot be."""
        self._function = _imported(place)
        self.spec: ToolSpec = _spec(name, self._function, description)
        self.fingerprint = place

    async def ready(self) -> None:
        """It is imported already."""

    async def call(self, arguments: Mapping[str, Any], top_k: int) -> Sequence[Passage]:
        """What the function returns."""
        try:
            if inspect.iscoroutinefunction(self._function):
                result = await self._function(**arguments)
            else:
                result = await asyncio.to_thread(self._function, **arguments)
        except Exception as error:  # whatever a stranger's code raises, it is this call that failed
            raise RetrieverError(f"tool {self.spec.name}: {type(error).__name__}: {error}"[:300]) from error
        texts = result if isinstance(result, list | tuple) else [result]
        return said(self.spec.name, [str(text) for text in texts[:top_k] if text is not None])

    async def aclose(self) -> None:
        """Nothing is held."""


def _imported(place: str) -> Callable[..., Any]:
    module, colon, name = place.partition(":")
    if not colon:
        raise ConfigError(f"python: {quoted(place)} should be module:function")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"python: {place} cannot be imported: {error}") from None
    if not callable(function):
        raise ConfigError(f"python: {place} is no function")
    return function


def _spec(name: str, function: Callable[..., Any], description: str) -> ToolSpec:
    """From the signature: every parameter has a type (str, int, float, bool); one with a default may be left out."""
    hints = get_type_hints(function)
    properties: dict[str, Any] = {}
    required = []
    for parameter in inspect.signature(function).parameters.values():
        properties[parameter.name] = {"type": TYPES.get(hints.get(parameter.name, object))}
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    told = description or (inspect.getdoc(function) or "").partition("\n")[0]
    return spec_of(name, told, {"properties": properties, "required": required})
