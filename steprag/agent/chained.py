"""Chained match: which names lead to the golden answer, one passage on. No model is asked and nothing is annotated.

A passage that holds the golden answer is a holder. Who reads its title's name has come as far as the step before it:
"Sacramento is the capital of California" leads to "Cities and counties of California", which says how many there are.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from steprag.agent.facts import Facts, Met, golden_met, retrieving, shown_below
from steprag.agent.inert import neutralise
from steprag.scores.gold import holds_golden, mentions, subject, without_qualifier
from steprag.scores.metrics import normalise
from steprag.tree import Tree, path_to
from steprag.types import Passage, Question

NAMED = 0.5
"""What a name that leads to the golden answer is worth; the answer itself is worth 1."""
LEVELS = {"answer": 1.0, "name": NAMED, "neither": 0.0}
"""What a step met, the golden answer, a name that leads to it or neither, and what it is worth."""
_HEAD = 16
"""Characters that may stand before a title at the head of its line, such as `Doc 1(Title: "`."""
_WORD = re.compile(r"\w+")

Texts = dict[str, str]
"""Title → text of passages; those of one title are one."""


def chained_match(facts: Facts, found: Sequence[Passage] = (), texts: Texts | None = None) -> list[float | None]:
    """For every node by id: 1 where the golden answer was met (`golden_met`), else `NAMED` where a name that leads to
    it was (`leading_names`), else 0; None for answers, and everywhere where the answer can be guessed.

    A step that keeps has met what the kept text so far says. A step that retrieves also what its passages say: None
    where no prompt of the tree shows them. `found`: passages of a search for question and golden answer. `texts`: the
    tree's passages, where the caller has them.
    """
    tree, golden = facts.tree, facts.tree.question.golden_answers
    if facts.guessable:
        return [None] * len(tree.nodes)
    texts = shown_passages(tree) if texts is None else texts
    names = leading_names(tree.question, texts, found)
    searches = retrieving(facts.grammar)
    worth: list[float | None] = []
    for node, met, kept in zip(tree.nodes, golden_met(facts), facts.kept, strict=True):
        read = [*kept]
        if node.action in searches and node.failure is None:
            shown = [f"{p.title}\n{texts[p.title]}" for p in node.passages if p.title in texts]
            if met is None and len(shown) == len(node.passages):  # nobody asked below, but its passages are known
                met = facts.golden_kept[node.id] or any(holds_golden(text, golden) for text in shown)
            read += shown
        named = met is False and any(mentions("\n".join(read), names))
        worth.append(None if met is None else NAMED if named else float(met))
    return worth


def levels(worth: Met) -> Counter[str]:
    """How many steps of a tree met what, by `LEVELS`. `worth`: what `chained_match` says of it."""
    return Counter({name: count for name, value in LEVELS.items() if (count := worth.count(value))})


def leading_names(question: Question, texts: Texts, found: Sequence[Passage] = ()) -> frozenset[str]:
    """The names, normalised, by which passages are titled that hold the golden answer, of `texts` and `found`.

    A name counts only where it leads there from the question: a passage of the tree that holds no answer says it. It
    says nothing where it stands in the question, is a part of the answer, or is a common word (one that a passage
    writes in lower case), a number or a letter.
    """
    golden = question.golden_answers
    holders = {p.title for p in found if holds_golden(p.text, golden)}
    holders |= {title for title, text in texts.items() if holds_golden(text, golden)}
    names = frozenset(name for title in holders for name in names_of(title))
    others = "\n".join(f"{title}\n{text}" for title, text in texts.items() if title not in holders)
    taken = f" {normalise(' '.join((question.question, *golden)))} "
    lower = {word for text in (*texts.values(), *(p.text for p in found)) for word in _WORD.findall(text)
             if word.islower()}  # fmt: skip
    common = lower | {name for name in names if name.isdigit() or len(name) == 1}
    new = [name for name in sorted(names - common) if f" {name} " not in taken]
    return frozenset(name for name, there in zip(new, mentions(others, new), strict=True) if there)


def names_of(title: str) -> set[str]:
    """The names in a title, normalised: the whole of it without "(film)" and the like; what stands before a comma
    ("Sacramento, California"); runs of capitalised words behind its first ("Cities and counties of California").
    """
    bare = without_qualifier(title)
    runs = [[*run] for small, run in groupby(enumerate(bare.split()), lambda one: one[1].islower()) if not small]
    names = [subject(title), normalise(bare.partition(",")[0])]
    names += [normalise(" ".join(word for _, word in run)) for run in runs if run[0][0]]
    return {name for name in names if name}


def shown_passages(tree: Tree) -> Texts:
    """The passages of a tree as its prompts show them, those of one title joined. Trees keep no texts of their own.

    A passage is read from the line that its title begins to the next such line: one whose profile writes several into a
    line is not read.
    """
    texts: Texts = {}
    for node in tree.nodes:
        if not node.passages or node.messages is None:
            continue
        titles = {found.title for step in path_to(tree, node) for found in step.passages if found.title}
        for title, text in _under_titles(shown_below(tree, node), titles):
            if text not in texts.get(title, ""):
                texts[title] = "\n".join(filter(None, (texts.get(title), text)))
    return texts


def _under_titles(prompt: str, titles: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Titles that begin a line of the prompt, each with what stands below it; of several titles the longest counts."""
    longest = sorted(((neutralise(title), title) for title in titles), key=lambda one: (-len(one[0]), one))
    now, below = "", []
    for line in prompt.splitlines():
        places = [(line.find(shown, 0, _HEAD + len(shown)), len(shown), title) for shown, title in longest]
        heads = [one for one in places if one[0] >= 0]
        if heads:
            if now:
                yield now, "\n".join(below)
            place, length, now = min(heads, key=lambda one: one[0])
            line, below = line[place + length :], []
        below.append(line)
    if now:
        yield now, "\n".join(below)
