"""Every pattern of the product takes time in proportion to its text, whatever the text.

Each is tried with long runs of what it mentions and of others (`pattern_texts`), by the methods that the product calls.
Twice the text may take about twice the work; a child process counts its own processor time, so a busy machine does not
matter. A pattern that a function makes of its own values is listed in `made`, or the test fails.
"""

from __future__ import annotations

import ast
import importlib
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from apps.adapt import english
from indexes.encoding import families
from steprag.agent import language, talk
from steprag.policy import refusals
from tests.levels import SEED, rounds
from tests.pattern_texts import shapes
from tests.text_growth import growth

ROOT = Path(__file__).parent.parent
PACKAGES = ("steprag", "indexes", "data_generation", "preference", "training", "inference", "apps")
METHODS = ("search", "match", "fullmatch", "findall", "finditer", "sub", "subn", "split")
LITTLE, PATIENCE = 150e-9, 2.0
"""Seconds a character that every pattern may take, and when one is given up."""
SAID = refusals.SHOWN * (refusals.CODES + 2)
BOUNDED = {"apps.adapt.english:": english.LONGEST, "apps.adapt.facts:": english.LONGEST,
           "steprag.agent.talk": talk.LONGEST,
           "steprag.agent.language (filled(one['holds']))": language.LONGEST,
           "indexes.encoding.families": families.LONGEST,
           "steprag.policy.refusals": SAID, "steprag.policy.dialect": SAID}  # fmt: skip
"""Characters at most that reach the patterns of these modules, by their own bounds."""


@dataclass(frozen=True)
class UsedPattern:
    """A pattern, the methods that the product calls on it, and the longest text that it is given."""

    place: str
    pattern: re.Pattern[Any]
    methods: frozenset[str]

    @property
    def ways(self) -> set[str]:
        """The methods that differ in how they walk through a text: `finditer` is as `findall`, `sub` and `split`."""
        walks = self.methods - {"match", "fullmatch"}
        return {*(self.methods - walks), *({"search"} if walks == {"search"} else {"finditer"} if walks else ())}

    @property
    def longest(self) -> int:
        return next((most for start, most in BOUNDED.items() if self.place.startswith(start)), 10**9)


@pytest.mark.timeout(900)
def test_every_pattern_is_linear_in_its_text() -> None:
    command = [sys.executable, "-m", "tests.test_linear", str(rounds(500, 2_500, 5_000)), str(rounds(120, 400, 2_000))]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=880, check=False)
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stdout + ended.stderr[-2000:]


SLOW = (r"\s*\([^)]*\)$", r"(a+)+b", r"\S*[.!?]+\s", r"(?:x|x)*y", r"<([\w:|]*think\w*)>",
        r"'(?:[^'\\]|\\.)*'", r"(?:is|of)\s+((?:(?!(?:is|of)\b)[^?])+)\?$")  # fmt: skip


@pytest.mark.parametrize("pattern", SLOW)
def test_a_pattern_that_is_not_linear_is_found(pattern: str) -> None:
    used = UsedPattern("here", re.compile(pattern), frozenset({"search"}))
    assert any(grows(used, 500, 2_000) for _ in range(9)), "a busy machine hides it seldom"


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
        if not (isinstance(by, ast.Attribute) and ast.unparse(by.value) == "re" and by.attr in (*METHODS, "compile")):
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
    from steprag.agent.grammars import GRAMMARS
    from steprag.policy import dialect
    from steprag.records.question_fields import LETTER

    def one(module: str, call: str, pattern: str | re.Pattern[Any], *methods: str, flags: int = 0) -> Any:
        return f"{module}:{call}", UsedPattern(f"{module} ({call})", re.compile(pattern, flags), frozenset(methods))

    yield one("apps.adapt.writers", 'f"(?:[Tt]he )?\\\\b{bare}\\\\b(?![\'’])"', r"(?:[Tt]he )?\bA\b(?!['’])", "sub")
    routes = "'|'.join((f'(?:{one})' for one in each)).replace('\\n', '')"
    yield from (one("steprag.agent.talk", routes, each, "fullmatch") for each in talk._patterns().values())
    yield one("steprag.agent.language", "end", language.english().end, "finditer")
    for pattern in (language.english().opens, language.english().exact):
        yield one("steprag.agent.language", "told[name]", pattern, "search", "match", "fullmatch")
    for asked, holds in language.english().kinds:
        yield one("steprag.agent.language", "filled(one['asked'])", asked, "search", "sub")
        yield one("steprag.agent.language", "filled(one['holds'])", holds, "finditer")
    yield one("apps.viewer.search", "b'\"id\": ?\"(?:%s)\"' % b'|'.join((re.escape(one) for id in passages for one in "
              "_escaped(id)))", '"id": ?"(?:a|b)"', "search")  # fmt: skip
    yield from (one("indexes.encoding.families", "f'(^|-)({pattern})(-|$)'", f"(^|-)({pattern})(-|$)", "search")
                for pattern in families.FAMILIES)  # fmt: skip
    for grammar in GRAMMARS.values():
        closed = "'|'.join(map(re.escape, [*self._closed_by, *self._closed_by.values()]))"
        yield one("steprag.agent.grammar", closed, grammar._tag, "findall")
    for call in ('f"""[\'\\\\"`‘“.\\\\[]{word}[\'\\\\"`’”:\\\\]]"""', "f'\\\\b{word}\\\\b'"):
        yield one("steprag.policy.dialect", call, r"\bseed\b|['\"`‘“.\[]seed['\"`’”:\]]", "search")
    listed = rf"(?i:({dialect._UNKNOWN})[^:]{{0,80}}: *([\w.]+(, ?| and | or ))*seed( *$|[,.;)]| and | or ))"
    yield one("steprag.policy.dialect", "f'{before}|{after}|(?i:{listed})'", listed, "search")
    yield from (one("steprag.policy.dialect", "_CALLED[name]", pattern, "search", flags=re.IGNORECASE)
                for pattern in dialect._CALLED.values())  # fmt: skip
    name = "f'{re.escape(Path(path).name)}(, p\\\\. \\\\d+)?(, )?'"
    yield one("indexes.corpora.document_worker", name, r"a\.pdf(, p\. \d+)?(, )?", "match")
    yield one("preference.exchange.instruct", "f'({closings})'", "(</query>|</answer>)", "split")
    for kind in refusals.KINDS:
        yield one("steprag.policy.refusals", "self.words", kind.words, "search", flags=re.IGNORECASE)
        yield one("steprag.policy.refusals", "self.unless", kind.unless, "search", flags=re.IGNORECASE)
    for module, call in (
        ("golden", "'|'.join(map(re.escape, choices.texts))"),
        ("question_fields", "re.escape(label)"),
    ):
        yield one(f"steprag.records.{module}", f"LETTER % {call}", LETTER % "A|B", "fullmatch", flags=re.I | re.S)


def called(used: UsedPattern, method: str) -> Callable[[str], None]:
    """What is done to a text: the method, to its end."""
    call: Callable[[Any], Any] = getattr(used.pattern, method)
    binary = isinstance(used.pattern.pattern, bytes)

    def run(text: str) -> None:
        found = call(text.encode() if binary else text)
        for _ in found if method == "finditer" else ():
            pass

    return run


def grows(used: UsedPattern, size: int, most: int) -> str | None:
    """Which text takes more than its share where it is twice as long; None where none of `most` does."""
    for method in sorted(used.ways):
        run, size = called(used, method), min(size, used.longest // 4)
        for shape in shapes(used.pattern, most, SEED):
            for _ in range(2):  # on a busy machine, one finding may be chance
                took = growth(run, shape, size, LITTLE, PATIENCE, used.longest)
                if took is None:
                    break
            else:
                return f"{used.place} .{method} {shape}: {took} s, each for twice the text: {used.pattern}"
    return None


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CPU, (800, 810))
    tried = [*{(used.pattern, used.methods): used for used in everything()}.values()]
    assert len(tried) > 150
    for each in tried:
        if told := grows(each, int(sys.argv[1]), int(sys.argv[2])):
            sys.stdout.write(told + "\n")
