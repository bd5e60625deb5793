"""A graph of facts as a tool: names and SPARQL, in three formats, with bounds that hold."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from steprag import atlas
from steprag.errors import ConfigError, DataError, StepragError
from tests.fakes import listening
from tests.tool_parts import asked as asked_of
from tests.tool_parts import tools_file

pytest.importorskip("pyoxigraph", reason="no pyoxigraph: pip install -e '.[graph]'")

TSV = (
    "Albania\tcapital\tTirana\nAlbania\tcurrency\tlek <answer>\nTirana\tinhabitants\t418495\nLima\tinhabitants\t10.5\n"
)
TTL = """@prefix ex: <http://x.example/v#> . @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
<http://x.example/Q222> rdfs:label "Albania" ; ex:capital <http://x.example/Tirana> ; ex:currency "lek"@en .
"""
NT = '<http://x.example/Q222> <http://x.example/v#capital> <http://x.example/Tirana> .\n' \
     '<http://x.example/Q222> <http://x.example/v#name> "Albania" .\n' \
     '<http://x.example/Q222> <http://x.example/v#currency> "lek" .\n'  # fmt: skip


def asked(
    folder: Path, *queries: str, graph: str | None = None, text: str = TSV, kind: str = "tsv", seconds: float = 20
) -> list[Any]:
    """What the tool `facts` finds or says, by the door that agents use."""
    file = folder / f"facts.{kind}"
    file.write_text(text, encoding="utf-8")
    return asked_of(tools_file(folder, facts={"graph": str(graph or file), "seconds": seconds}), *queries)


@pytest.mark.parametrize(("kind", "text"), [("tsv", TSV), ("ttl", TTL), ("nt", NT)])
def test_a_thing_is_found_by_its_name_and_by_sparql(kind: str, text: str, tmp_path: Path) -> None:
    queries = ("facts: albania", "What is the currency of the Albania?", "tirana", "Atlantis",
               "SELECT ?x WHERE { ?x :capital ?y }", "ASK { ?x :capital ?x }")  # fmt: skip
    whole, part, back, none, rows, no = asked(tmp_path, *queries, text=text, kind=kind)
    assert (whole[0].title, back[0].title, none) == ("Albania", "Tirana", ())
    assert "capital Tirana" in whole[0].text
    assert part[0].text.startswith("Albania: currency lek")
    assert "is the capital of Albania" in back[0].text
    assert [rows[0].text, no[0].text] == ["x: Albania", "no"]


def test_facts_of_atlas_answer_questions_of_two_steps(tmp_path: Path) -> None:
    queries = ("Peru", "SELECT ?m { ?c :capital :Lima ; :currency ?m }", "Hennig Brand",
               "SELECT ?c { ?c :capital ?t ; :population ?n } ORDER BY DESC(?n) LIMIT 1",
               "CONSTRUCT WHERE { :Lima ?p ?o }", "SELECT * { ?s ?p ?o }")  # fmt: skip
    peru, money, brand, most, lima, all_ = asked(tmp_path, *queries, graph="atlas")
    assert "capital Lima" in peru[0].text
    assert [money[0].text, most[0].text] == ["m: the Peruvian sol", "c: China"]
    assert "is the discoverer of phosphorus" in brand[0].text
    assert "subject: Lima; predicate: country; object: Peru" in lima[0].text
    assert len(all_[0].text) <= 2000
    assert atlas.FACTS.stat().st_size < 300_000


def test_a_query_reaches_no_other_service_changes_nothing_and_ends_in_time(tmp_path: Path) -> None:
    """What a policy writes is a stranger's."""
    reached = threading.Event()

    class Service(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            reached.set()

        do_POST = do_GET

    with listening(Service) as address:
        far = f"SELECT * {{ SERVICE <{address}/> {{ ?s ?p ?o }} }}"
        load = f"PREFIX x: <urn:x> LOAD <{address}/> INTO {{ }}"
        put = "PREFIX x: <urn:x> INSERT DATA { <urn:a> <urn:b> 1 }"
        *refused, still = asked(tmp_path, far, load, put, "SELECT ?x {", "ASK { <urn:a> ?b 1 }")
    assert [one[0].title for one in refused] == ["error"] * 4
    assert all("cannot be answered" in one[0].text for one in refused)
    assert (still[0].text, reached.is_set()) == ("no", False)
    endless = " . ".join(f"?a{n} ?b{n} ?c{n}" for n in range(5))
    (late,) = asked(tmp_path, f"SELECT (COUNT(*) AS ?n) {{ {endless} }}", graph="atlas", seconds=1)
    assert "took too long" in late or "said nothing within" in late


@pytest.mark.parametrize(("error", "given", "told"), [
    (DataError, {"kind": "tsv", "text": "a\tb\tc\n\na\tb\n"}, r"facts.tsv:3: .*a tab between each"),
    (DataError, {"kind": "ttl", "text": "@prefix x: <urn:x> .\nx:a x:b .\n"}, r"facts.ttl:2: it cannot be read"),
    (DataError, {"kind": "nt", "text": "nothing\n"}, r"facts.nt:1: it cannot be read"),
    (ConfigError, {"graph": "nowhere.nt"}, "graph file not found"),
    (ConfigError, {"graph": "tools.yaml"}, "is none of .nt"),
])  # fmt: skip
def test_what_is_no_graph_is_refused_with_its_line(
    error: type[StepragError], given: dict[str, Any], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=told):
        asked(tmp_path, "x", **given)
