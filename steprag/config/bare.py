"""What a command is about may stand bare: `steprag pairs RUN` is `steprag pairs --trees RUN`.

A command is about its places (positional arguments) where its parser has some, else about its first option.
"""

from __future__ import annotations

import argparse
import copy
import shlex
from collections.abc import Sequence
from difflib import get_close_matches

from steprag.errors import ConfigError, quoted

NOT_ABOUT = ("out", "config")
"""Options that may come first in a parser and say nothing of what the command is about."""


def parser_of(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of the action that `argv` names, or the parser itself where it has no actions."""
    actions = next((one.choices for one in parser._actions if isinstance(one, argparse._SubParsersAction)), {})
    return actions.get(next(iter(argv), ""), parser)


def subject_of(parser: argparse.ArgumentParser) -> argparse.Action | None:
    """The place or option that says what a command is about; None for a command that is about nothing."""
    actions = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
    if places := [action for action in actions if not action.option_strings]:
        return places[-1]
    first = next(iter(actions), None)
    return first if first is not None and first.nargs != 0 and first.dest not in NOT_ABOUT else None


def as_place(action: argparse.Action) -> argparse.Action:
    """An option that may stand bare, as help shows it; a place as it is."""
    if not action.option_strings:
        return action
    place, name = copy.copy(action), action.option_strings[0]
    place.metavar, place.option_strings = action.metavar or action.dest.upper(), []
    place.nargs = action.nargs or (None if action.required else "?")
    place.help = f"{action.help or ''} (also as {name})".strip()
    return place


def parse_known(
    parser: argparse.ArgumentParser, chosen: argparse.ArgumentParser, argv: Sequence[str]
) -> tuple[argparse.Namespace, list[str]]:
    """Like `parser.parse_known_args`, with what stands bare where `chosen`, the parser or that of its action, keeps
    what it is about. Returns the unknown options too. Raises ConfigError where what it is about is missing.
    """
    subject = subject_of(chosen)
    required = subject is not None and subject.option_strings != [] and subject.required
    if subject is not None and required:
        subject.required = False
    given, rest = parser.parse_known_args(_place_freed(chosen, argv))
    words = [word for word in rest if word != "--"]  # the last word of ReasonRAG's own command line
    if unknown := [word for word in words if word.startswith("-")]:
        return given, unknown
    if words:
        _take(chosen, subject, given, words)
    if subject is not None and required and getattr(given, subject.dest) is None:
        name = name_of(subject)
        took = [f" ({one} took what stands behind it)" for one, option in _several(chosen).items()
                if len(getattr(given, option.dest) or ()) > 1][:1]  # fmt: skip
        missing = f"{name} is missing{''.join(took)}"
        raise ConfigError(f"{chosen.prog}: {missing}: {chosen.prog} {name}; --help shows examples")
    return given, []


def _several(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """The options that take several words, by all their names."""
    return {name: one for one in parser._actions for name in one.option_strings if one.nargs in ("+", "*")}


def _place_freed(parser: argparse.ArgumentParser, argv: Sequence[str]) -> list[str]:
    """The line without its last word where that is no choice of the option before it, and this word first:
    `--format openai DIR`.
    """
    *words, last = argv or [""]
    at = next((at for at in range(len(words) - 1, -1, -1) if words[at].startswith("-")), 0)
    option = _several(parser).get(words[at]) if words else None
    choices = [*(option.choices or ())] if option and at < len(words) - 1 else []
    return [last, *words] if choices and not get_close_matches(last, choices) else [*argv]


def _take(
    parser: argparse.ArgumentParser, subject: argparse.Action | None, given: argparse.Namespace, words: list[str]
) -> None:
    """Sets what the command is about to the words that stand bare. Raises ConfigError where they are too many, or
    where the option says something else.
    """
    prog = parser.prog
    if subject is None:
        raise ConfigError(f"{prog}: {quoted(words[0])} is not expected; {prog} --help shows what is")
    said, several = getattr(given, subject.dest), subject.nargs in ("+", "*")
    option = next(iter(subject.option_strings), None)
    unsaid = said == subject.default
    if not option and not unsaid:  # argparse took the first
        words = [*(said if several else [str(said)]), *words]
    if len(words) > 1 and not several:
        told = f"{prog} takes one {name_of(subject)}, not {len(words)} words; put it in quotes"
        raise ConfigError(f"{told}: {prog} {shlex.quote(' '.join(words))}")
    value = parser._get_values(subject, words)
    if option and not unsaid and said != value:
        raise ConfigError(f"{prog}: {' '.join(words)} and {option} say different things; give one of them")
    setattr(given, subject.dest, value)


def name_of(action: argparse.Action) -> str:
    """How help names the value of a place or option."""
    return action.metavar if isinstance(action.metavar, str) else action.dest.upper()
