"""The grammars that exist, as values; `GRAMMARS` finds them by name. The class is `steprag.agent.grammar.Grammar`."""

from __future__ import annotations

from dataclasses import replace

from steprag.agent.grammar import START, FreeGrammar, Grammar
from steprag.agent.stack import Action

TRANSCRIPT = Grammar(
    name="transcript",
    actions=(
        Action("query", "So the next query is", effect="call"),
        Action("evidence", "Based on the query, the relevant evidence is", thought=False),
        Action("answer", "So the answer is", effect="end"),
    ),
    transitions={START: ("query", "answer"), "query": ("evidence",), "evidence": ("query", "answer")},
)
"""Query, evidence, answer: the strings are those of the published RAG_ProGuide data (arXiv 2505.14069)."""

PROGUIDE = replace(TRANSCRIPT, name="proguide", lenient=True)
"""The same steps as GPT-4o wrote them for RAG_ProGuide: `<evidence>None</evidence>.` stands without its lead."""

SHORT = 100
"""Longest constrained answer of the baselines, in characters: untrained small models do not close the tag."""

DIRECT = Grammar(
    name="direct",
    actions=(Action("answer", "", effect="end", thought=False, content_chars=SHORT),),
    transitions={START: ("answer",)},
    lenient=True,
    stops=True,
)
"""An answer and nothing else: what a model says alone, or after one look at passages."""

COT = replace(
    DIRECT,
    name="cot",
    actions=(Action("answer", "So the answer is", effect="end", content_chars=SHORT),),
    thought_chars=1200,
    must_think=True,
)
"""A chain of thought, then the answer."""

IRCOT = Grammar(
    name="ircot",
    actions=(
        Action("reason", "", effect="call", thought=False),
        Action("answer", "So the answer is", effect="end", thought=False, content_chars=SHORT),
    ),
    transitions={START: ("reason", "answer"), "reason": ("reason", "answer")},
    lenient=True,
    stops=True,
)
"""Each sentence of a chain of thought is the next query, as in IRCoT (arXiv 2212.10509)."""

SEARCH_R1 = Grammar(
    name="search-r1",
    actions=(Action("search", "", effect="call"), Action("answer", "", effect="end")),
    transitions={START: ("search", "answer"), "search": ("search", "answer")},
    thought_chars=1500,
    lenient=True,
    stops=True,
    thinks=True,
)
"""The tags that Search-R1's checkpoints speak (arXiv 2503.09516)."""

STACK = Grammar(
    name="stack",
    actions=(
        Action("plan", "", thought=False, pinned=True),
        Action("search", "", effect="call", thought=False),
        Action("reasoning", "", thought=False),
        Action("backtrack", "", effect="pop", thought=False, content_chars=SHORT),
        Action("summary", "", effect="fold", thought=False),
        Action("answer", "", effect="end", thought=False),
    ),
    transitions={
        START: ("plan", "search", "answer"),
        "plan": ("search", "answer"),
        "search": ("reasoning", "backtrack", "summary", "answer"),
        "reasoning": ("search", "backtrack", "summary", "answer"),
        "backtrack": ("search", "backtrack", "answer"),
        "summary": ("search", "backtrack", "answer"),
    },
    lenient=True,
    stops=True,
)
"""An agent on a memory stack: it plans, searches, keeps facts, goes back and sums up (tags as in Agentic-RAG-R1)."""

FLAT = replace(
    STACK,
    name="flat",
    actions=tuple(action for action in STACK.actions if action.effect not in ("pop", "fold")),
    transitions={
        last: tuple(name for name in after if name not in ("backtrack", "summary"))
        for last, after in STACK.transitions.items()
        if last not in ("backtrack", "summary")
    },
)
"""The stack's steps without backtrack and summary, to measure what these two bring."""

RECORDED = FreeGrammar(
    name="recorded",
    actions=(Action("tool_call", "", effect="call"), Action("answer", "", effect="end")),
    transitions={START: ("tool_call", "answer"), "tool_call": ("tool_call", "answer")},
)
"""What other frameworks' agents do: they call tools, or say something."""

GRAMMARS = {
    grammar.name: grammar for grammar in (TRANSCRIPT, PROGUIDE, DIRECT, COT, IRCOT, SEARCH_R1, STACK, FLAT, RECORDED)
}
