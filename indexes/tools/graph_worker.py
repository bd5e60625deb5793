"""The process that holds a graph of facts: a name or a SPARQL query in, passages out. Run as a file, by `graph`.

It imports nothing of this package, and takes frames and limits from `indexes/web/extraction_worker.py`. Arguments: the
file (N-Triples, Turtle, or lines of subject, relation and object with tabs between), and memory in MiB. In comes one
frame a call, {"text", "top_k"}; out goes one, {"found": [[title, text], …]} or {"broken": why, "line": n or null}.
Once the graph is read, the process can open no file and no connection, as SPARQL's SERVICE would.
"""

import importlib
import json
import re
import runpy
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

_SHARED = runpy.run_path(str(Path(__file__).parents[1] / "web" / "extraction_worker.py"))

ROWS = 50
"""Rows of a result, and facts of a thing, that are shown."""
WORDS = 8
"""Words of a name that is looked for in a longer text."""
OWN, XSD = "urn:fact:", "http://www.w3.org/2001/XMLSchema#"
"""Before the names of a file with tabs; before the types of numbers."""
_QUERY = re.compile(r"\s*(PREFIX|BASE|SELECT|ASK|CONSTRUCT|DESCRIBE)\b.*\{", re.IGNORECASE | re.DOTALL)
_LABELS = re.compile(r"[/#](label|prefLabel|name|title)$")
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")


class Graph:
    """The facts, and the things in them by name. Raises SyntaxError and ValueError for a file of another format."""

    def __init__(self, file: Path) -> None:
        rdf: Any = importlib.import_module("pyoxigraph")  # by name: it need not be there to check types
        self._rdf = rdf
        self._store, self._labels, self._prefixes = rdf.Store(), dict[Any, str](), {"": OWN}
        if file.suffix.lower() == ".tsv":
            self._store.bulk_extend(self._tabbed(file.read_text(encoding="utf-8-sig").splitlines()))
        else:
            turtle = file.suffix.lower() != ".nt"
            format = rdf.RdfFormat.TURTLE if turtle else rdf.RdfFormat.N_TRIPLES
            self._store.bulk_extend(read := rdf.parse(path=str(file), format=format))
            spaces = Counter(re.split(r"[^/#:]*$", quad.predicate.value)[0] for quad in self._store)
            # who cannot write <…> writes :name
            self._prefixes = {"": next(iter(spaces.most_common(1)), (OWN,))[0], **read.prefixes}
        self._things = defaultdict[str, dict[Any, None]](dict)
        for quad in self._store:
            if _LABELS.search(quad.predicate.value) and isinstance(quad.object, rdf.Literal):
                self._labels.setdefault(quad.subject, quad.object.value)
                self._things[quad.object.value.casefold()][quad.subject] = None
        for quad in self._store:
            for one in (quad.subject, quad.object):
                self._things[self.label(one).casefold().removeprefix("the ")][one] = None

    def _tabbed(self, lines: list[str]) -> Iterator[Any]:
        rows = [[each.strip() for each in line.split("\t")] for line in lines]
        subjects = {row[0] for row in rows}
        for number, row in enumerate(rows, 1):
            if row == [""]:
                continue
            if len(row) != 3 or not all(row):
                raise SyntaxError("subject, relation and object want a tab between each", ("", number, 1, ""))
            told = self._named(row[2]) if row[2] in subjects else self._literal(row[2])
            yield self._rdf.Quad(self._named(row[0]), self._named(row[1]), told)

    def _named(self, name: str) -> Any:
        node = self._rdf.NamedNode(OWN + re.sub(r"[^\w.~-]", lambda one: quote(one[0]), name.replace(" ", "_")))
        self._labels[node] = name
        return node

    def _literal(self, text: str) -> Any:
        number = _NUMBER.fullmatch(text)
        kind = "string" if not number else "decimal" if number[1] else "integer"
        return self._rdf.Literal(text, datatype=self._rdf.NamedNode(XSD + kind))

    def label(self, node: Any) -> str:
        """What people call a thing: its label, else the end of its address; of a value its text."""
        if isinstance(node, self._rdf.NamedNode) and node not in self._labels:
            return unquote(re.split(r"[/#:]", node.value)[-1]).replace("_", " ") or node.value
        return self._labels.get(node) or str(getattr(node, "value", node or ""))

    def answer(self, text: str, top_k: int) -> list[tuple[str, str]]:
        """Title and text of what a call finds."""
        if not _QUERY.match(text):
            return list(islice(self._about(text), top_k))
        try:
            return [("result", self._result(text))]
        except (SyntaxError, ValueError, OSError) as error:
            return [("error", f"the query cannot be answered: {error}")]

    def _result(self, query: str) -> str:
        found = self._store.query(query, prefixes=self._prefixes)
        if isinstance(found, self._rdf.QueryBoolean):
            return "yes" if found else "no"
        solved = isinstance(found, self._rdf.QuerySolutions)
        names = [one.value for one in found.variables] if solved else ["subject", "predicate", "object"]
        rows = ([row[name] if solved else getattr(row, name) for name in names] for row in found)
        shown = ["; ".join(f"{name}: {self.label(one)}" for name, one in zip(names, row, strict=True))
                 for row in islice(rows, ROWS + 1)]  # fmt: skip
        return ".\n".join([*shown[:ROWS], *(["and more"] if len(shown) > ROWS else [])]) or "nothing"

    def _about(self, text: str) -> Iterator[tuple[str, str]]:
        """The things that a text names, the longest name first, each with its facts; those first that it asks for."""
        words = [word.strip(".,;:?!'\"").casefold() for word in text.split()]
        words = [word for word in words if word != "the"]
        sizes = [len(words), *range(min(len(words) - 1, WORDS), 0, -1)]
        runs = (range(start, start + size) for size in sizes for start in range(len(words) - size + 1))
        taken = set[int]()
        for run in runs:
            nodes = self._things.get(" ".join(words[run.start : run.stop]))
            if nodes and taken.isdisjoint(run):
                taken |= {*run}
                rest = [word for place, word in enumerate(words) if place not in run and len(word) > 2]
                for node in nodes:
                    if facts := self._facts(node):
                        facts.sort(key=lambda fact: -sum(word in fact.casefold() for word in rest))
                        yield self.label(node), f"{self.label(node)}: {'; '.join(facts[:ROWS])}."

    def _facts(self, node: Any) -> list[str]:
        """What is said of a thing, then what says it: a line a relation."""
        told = defaultdict[str, dict[str, None]](dict)
        own = () if isinstance(node, self._rdf.Literal) else self._store.quads_for_pattern(node, None, None)
        for quad in islice(own, 10 * ROWS):
            told[self.label(quad.predicate)][self.label(quad.object)] = None
        for quad in islice(self._store.quads_for_pattern(None, None, node), 10 * ROWS):
            told[f"is the {self.label(quad.predicate)} of"][self.label(quad.subject)] = None
        return [f"{relation} {', '.join(sorted(values)[:ROWS])}" for relation, values in told.items()]


def main() -> None:
    limit, read = _SHARED["limit"], _SHARED["read"]
    limit(RLIMIT_AS=int(sys.argv[2]) << 20, RLIMIT_FSIZE=0, RLIMIT_CORE=0)
    graph, broken = None, dict[str, Any]()
    try:
        graph = Graph(Path(sys.argv[1]))
    except (SyntaxError, ValueError, OSError) as error:
        broken = {"broken": f"it cannot be read: {error}", "line": getattr(error, "lineno", None)}
    limit(RLIMIT_NOFILE=3, RLIMIT_NPROC=0)
    while (frame := read(sys.stdin.buffer)) is not None:
        reply = {"found": graph.answer(**json.loads(frame))} if graph else broken
        _SHARED["write"](sys.stdout.buffer, json.dumps(reply).encode())


if __name__ == "__main__":
    main()
