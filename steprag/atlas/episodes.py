"""Worked episodes: the steps that a good agent would write for a question, in the published grammar."""

from collections.abc import Iterator

from steprag.atlas.model import pick, sentence_case
from steprag.atlas.questions import Hop, Question

Step = dict[str, object]
FIRST = (
    "First I need to find {need}",
    "To answer this I have to know {need}",
    "The question turns on {need}",
    "I should look up {need} first",
    "I do not know {need} yet",
    "Nothing is known so far, and I need {need}",
)
NEXT = (
    "{Known}, so now I need {need}",
    "{Known}; what is still missing is {need}",
    "Now that I have {found}, I need {need}",
    "{Known}, and the next fact to find is {need}",
)
OTHER = (
    "That is one of the two; I also need {need}",
    "For the comparison I still need {need}",
    "One half is known, so now I look for {need}",
    "The other side is missing, which is {need}",
)
AGAIN = (
    "That search did not help, so I ask more plainly for {need}",
    "The passages do not say it, so I search only for {need}",
    "Nothing useful came back, so I try again with {need}",
)
BRIEF = (
    "I will search for the whole thing at once",
    "Maybe one search can answer the whole question",
    "I will simply search with the words of the question",
)
DONE = (
    "{told}",
    "{told}, which is what was asked",
    "The evidence is enough: {told_low}",
    "{told}, and that settles it",
)


def _query(thought: str, query: str) -> Step:
    return {"action": "query", "text": f"{thought}. So the next query is <query> {query} </query>"}


def _evidence(hop: Hop | None) -> Step:
    content, gold = (hop.evidence, [str(hop.row)]) if hop else ("None", [])
    return {
        "action": "evidence",
        "text": f"Based on the query, the relevant evidence is <evidence> {content} </evidence>",
        "gold": gold,
    }


def _clumsy(question: Question) -> str:
    """The question's own words squeezed into a search: it names both hops and so finds neither well."""
    words = [
        word
        for word in question.text.rstrip("?.").split()
        if word.lower() not in ("name", "what", "which", "is", "the", "does", "do", "are", "was", "were", "how", "of")
    ]
    return " ".join(words[:9]).rstrip(",")


def _lower(text: str) -> str:
    """The clause inside a sentence: only the words that open our own templates lose their capital."""
    first = text.split(" ", 1)[0]
    return text[0].lower() + text[1:] if first in ("The", "What", "It", "One", "Besides") else text


def _told(question: Question) -> str:
    wording = pick(DONE, question.text, "done")
    return wording.format(told=question.told, told_low=_lower(question.told)).rstrip(".")


def steps_of(question: Question, misses: bool) -> list[Step]:
    """Query and evidence for every hop, and the answer; with `misses` the first search fails and is repeated better."""
    key = question.text
    first = question.hops[0]
    steps: list[Step] = []
    if misses:
        steps += [_query(pick(BRIEF, key), _clumsy(question)), _evidence(None)]
        steps.append(_query(pick(AGAIN, key, "again").format(need=first.need), pick(first.queries, key)))
    else:
        steps.append(_query(pick(FIRST, key, "first").format(need=first.need), pick(first.queries, key)))
    steps.append(_evidence(first))
    for hop in question.hops[1:]:
        steps += [_query(_second_thought(question, hop), pick(hop.queries, key, "second")), _evidence(hop)]
    answer = question.answers[0]
    steps.append({"action": "answer", "text": f"{_told(question)}. So the answer is <answer> {answer} </answer>"})
    return steps


def _second_thought(question: Question, hop: Hop) -> str:
    first = question.hops[0]
    if question.kind in ("comparison", "yes-no"):
        return pick(OTHER, question.text, "other").format(need=hop.need)
    known = f"{sentence_case(first.need)} is {first.found}"
    return pick(NEXT, question.text, "next").format(Known=known, found=first.found, need=hop.need)


def rows(questions: list[Question]) -> Iterator[tuple[Question, list[Step]]]:
    """Every question with its steps; about one in six begins with a search that misses."""
    for order, question in enumerate(questions):
        yield question, steps_of(question, misses=order % 6 == 3)
