"""The words of a command line: which option a word means, and what a command's help shows first."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from itertools import pairwise
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from steprag.config.bare import as_place, name_of, subject_of
from steprag.errors import ConfigError, nearest, quoted

OPTION = "config:"
"""Before the dotted key, where argparse keeps the value of an option that sets one."""
OWN = "--serve."
"""The section that is a command's own: a key without its section means its, before others'."""
BESIDE = ("--judge.", "--rewriter.", "--student.")
"""Models beside the policy: a key without its section means the policy's, or another section's, before theirs."""
ELSEWHERE = {"max_iter": "episode.depth", "retrieval_top_k": "episode.top_k"}
"""Options of ReasonRAG's `inference.py`, and what they are called here; `max_iter` does not count the first step."""
MAX_ITER = re.compile(r"--max[_-]iter(=|$)")
SYNONYMS = {
    "pairs": "data dataset input", "questions": "data file", "corpus": "docs documents data input",
    "trees": "run input", "predictions": "run", "worked": "run", "calls": "run", "out": "output output_dir dir",
    "model": "checkpoint ckpt policy", "adapter": "lora", "base_url": "url endpoint api_base", "host": "share public",
    "learning_rate": "lr", "max_steps": "steps", "limit": "n num", "usd": "cost budget dollars",
    "concurrency": "workers jobs", "top_k": "k",
}  # fmt: skip
"""By an option, what people type for it out of habit; the first that a command has is meant."""
BARE = ("run", "runs", "index", "folder", "file", "path", "question", "query", "input")
"""Options that people type for what a command takes as a place."""
ALWAYS = ("model", "base_url", "limit", "usd")
"""Keys that the short help shows of every command that has them."""
HELP: dict[str, tuple[str, tuple[str, str]]] = {
    "index build": ("corpus out hybrid vectors_from config type json", (
        "atlas", "docs --out runs/mine --hybrid")),
    "adapt": ("out plan config model base_url engine questions test trees sft dpo usd", (
        "docs/ --out runs/mine --questions 24 --test 24",
        "docs/ --out runs/mine --config gpt-4o --usd 20 --plan")),
    "adapt questions": ("index out config model base_url engine questions dev test hops usd", (
        "runs/index --out runs/asked --questions 40 --test 20",
        "runs/index --out runs/asked --config gpt-4o --usd 5")),
    "index search": ("", ("Tirana", "--index runs/index --top_k 5 'capital of Albania'")),
    "index serve": ("index config host port", ("runs/index", "runs/index --port 8300")),
    "index export": ("", ("runs/index", "runs/wiki --out wiki.jsonl")),
    "index evaluate": ("", (
        "runs/index --questions steprag/atlas/dev.jsonl",
        "--questions q.csv --columns question=q --at '[5, 10]'")),
    "plan": ("dataset_name questions columns config model like pace limit usd json", (
        "atlas --limit 100", "q.csv --config gpt-4o --limit 100")),
    "plan infer": ("dataset_name questions columns config model base_url like pace limit usd json", (
        "atlas --limit 100", "q.csv --best_of 5 --temperature 0.7 --pace 2000")),
    "plan labels": ("", ("runs/trees", "runs/one runs/two --json")),
    "plan train": ("pairs config model device devices stage json", (
        "--config qwen2.5-7b-dpo-qlora --device 4090", "runs/pairs --config atlas-dpo")),
    "generate": ("dataset_name questions columns index out config model base_url adapter limit usd rollouts", (
        "atlas --limit 20", "q.csv --columns question=q,answer=a --config gpt-4o --limit 20 --usd 5")),
    "plan index": ("", ("atlas", "--rows 21000000 --dimension 768")),
    "trees merge": ("", ("runs/trees runs/trees-0 runs/trees-1", "runs/scored runs/scored-*")),
    "trees weave": ("", ("steprag/atlas/trees.jsonl.gz --out woven.jsonl",
                         "runs/generate-atlas --straight --out woven.jsonl")),
    "trees worked": ("episodes corpus index out overwrite config limit profile", (
        "woven.jsonl --index runs/index --profile stack", "steprag/atlas/warmstart.jsonl --index INDEX --out runs/w")),
    "trees replay": ("trees out config rollouts", (
        "runs/generate-atlas --rollouts 4", "runs/generate-atlas --out runs/steep --reward.alpha 0.3")),
    "trees belief": ("", ("runs/generate-atlas --limit 20",
                          "runs/generate-atlas --out runs/beliefs --adapter atlas-warmstart")),
    "pairs": ("trees out overwrite index config margin products push public", (
        "runs/generate-atlas", "runs/one runs/two --out runs/pairs --pairs.margin 0.2")),
    "pairs export": ("", ("runs/pairs --format llamafactory openai",
                          "--trees runs/generate-atlas --corpus runs/index --format embedding")),
    "pairs import": ("", ("hub:reasonrag/RAG_ProGuide", "RAG_ProGuide.json --out runs/guide --overwrite")),
    "pairs instruct": ("out overwrite config profile validation", (
        "alpaca.json", "hub:yahma/alpaca-cleaned --profile solution.yaml --out runs/alpaca")),
    "pairs leakage": ("", ("runs/pairs --against steprag/atlas/test.jsonl",
                           "runs/pairs --against hub:openai/openai_humaneval::test --json")),
    "train": ("pairs questions index out config stage model adapter learning_rate epochs max_steps", (
        "runs/pairs --out runs/dpo", "runs/pairs --config qwen2.5-7b-dpo-qlora --out runs/7b")),
    "infer": ("dataset_name questions columns index out config model adapter base_url limit usd", (
        "atlas --limit 20", "q.csv --columns question=q,answer=a --model runs/dpo")),
    "serve": ("index out config model adapter base_url host port mode on seconds", (
        "--port 8300", "runs/mine --model gpt-4o --engine openai --base_url https://api.openai.com/v1")),
    "ask": ("index config model adapter base_url profile depth", (
        "'In which year was promethium discovered?'", "'How do I reset it?' --index runs/files --model runs/dpo")),
    "score lengths": ("", ("runs/pairs --tokenizer smollm2-135m-instruct --max_length 1024",
                           "steprag/atlas/train.jsonl --out runs/lengths")),
    "score judge": ("", ("runs/infer-atlas --model gpt-4o --engine openai --usd 1",
                         "runs/infer-atlas --base_url http://127.0.0.1:8000/v1 --model NAME")),
    "score evaluate": ("", ("runs/infer-atlas", "runs/infer-atlas --bertscore minilm")),
    "score export": ("", ("runs/infer-atlas", "runs/infer-nq --out output/steprag")),
    "compare": ("", ("runs/before runs/after", "runs/before runs/after --names before after --out runs/compared")),
    "view": ("", ("runs", "runs/generate-atlas --out trees.html")),
    "check": ("", ("runs/index", "runs/generate-atlas runs/pairs")),
}  # fmt: skip
"""By a command: the options of its short help, all of its own where none are named, and two examples."""
SEVERAL = "VALUE[,VALUE …]"
_SHAPES = {bool: "true|false", int: "N", float: "NUMBER", str: "TEXT", dict: "{KEY: VALUE}",
           list: SEVERAL, tuple: SEVERAL}  # fmt: skip


def shape_of(kind: Any) -> str:
    """What may stand behind an option, from the type of its key: its choices, or what kind of value."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return "|".join(map(str, inner))
    if origin in (Union, UnionType):
        return "|".join(shape_of(one) for one in inner if one is not type(None))
    return shape_of(inner[0]) if origin is Annotated else _SHAPES.get(origin or kind, "VALUE")


def options_meant(name: str, known: Sequence[str]) -> list[str]:
    """The options that an option as typed may mean: dashes are underlines, and a section may be left out."""
    key = name[2:].replace("-", "_")
    key = ELSEWHERE.get(key, key)
    if f"--{key}" in known:
        return [f"--{key}"]
    plain, folded = key.replace("_", ""), {one: one[2:].replace("_", "") for one in known if one[:2] == "--"}
    if exact := [one for one in folded if folded[one] == plain]:
        return exact[:1]
    found = [one for one in folded if folded[one].endswith(f".{plain}") and one.count(".") == key.count(".") + 1]
    own = [one for one in found if one.startswith(OWN)]
    return own or [one for one in found if not one.startswith(BESIDE)] or found


def resolve_options(argv: Sequence[str], known: Sequence[str]) -> list[str]:
    """`resolve_option` of every word; `--max_iter N` becomes N + 1, as ReasonRAG's iterations follow a first step."""
    words = [part for word in argv for part in (word.split("=", 1) if MAX_ITER.match(word) else [word])]
    for at, (word, value) in enumerate(pairwise(words)):
        if MAX_ITER.match(word) and value.isdecimal() and len(value) < 10:
            words[at + 1] = str(int(value) + 1)
    return [resolve_option(word, known) for word in words]


def resolve_option(word: str, known: Sequence[str]) -> str:
    """A word of the command line, its option spelt as the parser knows it; as it is where that is in doubt."""
    name, equals, value = word.partition("=")
    if not name.startswith("--") or name in known:
        return word
    found = options_meant(name, known)
    return f"{found[0]}{equals}{value}" if len(found) == 1 else word


def unknown_option(parser: argparse.ArgumentParser, name: str, known: Sequence[str]) -> ConfigError:
    """The error for an option that the command lacks: what is meant, or where all options are listed."""
    key, subject = name.lstrip("-").replace("-", "_"), subject_of(parser)
    several = options_meant(name, known) if name.startswith("--") else []
    if len(several) > 1:
        help_of = {option: action.help or "" for action in parser._actions for option in action.option_strings}
        meant = " or ".join(f"{one} ({help_of.get(one, '').rpartition(' [')[0]})" for one in several)
        return ConfigError(f"{parser.prog}: {name} may be {meant}; name its section")
    short = [f"--{one.rpartition('.')[2]}" for one in known if one.count(".") == 1]
    same = [f"--{one}" for one, typed in SYNONYMS.items() if key in typed.split() and f"--{one}" in (*known, *short)]
    hint = nearest((same or [name])[0], [*known, *short], f"; {parser.prog} --help-all lists the options")
    if subject is not None and not subject.option_strings and key in (subject.dest, *BARE):
        hint = f"; what it is about stands bare: {parser.prog} {name_of(subject)}"
    return ConfigError(f"{parser.prog}: unknown option {quoted(name)}{hint}")


def short_usage(parser: argparse.ArgumentParser) -> str:
    """The command's own options by name, and the many that set keys in two words: the help explains them below."""
    subject = subject_of(parser)
    own = [action for action in parser._actions if not action.dest.startswith(OPTION)]
    formatter = parser._get_formatter()
    shown = [as_place(action) if action is subject else action for action in own]
    formatter.add_usage(None, shown, parser._mutually_exclusive_groups, "")
    more = " [--KEY VALUE …]" if len(own) < len(parser._actions) else ""
    return f"{formatter.format_help().strip()}{more}".replace("%", "%%")


def show_help(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    """Where help is asked for: writes about ten options and two examples, or with --help-all every option; and ends."""
    asked = {word.replace("_", "-") for word in argv} & {"-h", "--help", "--help-all"}
    if not asked:
        return
    words = parser.prog.removeprefix("steprag ")
    named, examples = HELP.get(words, ("", ()))
    every = "--help-all" in asked
    text = parser.format_help() if every else _short_help(parser, named.split())
    text += "".join(["\nexamples:\n", *(f"  {parser.prog} {line}\n" for line in examples)] if examples else [])
    options = sum(bool(action.option_strings) and action.help != argparse.SUPPRESS for action in parser._actions) - 1
    if not every and text.count("\n  --") < options:  # all but -h
        text += f"\n{parser.prog} --help-all explains all {options} options.\n"
    sys.stdout.write(text)
    parser.exit()


def _short_help(parser: argparse.ArgumentParser, named: Sequence[str]) -> str:
    """Help on the named options, by their short names; on the command's own and `ALWAYS` where none are named."""
    by_name = {option: action for action in parser._actions for option in action.option_strings}
    own = [action.dest for action in parser._actions if action.option_strings and not action.dest.startswith(OPTION)]
    shown: list[argparse.Action] = []
    for name in named or [*own[1:], *ALWAYS]:
        found = options_meant(f"--{name}", list(by_name))
        action = by_name[found[0]] if len(found) == 1 else None
        if action is not None and action not in shown:
            action.option_strings = [f"--{name}"]  # the parser ends behind its help
            shown.append(action)
    subject = subject_of(parser)
    places = [action for action in parser._actions if not action.option_strings]
    if subject is not None and subject not in places:
        places, shown = [as_place(subject)], [action for action in shown if action is not subject]
    formatter = parser._get_formatter()
    formatter.add_usage(None, [*places, *(action for action in shown if action.required)], [])
    formatter.add_text(parser.description)
    for title, actions in (("arguments", places), ("options", shown)):
        formatter.start_section(title)
        formatter.add_arguments(actions)
        formatter.end_section()
    usage, _, rest = formatter.format_help().partition("\n\n")
    return f"{usage} [options]\n\n{rest}"
