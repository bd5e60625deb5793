"""Filters that look at one pair. Each is a name and a question; a pair that answers no is dropped and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from preference.config import FilterConfig
from steprag.agent.grammar import Grammar
from steprag.agent.stack import Action
from steprag.errors import StepFormatError
from steprag.records.training_rows import Pair, preference_key, read_marks
from steprag.scores.metrics import SAYS_NOTHING, normalise
from steprag.types import Completion, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_CLOSED_ANSWERS = frozenset({"", "yes", "no"})
_RUN, _TIMES = 4, 3
"""A step repeats itself where so many words in a row come so often."""
_COPIED = 0.8
"""The share of evidence that must have been read: a small model changes a word or two when it copies."""
_CACHED = 4096


class Check(NamedTuple):
    """`passes(pair)` says whether the pair stays."""

    name: str
    passes: Callable[[Pair], bool]


class StepCheck(NamedTuple):
    """`passes(prompt, text, action)` says whether a step may be held up as an example."""

    name: str
    passes: Callable[[tuple[Message, ...], str, str], bool]


class TokenCounter:
    """Counts a pair's longer sequence, prompt and reply, in the tokens of the model to be trained."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._prompt: tuple[Message, ...] | None = None
        self._tokens: list[int] = []

    def __call__(self, pair: Pair) -> int:
        from steprag.engines.tokens import prompt_tokens, reply_tokens

        if pair.prompt is not self._prompt:  # the pairs of one prompt come together
            self._prompt, self._tokens = pair.prompt, prompt_tokens(pair.prompt, self._tokenizer)
        replies = [reply_tokens(pair.prompt, reply, self._tokenizer) for (reply,) in (pair.chosen, pair.rejected)]
        return len(self._tokens) + max(map(len, replies))


def open_counter(config: FilterConfig) -> TokenCounter | None:
    """The counter that `max_tokens` needs; None where nothing is asked. Raises ConfigError."""
    if config.max_tokens is None:
        return None
    from steprag.engines.models import resolve_model
    from steprag.engines.weights import load_tokenizer

    return TokenCounter(load_tokenizer(resolve_model(config.tokenizer, None)))


ContentOf = Callable[[str, str], str | None]
"""What stands between the tags of a completion (text, action); None where the grammar refuses it."""


def content_reader(grammar: Grammar) -> ContentOf:
    """Reads contents, remembering the last few thousand: a step is in several pairs."""

    @lru_cache(_CACHED)
    def content(text: str, action: str) -> str | None:
        try:
            return grammar.parse(Completion(text, "stop"), (action,)).content
        except StepFormatError:
            return None

    return content


def checks(config: FilterConfig, grammar: Grammar, content: ContentOf) -> list[Check]:
    """The filters that `config` asks for, without those that need more than one pair or the tokenizer.

    Raises ConfigError and DataError where the file of marked pairs is not in order.
    """
    wrong = read_marks(config.marked) if config.marked is not None else {}

    def well_formed(pair: Pair) -> bool:
        return content(_text(pair.chosen), pair.action) is not None and (
            content(_text(pair.rejected), pair.rejected_action) is not None
        )

    def not_leaked(pair: Pair) -> bool:
        query = content(_text(pair.chosen), pair.action) or ""
        return not (grammar.action(pair.action).retrieves and holds_unread_answer(query, pair))

    def not_marked(pair: Pair) -> bool:
        return preference_key(pair) not in wrong

    def exemplary(check: StepCheck) -> Check:
        return Check(check.name, lambda pair: check.passes(pair.prompt, _text(pair.chosen), pair.action))

    wanted = [
        (config.malformed, Check("well formed", well_formed)),
        (config.leaked, Check("no answer leaked into the query", not_leaked)),
        (config.marked is not None, Check("not marked as wrong", not_marked)),
    ]
    return [*(check for asked, check in wanted if asked), *map(exemplary, step_checks(config, grammar, content))]


def step_checks(config: FilterConfig, grammar: Grammar, content: ContentOf) -> list[StepCheck]:
    """The filters that look at a step which training is to make likelier: a pair's chosen one, or a supervised one."""

    def was_read(prompt: tuple[Message, ...], text: str, action: str) -> bool:
        answer = normalise(content(text, action) or "")
        return not grammar.action(action).terminal or answer in _CLOSED_ANSWERS or f" {answer} " in _read(prompt)

    def copied(prompt: tuple[Message, ...], text: str, action: str) -> bool:
        kept = content(text, action)
        return not grammar.action(action).keeps or kept is None or is_copied(kept, prompt)

    def new_search(prompt: tuple[Message, ...], text: str, action: str) -> bool:
        asked, call = content(text, action), grammar.action(action)
        return not call.retrieves or asked is None or normalise(asked) not in _said_before(prompt, call)

    wanted = [
        (config.again, StepCheck("searches for something new", new_search)),
        (config.repeating, StepCheck("does not repeat itself", lambda _, text, __: not repeats_itself(text))),
        (config.unread, StepCheck("answer was read before", was_read)),
        (config.made_up, StepCheck("evidence was read before", copied)),
    ]
    return [check for asked, check in wanted if asked]


def _said_before(prompt: tuple[Message, ...], action: Action) -> set[str]:
    """The contents, normalised, of the earlier steps of that kind in the prompt. Only steps have tags there."""
    shown = "\n".join(message["content"] for message in prompt if message["role"] != "system")
    spans = shown.split(action.opening)[1:]
    return {normalise(span.partition(action.closing)[0]) for span in spans}


def repeats_itself(text: str) -> bool:
    """Whether four words in a row stand in it three times: what a small model says that has lost its thread."""
    words = text.casefold().split()
    runs = Counter(zip(*(words[start:] for start in range(_RUN)), strict=False))
    return any(times >= _TIMES for times in runs.values())


def is_copied(kept: str, prompt: tuple[Message, ...]) -> bool:
    """Whether evidence stands in what was read: `_COPIED` of its runs of three words do, or all of fewer words.

    What says nothing is copied.
    """
    words = normalise(kept).split()
    if not words or normalise(kept) in SAYS_NOTHING:
        return True
    size = min(3, len(words))
    runs = [" ".join(words[start : start + size]) for start in range(len(words) - size + 1)]
    read = _read(prompt)
    return sum(f" {run} " in read for run in runs) >= _COPIED * len(runs)


def holds_unread_answer(query: str, pair: Pair) -> bool:
    """Whether a query names a golden answer that neither the question nor the episode so far has.

    Whole words, normalised; yes and no are not looked for.
    """
    asked = f" {normalise(query)} "
    named = {answer for answer in map(normalise, pair.golden_answers) if f" {answer} " in asked} - _CLOSED_ANSWERS
    if not named:
        return False
    read = _read(pair.prompt)
    return any(f" {answer} " not in read for answer in named)


def _read(prompt: tuple[Message, ...]) -> str:
    """The words of question and episode so far, normalised, each with a space on both sides."""
    return f" {normalise(' '.join(m['content'] for m in prompt if m['role'] != 'system'))} "


def _text(messages: tuple[Message, ...]) -> str:
    return messages[-1]["content"]
