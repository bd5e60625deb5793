"""Which paths are tried: as many of each kind as give the questions that are wanted."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from apps.adapt.passages import PassagePath
from steprag.types import Question


@dataclass
class Draw(Iterator[Question]):
    """An iterator over the paths to make questions of, as questions in `asked`; what `tell` hears may give it more.

    Of each kind ("train-2": split and hops) as many are tried, in their order, as give the questions `wanted`. What
    passes decides which those are, not who is quicker: a path is tried where too few passed of all before it, or would
    pass if the last few (a half of `wanted`, a quarter, …) did like those before. Kinds take turns, the longest most
    often, so that all end together: at an end few paths are left to try at once. `known`: whether a made one passed.
    """

    wanted: Mapping[str, int]
    paths: Mapping[str, Iterator[PassagePath]]
    known: Mapping[str, bool]
    tried: dict[str, PassagePath] = field(default_factory=dict)
    asked: list[Question] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._ended: dict[str, list[bool | None]] = {kind: [] for kind in self.wanted}
        self._passed = {kind: [0] for kind in self.wanted}  # [n]: of the first n, as far as all of these have ended

    def __next__(self) -> Question:
        def share(kind: str) -> float:
            return len(self._ended[kind]) / max(1, self.wanted[kind]) / int(kind.rpartition("-")[2])

        while path := next(filter(None, map(self._next, sorted(self.wanted, key=share))), None):
            self.tried[path.id], question = path, Question(path.id, " → ".join(map(str, path.rows)), ("",))
            insort(self.asked, question, key=lambda one: one.id)
            if path.id not in self.known:
                return question
            self.tell(path.id, self.known[path.id])
        raise StopIteration

    def _next(self, kind: str) -> PassagePath | None:
        tried, passed, wanted = len(self._ended[kind]), self._passed[kind], self.wanted[kind]
        seen = (tried - (wanted >> halved) for halved in range(1, wanted.bit_length() + 1))  # the last: all before it
        few = any(0 < at < len(passed) and passed[at] * tried < wanted * at for at in seen)
        if tried >= wanted and not few:
            return None
        if path := next(self.paths[kind], None):
            self._ended[kind].append(None)
        return path

    @property
    def open(self) -> bool:
        """Whether of some path nothing was told: which further ones are tried is not known yet."""
        return any(None in ended for ended in self._ended.values())

    def tell(self, path_id: str, passed: bool) -> None:
        """What became of a path."""
        kind, _, number = path_id.rpartition("-")
        ended, so_far = self._ended[kind], self._passed[kind]
        ended[int(number) - 1] = passed
        while len(so_far) <= len(ended) and (each := ended[len(so_far) - 1]) is not None:
            so_far.append(so_far[-1] + each)
