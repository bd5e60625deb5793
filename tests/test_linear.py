"""Every pattern of the product takes time in proportion to its text, whatever the text.

Each is tried with long runs of the characters that it mentions and of others, by the methods that the product calls.
Twice the text may take about twice the work; a child process counts its own processor time, so a busy machine does not
matter. A pattern that a function makes of its own values is listed in `made`, or the test fails.
"""

from __future__ import annotations

import ast
import importlib
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.levels import SEED, rounds

ROOT = Path(__file__).parent.parent
PACKAGES = ("steprag", "indexes", "data_generation", "preference", "training", "inference", "apps")
METHODS = ("search", "match", "fullmatch", "findall", "finditer", "sub", "subn", "split")
SECONDS, FLOOR, GROWTH = 2.0, 0.03, 3.0
"""When a pattern is given up, below what time a ratio says nothing, and how much more twice the text may take."""
BOUNDED = {"apps.chat.routing": 200, "steprag.policy": 10_000, "indexes.encoding.families": 200}
"""Characters at most that reach the patterns of these modules, by their own bounds."""


@dataclass(frozen=True)
class UsedPattern:
    """A pattern, the methods that the product calls on it, and the longest text that it is given."""

    place: str
    pattern: re.Pattern[Any]
    methods: frozenset[str]

    @property
    def longest(self) -> int:
        return next((most for start, most in BOUNDED.items() if self.place.startswith(start)), 10**9)


def test_every_pattern_is_linear_in_its_text() -> None:
    command = [sys.executable, "-m", "tests.test_linear", str(rounds(4_000, 10_000, 10_000)), str(rounds(5, 1, 1))]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=280, check=False)
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stdout + ended.stderr[-2000:]


@pytest.mark.parametrize("pattern", [r"\s*\([^)]*\)$", r"(a+)+b", r"\S*[.!?]+\s", r"(?:x|x)*y"])
def test_a_pattern_that_is_not_linear_is_found(pattern: str) -> None:
    assert grows(UsedPattern("here", re.compile(pattern), frozenset({"search"})), 4_000)


def everything() -> Iterator[UsedPattern]:
    """The patterns of all modules, of configs, and those made at run time. Raises LookupError for one unlisted."""
    trees = {}
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        tree = ast.parse(path.read_text())
        if "re" in {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}:
            trees[".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")] = tree
    uses: dict[str, set[str]] = {}  # a private name is used in its own module alone
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in METHODS:
                own = ast.unparse(node.value).rpartition(".")[2]
                uses.setdefault(f"{name}:{own}" if own.startswith("_") else own, set()).add(node.attr)
    listed = {place for place, _ in made()}
    for name, tree in trees.items():
        module = importlib.import_module(name)
        for own, value in vars(module).items():
            for found in patterns_in(value):
                yield UsedPattern(
                    f"{name}:{own}", found, frozenset(uses.get(f"{name}:{own}") or uses.get(own, METHODS))
                )
        yield from written(name, module, tree, listed)
    yield from (used for _, used in made())


def patterns_in(value: object, depth: int = 0) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, dict | list | tuple | set | frozenset) and depth < 3:
        inner = (*value, *value.values()) if isinstance(value, dict) else value
        yield from (found for one in inner for found in patterns_in(one, depth + 1))


def written(name: str, module: ModuleType, tree: ast.Module, listed: set[str]) -> Iterator[UsedPattern]:
    """Patterns that stand in a function's call, as in `re.sub(r"…", …)`."""
    standing = {id(one) for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign) for one in ast.walk(node)}
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call) and id(node) not in standing):
        by = call.func
        known = isinstance(by, ast.Attribute) and isinstance(by.value, ast.Name) and by.value.id == "re"
        if not known or by.attr not in (*METHODS, "compile"):
            continue
        flags = [one.value for one in call.keywords if one.arg == "flags"]
        flags += call.args[2:3] if by.attr in ("search", "match", "fullmatch", "findall", "finditer") else []
        flags += call.args[1:2] if by.attr == "compile" else []
        shown = [compile(ast.Expression(one), "re", "eval") for one in (call.args[0], *flags)]
        try:
            text, *set_ = (eval(one, vars(module)) for one in shown)
        except NameError:
            if (place := f"{name}:{ast.unparse(call.args[0])}") not in listed:
                raise LookupError(f"{place} is made of a function's values: list it in `made`") from None
            continue
        methods = frozenset({by.attr} if by.attr in METHODS else METHODS)
        yield UsedPattern(f"{name}:{call.lineno}", re.compile(text, *set_), methods)


def made() -> Iterator[tuple[str, UsedPattern]]:
    """Patterns that functions make of their own values: the call's text, and an example of each."""
    from apps.chat import routing
    from indexes.encoding import families
    from steprag.agent.grammars import GRAMMARS
    from steprag.policy import dialect, refusals
    from steprag.records.question_fields import LETTER

    def one(module: str, call: str, pattern: str | re.Pattern[Any], *methods: str, flags: int = 0) -> Any:
        return f"{module}:{call}", UsedPattern(f"{module} ({call})", re.compile(pattern, flags), frozenset(methods))

    talk = "'|'.join((f'(?:{one})' for one in each)).replace('\\n', '')"
    yield from (one("apps.chat.routing", talk, each, "fullmatch") for each in routing._patterns().values())
    yield one("apps.viewer.search", "b'\"id\": ?\"(?:%s)\"' % b'|'.join((re.escape(one) for id in passages for one in "
              "_escaped(id)))", '"id": ?"(?:a|b)"', "search")  # fmt: skip
    yield from (one("indexes.encoding.families", "f'(^|-)({pattern})(-|$)'", f"(^|-)({pattern})(-|$)", "search")
                for pattern in families.FAMILIES)  # fmt: skip
    for grammar in GRAMMARS.values():
        closed = "'|'.join(map(re.escape, [*self._closed_by, *self._closed_by.values()]))"
        yield one("steprag.agent.grammar", closed, grammar._tag, "findall")
        yield one("steprag.agent.grammar", "'|'.join(tagged)", grammar._complete, "search")
    for call in ('f"""[\'\\\\"`‘“.\\\\[]{word}[\'\\\\"`’”:\\\\]]"""', "f'\\\\b{word}\\\\b'"):
        yield one("steprag.policy.dialect", call, r"\bseed\b|['\"`‘“.\[]seed['\"`’”:\]]", "search")
    listed = rf"(?i:({dialect._UNKNOWN})[^:]{{0,80}}: *([\w.]+(, ?| and | or ))*seed( *$|[,.;)]| and | or ))"
    yield one("steprag.policy.dialect", "f'{before}|{after}|(?i:{listed})'", listed, "search")
    yield from (one("steprag.policy.dialect", "_CALLED[name]", pattern, "search", flags=re.IGNORECASE)
                for pattern in dialect._CALLED.values())  # fmt: skip
    yield one("preference.exchange.instruct", "f'({closings})'", "(</query>|</answer>)", "split")
    for kind in refusals.KINDS:
        yield one("steprag.policy.refusals", "self.words", kind.words, "search", flags=re.IGNORECASE)
        yield one("steprag.policy.refusals", "self.unless", kind.unless, "search", flags=re.IGNORECASE)
    for module, call in (
        ("golden", "'|'.join(map(re.escape, choices.texts))"),
        ("question_fields", "re.escape(label)"),
    ):
        yield one(f"steprag.records.{module}", f"LETTER % {call}", LETTER % "A|B", "fullmatch", flags=re.I | re.S)


def texts(pattern: re.Pattern[Any], size: int) -> Iterator[tuple[str, str]]:
    """Long texts of every kind of character that a pattern mentions, and of some that it does not, by name."""
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    plain = re.sub(r"\\[AbBdDsSwWZzrnftvx]|[\[\]{}^$*+?|\\()]", " ", source)
    own = dict.fromkeys(one for one in plain if not one.isspace())
    marks, words = [one for one in own if not one.isalnum()], [*dict.fromkeys(re.findall(r"\w{2,12}", plain))][:20]
    runs = [*dict.fromkeys([*[*own][:50], *" \n\taA1_é中.,;:!?()[]{}<>\"'-#|=/\\`*~%&@$\0\u0301…。"])]
    runs += ["a. ", "a.\n", "<a>", "</a>", "(a", *(f"{word} " for word in words)]
    if size >= 10_000:
        runs += map("".join, product([*marks[:8], " ", "a", "1", "\n", "A"], repeat=2))
    for run, end in product(runs, ("", "\0", "x", "\n")):
        yield f"{run!r}*n+{end!r}", run * (size // len(run)) + end
    for start, run, end in product([*words, *marks[:6], "<", "("], [*" a1.\n-<"], ("", "\0")):
        yield f"{start!r}+{run!r}*n+{end!r}", start + run * size + end


class TooLongError(Exception):
    """A pattern did not end in time."""


def _alarm(*_: object) -> None:
    raise TooLongError


def seconds(used: UsedPattern, method: str, text: str) -> float:
    """Processor seconds of one call; infinite where it does not end."""
    call: Callable[[Any], Any] = getattr(used.pattern, method)
    binary = isinstance(used.pattern.pattern, bytes)
    call = partial(call, b"" if binary else "") if method in ("sub", "subn") else call
    before = signal.signal(signal.SIGALRM, _alarm)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    start = time.process_time()
    try:
        found = call(text.encode() if binary else text)
        for _ in found if method == "finditer" else ():
            pass
        return time.process_time() - start
    except TooLongError:
        return float("inf")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def grows(used: UsedPattern, size: int) -> str | None:
    """Which text takes more than its share where it is twice as long; None where none does."""
    for method in sorted(used.methods):
        for name, text in texts(used.pattern, min(500, used.longest)):
            if seconds(used, method, text) > FLOOR and min(seconds(used, method, text) for _ in range(3)) > FLOOR:
                return f"{used.place} .{method} {name}, 500 characters: {used.pattern.pattern!r:.150}"
        if used.longest < size:
            continue
        for (name, text), (_, longer) in zip(texts(used.pattern, size), texts(used.pattern, 2 * size), strict=True):
            if seconds(used, method, text) < FLOOR / 6:
                continue
            once, twice = (min(seconds(used, method, one) for _ in range(3)) for one in (text, longer))
            if twice > FLOOR and twice > GROWTH * once:
                return f"{used.place} .{method} {name}: {once:.3f}, then {twice:.3f} s: {used.pattern.pattern!r:.150}"
    return None


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CPU, (270, 280))
    tried = [*{(used.pattern, used.methods): used for used in everything()}.values()]
    assert len(tried) > 150
    for each in tried[SEED % int(sys.argv[2]) :: int(sys.argv[2])]:  # on a quick run one in five, by the commit
        if told := grows(each, int(sys.argv[1])):
            sys.stdout.write(told + "\n")
