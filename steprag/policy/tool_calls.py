"""Tool calls in replies: assembled from the pieces of a stream, and checked against the tools that were offered."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from steprag.errors import quoted

SHORT = 1 << 14
"""Characters of arguments up to which they are checked for being complete when a piece names their tool again."""


class ToolCalls:
    """The calls of one choice. The first piece of a call names it; its arguments come in any number of pieces.

    A new id begins a new call, and so does a name once the call before it is complete: some endpoints give several
    calls the same index, or none (Ollama, Gemini's compatible API).
    """

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self._at: dict[int, dict[str, Any]] = {}
        self._by_id: dict[str, dict[str, Any]] = {}
        self._last = 0

    def add(self, pieces: list[Any]) -> int:
        """Adds the pieces of one chunk; returns their characters. Raises ValueError for what is not a tool call."""
        return sum(self._add(piece, place if len(pieces) > 1 else self._last) for place, piece in enumerate(pieces))

    def _add(self, piece: Any, place: int) -> int:
        told = piece.get("function") if isinstance(piece, Mapping) else None
        if not isinstance(told, Mapping):
            raise ValueError("a call of a tool is no object with a function")
        name, arguments, index = told.get("name") or "", told.get("arguments") or "", piece.get("index")
        arguments = json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else arguments
        if not (isinstance(name, str) and isinstance(arguments, str)):
            raise ValueError("a call of a tool whose name or arguments are no text")
        self._last = index if isinstance(index, int) else place
        id = piece.get("id") or ""
        call = self._by_id.get(id) or self._at.get(self._last)
        if call is None or _begins(call, id, name, arguments, indexed=isinstance(index, int)):
            call = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
            self.calls.append(call)
        self._at[self._last], call["id"], function = call, call["id"] or id, call["function"]
        if id:
            self._by_id.setdefault(id, call)
        again = bool(name) and name == function["name"]
        function["name"] += "" if again else name
        if not (again and arguments == function["arguments"]):  # else the whole call is repeated at the end
            function["arguments"] += arguments
        return len(name) + len(arguments)


def _begins(call: Mapping[str, Any], id: str, name: str, arguments: str, *, indexed: bool) -> bool:
    """Whether a piece with this id and name begins a new call, and does not continue `call`."""
    known, so_far = call["function"]["name"], call["function"]["arguments"]
    if id and call["id"]:
        return id != call["id"]
    if not name or not known:
        return False
    if not so_far:  # the name may come in pieces, where an index says that they belong together
        return not indexed or bool(arguments)
    return is_object(arguments) or (len(so_far) <= SHORT and is_object(so_far))


def is_object(arguments: object) -> bool:
    """Whether the arguments of a call are a whole JSON object."""
    try:
        return isinstance(json.loads(arguments) if isinstance(arguments, str) else arguments, dict)
    except (ValueError, RecursionError):
        return False


def odd_calls(request: Any, reply: Any) -> Iterator[str]:
    """What is wrong with calls: arguments that are not a JSON object, names that the request did not offer."""
    tools = [mapping(tool).get("function") for tool in _rows(request, "tools")] + _rows(request, "functions")
    offered = [name for tool in tools if isinstance(name := mapping(tool).get("name"), str)]
    for choice in _rows(reply, "choices"):
        for call in calls_of(mapping(choice).get("message")):
            function = mapping(mapping(call).get("function"))
            name, arguments = function.get("name"), function.get("arguments")
            if name not in offered:
                yield f"a reply calls {quoted(name)}, and its request offers {', '.join(offered) or 'no tool'}"
            if not is_object(arguments or "{}"):
                yield f"the arguments of a call of {quoted(name)} are not a JSON object"


def calls_of(message: Any) -> list[Any]:
    """The calls of a message, or of a piece of it; also the one call of the API's older form."""
    old = mapping(message).get("function_call")
    return _rows(message, "tool_calls") or ([{"function": old}] if old else [])


def _rows(value: Any, key: str) -> list[Any]:
    rows = mapping(value).get(key)
    return rows if isinstance(rows, list) else []


def mapping(value: Any) -> Mapping[str, Any]:
    """The value where it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}
