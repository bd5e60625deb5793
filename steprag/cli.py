"""The `steprag` command: finds a command's module in a table and runs its `main`.

The table names what stands above the core, so whoever calls hands it over.
Nothing heavy is imported before the command is known, so `steprag --help` stays quick.
"""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from steprag.config.env_file import without_env
from steprag.console.terminal import extras_named, guarded
from steprag.errors import ConfigError, nearest, quoted

HELP = ("-h", "--help", "--help-all")


@dataclass(frozen=True)
class Command:
    """A command's words, the module whose `main(argv) -> int` runs it, and one line of help."""

    words: str
    module: str
    help: str


@dataclass(frozen=True)
class CommandTable:
    """All commands, and what help and old habits need to know of them."""

    commands: tuple[Command, ...]
    first: tuple[str, ...]
    """What a newcomer is shown first."""
    nouns: tuple[str, ...]
    """Words that stand before commands; alone they show these."""
    moved: Mapping[str, str]
    """Commands' words of earlier versions, which still work."""
    untouched: tuple[str, ...]
    """What commands' modules import whole and use in functions alone, so that no help needs it."""


class _Untouched(ModuleType):
    """Stands for a module, which is imported when something of it is first asked for."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def main(table: CommandTable, argv: list[str] | None = None) -> int:
    """Runs `argv` (default: the process's arguments) and returns the exit code."""
    if argv is None and {*HELP, "help"} & {*sys.argv}:
        sys.modules.update({name: _Untouched(name) for name in table.untouched if name not in sys.modules})
    return guarded(lambda words: run(table, words), sys.argv[1:] if argv is None else argv)


def run(table: CommandTable, argv: list[str]) -> int:
    """Runs one command in this process; errors propagate."""
    argv = [_shipped(word) for word in without_env(argv)]
    if {"-V", "--version"} & {*argv}:
        from steprag.runs.run import code_version

        sys.stdout.write(code_version() + "\n")
        return 0
    if argv[:1] == ["help"]:
        argv = [*argv[1:], "--help"]
    if not argv or argv[0] in HELP:
        sys.stdout.write(_help_of(table) if argv[:1] == ["--help-all"] else _help(table))
        return 0
    noun, rest = argv[0], {*argv[1:]}
    if noun in table.nouns and (not rest or (rest <= {*HELP} and noun not in table.first)):
        sys.stdout.write(_help_of(table, noun))
        return 0
    if old := next((old for old in table.moved if argv[: len(old.split())] == old.split()), None):
        argv = [*table.moved[old].split(), *argv[len(old.split()) :]]
    for command in table.commands:
        words = command.words.split()
        flag = [one for one in argv if words[-1].startswith("--") and one.partition("=")[0] == words[-1]][:1]
        if flag and words[0] == argv[0]:  # a flag may stand anywhere; what it is set to stays
            place = argv.index(flag[0])
            argv = [*words, *argv[1:place], *filter(None, [flag[0].partition("=")[2]]), *argv[place + 1 :]]
        if argv[: len(words)] == words:
            with extras_named(command.words):
                return importlib.import_module(command.module).main(argv[len(words) :])
    raise _unknown(table, argv)


def _unknown(table: CommandTable, argv: list[str]) -> ConfigError:
    """The error for words that are no command: the command that is meant, or where commands are listed."""
    if " " in argv[0] or argv[-1].endswith("?"):
        return ConfigError(f"a question needs a command: steprag ask {shlex.quote(' '.join(argv))}")
    wanted = " ".join(word for word in argv[:2] if not word.startswith("-"))
    group = [command.words for command in _of(table, argv[0])]
    known = group or [*(command.words for command in table.commands), *table.nouns]
    same = [words for words in known if words.split()[-1] == argv[0]]
    told = nearest((same or [wanted])[0], known, "" if group else "; steprag --help-all lists the commands")
    return ConfigError(f"unknown command {quoted(wanted or argv[0])}{told}")


def _shipped(word: str) -> str:
    """A word that names a file of Atlas as in a checkout, with the file's place where a wheel is installed."""
    inside = word.removeprefix("steprag/atlas/")
    shipped = Path(__file__).parent / "atlas" / inside
    return str(shipped) if inside != word and not Path(word).exists() and shipped.exists() else word


def _of(table: CommandTable, noun: str) -> list[Command]:
    """The commands that stand under a word, the word's own first."""
    return sorted((one for one in table.commands if one.words.split()[0] == noun), key=lambda one: one.words != noun)


def _lines(commands: Sequence[Command]) -> str:
    width = max(len(command.words) for command in commands)
    return "".join(f"  {command.words:<{width}}  {command.help}\n" for command in commands)


def _help_of(table: CommandTable, noun: str = "COMMAND") -> str:
    """Every command that stands under a word, or every command there is."""
    shown = _lines(_of(table, noun) or sorted(table.commands, key=lambda one: one.words))
    return f"usage: steprag {noun} …\n\n{shown}\nsteprag COMMAND --help explains a command's options.\n"


def _help(table: CommandTable) -> str:
    first = [command for words in table.first for command in table.commands if command.words == words]
    alone = [one for one in table.commands if one.words.split()[0] not in table.nouns and one not in first]
    nouns = [
        Command(noun, "", ", ".join(one.words.removeprefix(f"{noun} ") for one in _of(table, noun) if one not in first))
        for noun in table.nouns
    ]
    return (
        "usage: steprag COMMAND [options]\n\n"
        "Step-level process supervision for agentic RAG.\n\n"
        f"{_lines(first)}\nmore, by what it works on (steprag trees shows what the words after trees do):\n\n"
        f"{_lines([*nouns, *alone])}\nsteprag COMMAND --help explains a command's options.\n"
        "steprag --help-all lists every command.\n"
        "steprag COMMAND --env FILE also sets variables: KEY=VALUE lines, for what the environment lacks.\n"
    )
