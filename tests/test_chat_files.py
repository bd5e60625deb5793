"""Files that people add to a conversation, and documents that open at their page: over the real service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from indexes import open_retriever
from indexes.commands.build import build_index
from indexes.corpora.document_list import Originals
from steprag.agent.citations import Support
from steprag.agent.retriever import Documented, place_of
from steprag.records.jsonl import file_hash
from steprag.types import Passage, State, Step
from tests.chat_parts import WORK, Served, WritingPolicy, chat, scripted
from tests.fakes import answer, evidence, query
from tests.indexing import small
from tests.test_own_documents import HANDBOOK, LOCK, PICTURE, pdf

NOTE = "Whoever falls ill says so on the first day and brings a note on the third."


def reading() -> WritingPolicy:
    return WritingPolicy(
        scripted(query("sick leave note"), evidence(NOTE), answer("the third"), query("sick leave"), answer("x"))
    )


def added(served: Served, name: str, content: bytes, conversation: str = "c1") -> Any:
    return served.client.post(f"/api/files/{conversation}", params={"name": name}, content=content)


def test_a_file_is_asked_at_once_opens_at_its_page_survives_a_restart_and_goes_with_its_conversation(
    tmp_path: Path,
) -> None:
    with chat(reading(), tmp_path) as served:
        reply = added(served, "../../hand book.PDF", HANDBOOK)
        assert reply.status_code == 201
        assert (reply.json()["name"], reply.json()["pages"], reply.json()["notes"]) == (
            "hand book.pdf", 4, ["read beside paragraphs: tables 1"])  # fmt: skip
        assert added(served, "hand book.pdf", HANDBOOK).json() == reply.json()  # the same once more
        (listed,) = served.client.get("/api/conversations").json()["conversations"]
        assert (listed["title"], listed["turns"], listed["files"]) == ("hand book.pdf", 0, 1)
        told = served.whole("What is the note?", conversation="c1")
        (found,) = (event for event in told if event["type"] == "passages")
        first, *_, last = found["items"]
        assert (found["source"], first["title"]) == ("files+local", "hand book.pdf, p. 2, 2.1 Sick leave")
        assert first["file"] == {"name": "hand book.pdf", "page": 2}
        assert (last["title"], "file" in last) == ("Tirana", False)
        answered = next(event for event in told if event["type"] == "answer")
        assert [one["n"] for one in answered["sources"] if one["cited"]] == [1]
        other = served.whole("What is the note?", conversation="c2")  # another conversation has other files
        assert [event["source"] for event in other if event["type"] == "passages"] == ["local"]
    half = tmp_path / ".files/c1/f0123456789abcdef/notes.md"  # as a kill leaves it
    half.parent.mkdir()
    half.write_text("x")
    with chat(reading(), tmp_path) as served:
        turn = told[0]["turn"]
        assert [event.get("items") for event in served.events(turn) if event["type"] == "passages"] == [found["items"]]
        assert not half.exists()
        for path in (f"/api/turns/{turn}/sources/1/file", f"/api/files/c1/{reply.json()['id']}"):
            document = served.client.get(path)
            assert (document.content, document.headers["content-type"]) == (HANDBOOK, "application/pdf")
            assert served.client.get(path, headers={"Authorization": ""}).status_code == 401
        assert served.client.get(f"/api/turns/{turn}/sources/3/file").status_code == 404
        for name in ("%2e%2e", "%2e", "a.b"):
            for method in ("GET", "DELETE", "PATCH"):
                assert served.client.request(method, f"/api/conversations/{name}", json={"title": "x"}).is_error
        assert (tmp_path / "turns.jsonl").exists()
        assert served.client.delete("/api/conversations/c1").status_code == 204
        assert served.client.get(f"/api/files/c1/{reply.json()['id']}").status_code == 404
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if path.suffix == ".pdf" or NOTE.encode() in path.read_bytes()] == []


OFFICE = b"""# Offices
The Belmora office was opened in 1950. It has 212 employees.
The office in Tirana is smaller. Rana Duarte leads it.
"""


@pytest.mark.parametrize(("source", "origins", "answer"), [
    (None, "files+local", "It has 212 employees."), ("both", "files+local", "It has 212 employees."),
    ("files", "files", "It has 212 employees."), ("index", "local", "lek"),
])  # fmt: skip
def test_the_reader_answers_from_files_and_the_policy_from_the_index(
    source: str | None, origins: str, answer: str, tmp_path: Path
) -> None:
    with chat(WritingPolicy(scripted(*WORK)), tmp_path, reads=True) as served:
        assert added(served, "offices.md", OFFICE).status_code == 201
        told = served.whole("How many employees has the Belmora office?", conversation="c1", source=source)
        (said,) = (event for event in told if event["type"] == "answer")
        assert (said["content"], said.get("extractive", False)) == (answer, source != "index")
        assert [event["source"] for event in told if event["type"] == "passages"][0] == origins
        (row,) = served.client.get("/api/conversations/c1").json()["turns"]
        assert row["source"] == (source or "both")
        again = served.client.post(f"/api/turns/{told[0]['turn']}/again").json()["turn"]
        served.events(again)
        assert [one["source"] for one in served.client.get("/api/conversations/c1").json()["turns"]] == [
            row["source"]
        ] * 2
    with chat(WritingPolicy(scripted(*WORK)), tmp_path, reads=True) as served:
        kept = [
            {**event, "id": ""} for event in served.events(told[0]["turn"]) if event["type"] in ("passages", "answer")
        ]
        assert kept == [{**event, "id": ""} for event in told if event["type"] in ("passages", "answer")]


REFUSED = [
    ("torn.pdf", HANDBOOK[:200], 422, "torn.pdf: is damaged"),
    ("locked.pdf", pdf([], lock=LOCK), 422, "locked.pdf: is encrypted: save it without its password first"),
    ("scan.pdf", pdf(PICTURE), 422, "1 of 1 pages, from p. 1 on, are pictures without text: read them with OCR first"),
    ("a.md", HANDBOOK, 422, "a.md: is a PDF, not what its name says"),
    ("a.txt", b"", 422, "a.txt: is empty"),
    ("a.exe", b"x", 422, "'a.exe' is of no type that is read: .pdf, "),
    ("a.txt", b"x" * (1 << 20 | 1), 413, "a.txt has more than 1 MiB (serve.file_megabytes)"),
    (
        "long.txt",
        " ".join(map(str, range(1000))).encode(),
        422,
        "long.txt: makes 8 passages with the other files; at most 4 are kept",
    ),
]


def test_what_cannot_be_read_or_is_too_much_is_refused_in_words_and_leaves_nothing(tmp_path: Path) -> None:
    with chat(reading(), tmp_path, files=2, file_megabytes=1, file_passages=4) as served:
        for name, content, status, words in REFUSED:
            reply = added(served, name, content)
            assert (reply.status_code, words in reply.json()["error"]["message"]) == (status, True), reply.text
        assert [path for path in tmp_path.rglob("*") if path.is_file() and ".files" in str(path)] == []
        kept = [added(served, f"{n}.txt", f"word {n}".encode()) for n in range(3)]
        assert [one.status_code for one in kept] == [201, 201, 422]
        assert "at most 2 files" in kept[2].json()["error"]["message"]
        assert served.client.delete(f"/api/files/c1/{kept[0].json()['id']}").status_code == 204
        assert added(served, "2.txt", b"word 2").status_code == 201
        assert [one["name"] for one in served.client.get("/api/conversations/c1").json()["files"]] == ["1.txt", "2.txt"]
    with chat(reading(), files=0) as served:
        assert (added(served, "a.txt", b"word").status_code, served.client.get("/api/info").json()["files"]) == (
            404,
            None,
        )


def test_documents_of_strangers_are_inert_in_a_browser() -> None:
    with chat(reading()) as served:
        for name, content, kind, disposition in (
            ("a.html", b"<h1>A</h1><script>alert(1)</script>\xc3\xa9", "text/plain; charset=utf-8", "inline"),
            ("b.txt", b"caf\xe9 and more", "text/plain; charset=windows-1252", "inline"),
        ):
            reply = served.client.get(f"/api/files/c1/{added(served, name, content).json()['id']}")
            headers = reply.headers
            assert (headers["content-type"], headers["content-disposition"].partition(";")[0]) == (kind, disposition)
            assert (headers["x-content-type-options"], headers["content-security-policy"][:18]) == (
                "nosniff",
                "default-src 'none'",
            )
        for id in ("..%2F..%2Fturns.jsonl", "%2e%2e", "f0000000000000000"):
            assert served.client.get(f"/api/files/c1/{id}").status_code in (404, 422)


def test_an_index_opens_its_own_documents_as_they_were_read_and_no_other_file(tmp_path: Path) -> None:
    corpus, secret = tmp_path / "corpus", tmp_path / "secret.txt"
    (corpus / "deep").mkdir(parents=True)
    (corpus / "deep/hand.pdf").write_bytes(HANDBOOK)
    secret.write_text("secret")
    folder = build_index(str(corpus), tmp_path / "index", small(Path("none"))).path
    retriever: Any = open_retriever(folder)
    (corpus / "deep/key.pem").write_text("secret")
    listed = [json.loads(line) for line in (folder / "documents.jsonl").read_text().splitlines()]
    for path in ("../secret.txt", "deep/key.pem"):  # as a stranger's index may have it
        listed.append({**listed[0], "path": path, "bytes": 6, "sha256": file_hash(secret)})
    lines = [f"{json.dumps(one)}\n" for one in sorted(listed, key=lambda one: one["path"])]
    (tmp_path / "lines").write_text("".join(lines))
    (tmp_path / "lines").replace(folder / "documents.jsonl")
    assert isinstance(retriever, Documented)
    stranger = Originals(folder, str(corpus))
    assert stranger.document("deep/hand.pdf#1")
    assert retriever.document("deep/hand.pdf#1", checked=True) == corpus / "deep/hand.pdf"
    (corpus / "deep/hand.pdf").touch()  # its time alone
    assert retriever.document("deep/hand.pdf#1", checked=True)
    for other in (
        "../secret.txt#1",
        "secret.txt#1",
        "deep/key.pem#1",
        "deep/hand.pdf",
        str(secret),
        "deep/../../secret.txt#1",
        "7",
    ):
        assert retriever.document(other) is stranger.document(other) is None
    (corpus / "deep/hand.pdf").write_bytes(HANDBOOK.replace(b"thirty", b"twenty"))
    assert retriever.document("deep/hand.pdf#1", checked=True) is None


@pytest.mark.parametrize(
    ("id", "title", "place"),
    [
        ("a/hand.pdf#3", "hand.pdf, p. 12, Leave", ("hand.pdf", 12)),
        ("hand.pdf#3", "hand.pdf, p. 12", ("hand.pdf", 12)),
        ("notes, p. 4.md#1", "notes, p. 4.md, Leave, p. 7", ("notes, p. 4.md", None)),
    ],
)
def test_a_passage_names_the_page_of_its_document(id: str, title: str, place: tuple[str, int | None]) -> None:
    assert place_of(Passage(id, title, "")) == place


def test_scores_are_ranks_where_a_given_file_was_found() -> None:
    for id, lacks in (("f0123456789abcdef/a.md#1", None), ("1", "score")):
        state = State("q", (Step("answer", "", "lek"),), (), ((Passage(id, "", "lek", 0.1),),))
        assert Support(least=0.4).lacks(state) == lacks
