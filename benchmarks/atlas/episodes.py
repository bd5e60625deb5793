"""Worked episodes: the steps that a good agent would write for a question, in the published grammar."""

from collections.abc import Iterator

from benchmarks.atlas.model import pick, sentence_case
from benchmarks.atlas.questions import Hop, QuestionRow

Step = dict[str, object]
# Few and short: a small model learns what to ask for, not how to chat, and every word costs time in every episode.
FIRST = "I need {need}"
NEXT = "{Known}, so I need {need}"
OTHER = "I also need {need}"
AGAIN = "That did not help, so I need only {need}"
BRIEF = "I search for all of it at once"


def _query(thought: str, query: str) -> Step:
    return {"action": "query", "text": f"{thought}. So the next query is <query> {query} </query>"}


def _evidence(hop: Hop | None) -> Step:
    content, gold = (hop.evidence, [str(hop.row)]) if hop else ("None", [])
    return {
        "action": "evidence",
        "text": f"Based on the query, the relevant evidence is <evidence> {content} </evidence>",
        "gold": gold,
    }


def _clumsy(question: QuestionRow) -> str:
    """The question's own words squeezed into a search: it names both hops and so finds neither well."""
    words = [
        word
        for word in question.text.rstrip("?.").split()
        if word.lower() not in ("name", "what", "which", "is", "the", "does", "do", "are", "was", "were", "how", "of")
    ]
    return " ".join(words[:9]).rstrip(",")


def steps_of(question: QuestionRow, misses: bool) -> list[Step]:
    """Query and evidence for every hop, and the answer; with `misses` the first search fails and is repeated better."""
    key = question.text
    first = question.hops[0]
    steps: list[Step] = []
    if misses:
        steps += [_query(BRIEF, _clumsy(question)), _evidence(None)]
        steps.append(_query(AGAIN.format(need=first.need), pick(first.queries, key)))
    else:
        steps.append(_query(FIRST.format(need=first.need), pick(first.queries, key)))
    steps.append(_evidence(first))
    for hop in question.hops[1:]:
        steps += [_query(_second_thought(question, hop), pick(hop.queries, key, "second")), _evidence(hop)]
    answer = question.answers[0]
    steps.append(
        {"action": "answer", "text": f"{question.told.rstrip('.')}. So the answer is <answer> {answer} </answer>"}
    )
    return steps


def _second_thought(question: QuestionRow, hop: Hop) -> str:
    first = question.hops[0]
    if question.kind in ("comparison", "yes-no"):
        return OTHER.format(need=hop.need)
    known = f"{sentence_case(first.need)} is {first.found}"
    return NEXT.format(Known=known, found=first.found, need=hop.need)


def rows(questions: list[QuestionRow]) -> Iterator[tuple[QuestionRow, list[Step]]]:
    """Every question with its steps; about one in eight begins with a search that misses."""
    for order, question in enumerate(questions):
        yield question, steps_of(question, misses=order % 8 == 3)
