"""Python functions by name: tools of a tools file, and retrievers (`--index module:function`)."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from indexes.ranking.rankings import named, search_key
from indexes.retrieval.remote import check_alone, passage_of
from steprag.agent.schemas import NAMES
from steprag.agent.tools import ToolSpec, spec_of
from steprag.config.sections import RetrieverConfig
from steprag.errors import ConfigError, DataError, RetrieverError, quoted
from steprag.extras import code_hash, function_at, slip
from steprag.records.jsonl import as_utf8
from steprag.types import Passage

Found = TypeVar("Found")
LONGEST = 20_000
"""Characters of a passage that a function may find."""
TYPES: dict[object, str] = {**NAMES, NoneType: "null"}


class CallableTool:
    """A function of flat arguments that returns a text, a list of texts, or what `str` makes one of.

    It runs in a thread of its own, unless it is a coroutine, which must not block. What it raises fails the one call,
    as RetrieverError.
    """

    def __init__(self, name: str, place: str, description: str) -> None:
        """Imports the function, which runs its module's code. Raises ConfigError where that cannot be."""
        self._function = inspect.unwrap(function_at(place, "python"))
        self.spec: ToolSpec = _spec(name, self._function, description)
        self.fingerprint = place

    async def ready(self) -> None:
        """It is imported already."""

    async def call(self, arguments: Mapping[str, Any], top_k: int) -> Sequence[Passage]:
        """What the function returns."""
        whose = f"tool {self.spec.name}"
        if not inspect.iscoroutinefunction(self._function):
            texts = await _aside(whose, lambda: _texts(self._function(**arguments), top_k))
            return said(self.spec.name, texts)
        with _failing(whose):
            return said(self.spec.name, _texts(await self._function(**arguments), top_k))

    async def aclose(self) -> None:
        """Nothing is held."""


@contextlib.contextmanager
def _failing(whose: str) -> Iterator[None]:
    """Whatever a stranger's code raises, it is this call that failed: as RetrieverError."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise RetrieverError(as_utf8(f"{whose}: {type(error).__name__}: {error}"[:300])) from error


class FunctionRetriever:
    """A function that finds passages for a query, as a retriever: `find(query)` or `find(query, top_k)`, which returns
    rows best first, each a text or an object as other retrievers' replies have it (`passage_of`). One without arguments
    (such as a class) makes an object with the methods of `Retriever` instead, of which only `search` is needed.

    A function runs in a thread of its own, unless it is a coroutine, which must not block.
    """

    def __init__(self, place: str, config: RetrieverConfig) -> None:
        """Imports the function, which runs its module's code. Raises ConfigError where that cannot be."""
        check_alone(config, place, "the function")
        self._place, self._seconds, self._made = place, config.timeout, object()
        function, code = inspect.unwrap(function_at(place, "--index")), code_hash(place, "--index")
        try:
            if not _arguments(function)[0]:
                self._made = function()
                function = self._made.search  # pyright: ignore[reportAttributeAccessIssue]
            needs, self._takes = _arguments(function)
        except Exception as error:  # whatever a stranger's code raises
            raise ConfigError(f"--index: {place} failed: {slip(error, place)}") from error
        if not self._takes or needs > 2:
            raise ConfigError(f"--index: {place} takes {needs} arguments; write find(query), find(query, top_k), or a "
                              "class without arguments that has search(query, top_k)")  # fmt: skip
        self._function = function
        self.fingerprint = str(getattr(self._made, "fingerprint", named("python", place, code)))

    async def ready(self) -> None:
        """Waits for an object that has such a method."""
        await self._called(getattr(self._made, "ready", dict))

    async def search(self, query: str, top_k: int) -> tuple[Passage, ...]:
        """The first `top_k` of what the function finds. Raises RetrieverError where it fails or is late, ConfigError
        where it returns what is no list of passages.
        """
        text, top_k = search_key(query, top_k)
        try:
            async with asyncio.timeout(self._seconds):
                found = await self._called(self._function, *(text, top_k)[: self._takes])
        except TimeoutError:
            raise RetrieverError(f"{self._place}: no reply in {self._seconds:g} s: raise retriever.timeout") from None
        if not isinstance(found, list | tuple):
            raise ConfigError(f"--index: {self._place} returned {type(found).__name__}; return a list of passages")
        return tuple(self._passage(row, number) for number, row in enumerate(found[:top_k], 1))

    async def _called(self, function: Callable[..., Any], *given: Any) -> Any:
        if not inspect.iscoroutinefunction(function):
            return await _aside(self._place, lambda: function(*given))
        with _failing(self._place):
            return await function(*given)

    def _passage(self, given: Any, number: int) -> Passage:
        row = vars(given) if isinstance(given, Passage) else given
        if isinstance(row, dict) and "document" not in row:
            row = {"document": {key: value for key, value in row.items() if key != "score"}, "score": row.get("score")}
        try:
            found = passage_of(row, self._place)
        except (DataError, TypeError, AttributeError, ValueError) as error:
            problem = error.problem if isinstance(error, DataError) and isinstance(row, dict) else "no text, no object"
            raise ConfigError(f"--index: {self._place} returned {quoted(given)} as row {number}: {problem}") from None
        if len(found.text) > LONGEST:
            raise RetrieverError(f"{self._place}: row {number} has {len(found.text):,} characters, over {LONGEST:,}")
        return replace(found, title=as_utf8(found.title), text=as_utf8(found.text), id=as_utf8(found.id))

    async def aclose(self) -> None:
        """Closes an object that has such a method."""
        await self._called(getattr(self._made, "aclose", dict))


def _arguments(function: Callable[..., Any]) -> tuple[int, int]:
    """How many arguments a function needs, and how many it takes by their places."""
    told = inspect.signature(function).parameters.values()
    known = [one for one in told if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return sum(one.default is one.empty for one in known), len(known)


def _texts(result: Any, top_k: int) -> list[str]:
    """A result, or each of several, as text; `str` of a stranger's object is his code too."""
    several = result[:top_k] if isinstance(result, list | tuple) else [result]
    return [one if isinstance(one, str) else str(one) for one in several if one is not None]


async def _aside(whose: str, work: Callable[[], Found]) -> Found:
    """What `work` returns, in a thread that nobody waits for at the end: one that hangs must not keep the program.

    Raises RetrieverError for what `work` raises.
    """
    done: Future[Found] = Future()
    done.set_running_or_notify_cancel()  # who gives it up does not cancel it: the thread may still tell

    def run() -> None:
        try:
            with _failing(whose):
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
