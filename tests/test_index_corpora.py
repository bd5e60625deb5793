"""Corpora that come in: what is read, what is left out and told, and what is refused."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import zipfile
from collections import Counter
from pathlib import Path

import pytest
import zstandard

import indexes.commands.build
import indexes.corpora.read_corpus
from indexes.commands.build import IndexConfig, build_index
from indexes.corpora.read_corpus import ingest
from indexes.corpora.readers import count_rows, open_source
from indexes.corpora.templates import FRAME
from indexes.corpora.wikipedia import plain_text
from indexes.rows.passage_store import PassageStore
from steprag.config.load import load_config
from steprag.console.terminal import guarded
from steprag.errors import ConfigError, DataError
from steprag.records.inputs import passage_from_row
from steprag.types import Passage
from tests.indexing import PASSAGES, write_corpus
from tests.test_own_documents import zipped

GOOD = '{"id": "a", "contents": "Title\\nText."}'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no passages"),
        ("\n\n", "holds no passages"),
        (f"{GOOD}\n{{nonsense\n", ":2: not JSON"),
        (f"{GOOD}\n\n[1]\n", ':3: a passage needs an "id"; keys found: none, it is [1]'),
        (f'{GOOD}\n{{"id": "b", "url": ""}}\n', """needs "contents", or "title" and "text"; keys found: 'id', 'url'"""),
        (f'{GOOD}\n{{"id": "b", "contents": "A title\\n"}}\n', ":2: passage 'b' has no text"),
        (f"{GOOD}\n{GOOD}\n", ":2: id 'a' stands in line 1 already"),
        ('{"id": "a", "title": "caf\xe9", "text": "x"}\n', ":1: not UTF-8"),
        ('{"id": "a", "title": "", "text": "\\ud800"}\n', ":1: half a surrogate pair"),
    ],
)
def test_bad_corpus(
    content: str, message: str, encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text(content, encoding="latin-1")
    argv = ["--corpus", str(corpus), "--out", str(tmp_path / "i"), "--encoder", str(encoder)]
    assert guarded(indexes.commands.build.main, argv) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["c.jsonl"]


def taken(corpus: Path, folder: Path, max_skipped: float = 0.0) -> list[Passage]:
    """What an intake leaves in the store."""
    folder.mkdir(exist_ok=True)
    rows = ingest(open_source(str(corpus)), folder, max_skipped).rows
    with PassageStore(folder) as store:
        assert len(store) == rows
        return [store.read(row) for row in range(rows)]


def test_paths_that_are_no_corpus(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="holds no corpus files"):
        build_index(str(tmp_path / "empty"), tmp_path / "i", load_config(IndexConfig))
    (tmp_path / "empty" / "a.arrow").touch()
    with pytest.raises(ConfigError, match=r"holds no corpus files .*; it has \.arrow 1; give the file or the folder"):
        build_index(str(tmp_path / "empty"), tmp_path / "i", load_config(IndexConfig))
    with pytest.raises(ConfigError, match="corpus not found"):
        build_index(str(tmp_path / "nowhere.jsonl"), tmp_path / "i", load_config(IndexConfig))


def test_compressed_corpora_are_read_and_torn_ones_refused(tmp_path: Path) -> None:
    content = write_corpus(tmp_path / "plain.jsonl").read_bytes()
    half = content.index(b"\n") + 1
    frame = zstandard.ZstdCompressor().compress
    packed = {
        "c.jsonl.gz": gzip.compress(content[:half]) + gzip.compress(content[half:]),
        "c.jsonl.zst": frame(content[:half]) + frame(content[half:]),
    }
    plain = taken(tmp_path / "plain.jsonl", tmp_path / "store")
    assert [passage.id for passage in plain] == [row[0] for row in PASSAGES]
    for name, whole in packed.items():
        (tmp_path / name).write_bytes(whole)
        assert taken(tmp_path / name, tmp_path / "store") == plain
        (tmp_path / name).write_bytes(whole[:-10])
        with pytest.raises(DataError, match=r"not a whole (gzip|zstandard) file"):
            taken(tmp_path / name, tmp_path / "store")
    (tmp_path / "c.jsonl.zst").write_bytes(b"no frame at all")
    with pytest.raises(DataError, match="not a whole zstandard file"):
        taken(tmp_path / "c.jsonl.zst", tmp_path / "store")


@pytest.mark.parametrize(("row", "expected"), [
    ({"id": 7, "contents": '"A title"\nThe text.'}, ("7", "A title", "The text.")),  # FlashRAG
    ({"id": "7", "title": '"A title"', "text": "The text.", "more": 1}, ("7", "A title", "The text.")),
    ({"id": "7", "contents": "One line."}, ("7", "", "One line.")),
    ({"id": "7", "contents": '"Yes" is "no".'}, ("7", "", '"Yes" is "no".')),
    ({"id": "7", "contents": "A title\nThe text."}, ("7", "A title", "The text.")),  # Pyserini
    ({"id": "7", "title": "A title", "contents": '"A title"\nThe text.'}, ("7", "A title", "The text.")),
    ({"id": "7", "title": "A title", "contents": "The\ntext."}, ("7", "A title", "The\ntext.")),
    ({"id": None, "_id": 7.0, "title": None, "text": "The text."}, ("7", "", "The text.")),  # BEIR
    ({"_id": "7", "wikipedia_title": "Iron", "text": ["Iron\n", "Hard.", "Section::::Uses.", "BULLET::::- Nuts."]},
     ("7", "Iron", "Hard.\nUses.\nNuts.")),  # KILT
    ({"id": 7, "title": "A", "text": [["The", "text."], ["More."]]}, ("7", "A", "The\ntext.\nMore.")),  # HotpotQA
    ({"pid": "7", "docid": "d", "passage": "The text."}, ("7", "", "The text.")),  # MS MARCO v2
    ({"docid": "7", "title": 1984, "segment": "The text."}, ("7", "1984", "The text.")),
    ({"psg_id": "7", "title": "A", "text": "The text."}, ("7", "A", "The text.")),
    ({"id": 7, "page_content": "The text."}, ("7", "", "The text.")),
    ({"PMID": 7, "Title": "A", "abstract": "The text."}, ("7", "A", "The text.")),
    ({"PassageID": 7, "Title": "A", "Text": "The text."}, ("7", "A", "The text.")),
    ({"page_content": "The text.", "metadata": '{"id": 7, "Title": "A"}'}, ("7", "A", "The text.")),  # LangChain
    ({"id": 7, "page_content": "The text.", "metadata": "a note"}, ("7", "", "The text.")),
    ({"id": None, "text": "x"}, 'needs an "id"; keys found: \'id\', \'text\''),
    ({"id": True, "text": "x"}, 'needs an "id"'),
    ({"id": " ", "text": "x"}, 'needs an "id"'),
    ({"contents": "x"}, 'needs an "id"'),
    ({"id": "1", "text": ["x", 7]}, 'needs "contents", or'),
    ({"id": "1", "contents": '"title only"'}, "has no text"),
])  # fmt: skip
def test_passages_in_every_spelling(row: dict[str, object], expected: tuple[str, str, str] | str) -> None:
    if isinstance(expected, str):
        with pytest.raises(DataError, match=expected):
            passage_from_row(row, "file", 1)
    else:
        assert passage_from_row(row, "file", 1) == Passage(*expected)


ROWS = [{"id": name, "title": title, "text": text} for name, title, text in PASSAGES]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
BY_ID = {row["id"]: {"title": row["title"], "text": row["text"]} for row in ROWS}
DPR = [[one["id"], *(f'"{one[key].replace(chr(34), 2 * chr(34))}"' for key in ("text", "title"))] for one in ROWS]


def tabbed(rows: list[list[str]]) -> str:
    return "".join("\t".join(cells) + "\n" for cells in rows)


@pytest.mark.parametrize(("name", "content"), [
    ("array.json", json.dumps(ROWS)),
    ("array.json", "\ufeff" + json.dumps(ROWS, indent=2)),
    ("one.json", json.dumps({"version": 1, "data": ROWS})),
    ("map.json", json.dumps(BY_ID)),
    ("map.json.xz", lzma.compress(json.dumps(BY_ID, indent=1).encode())),
    ("dpr.tsv", tabbed([["id", "text", "title"], *DPR])),
    ("c.csv", "ID,Text,Title\n" + "".join(",".join(cells) + "\n" for cells in DPR)),
    ("head.tsv", tabbed([["docid", "Passage Text", "Page Title"], *DPR])),
    ("nested.json", json.dumps({"parts": [{"passages": ROWS[:2]}, {"passages": ROWS[2:]}]})),
    ("bare.tsv.gz", gzip.compress(tabbed([[one["id"], one["text"], one["title"]] for one in ROWS]).encode(), mtime=0)),
    ("c.jsonl.bz2", bz2.compress(LINES.encode())),
    ("c.jsonl.xz", lzma.compress(LINES.encode())),
    ("c.zip", zipped(zipfile.ZIP_DEFLATED, **{"folder/": "", "folder/c.jsonl": LINES, "__MACOSX/c.jsonl": "x"})),
])  # fmt: skip
def test_every_form_of_a_corpus_gives_the_same_passages(name: str, content: str | bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert taken(tmp_path / name, tmp_path / "store") == taken(write_corpus(tmp_path / "p.jsonl"), tmp_path / "store")
    assert count_rows(open_source(str(tmp_path / name))) == (len(PASSAGES), True)


@pytest.mark.parametrize(("name", "content", "message"), [
    ("c.csv", b'id,text,title\n1,"a,b\n' + b"x" * 140_000, ":2: no table with ',' between: .* .close its quotation"),
    ("c.csv", b"id,text,title\n1,\"a\n", "keys found: none, it is .'1', 'a.n'."),
    ("c.csv", b"id,text,title\n1,a\n", "keys found: none, it is .'1', 'a'."),
    ("c.json", b'{"a": {"text": "", "links": [{"id": 1, "text": "y"}]}}', ":1: passage 'a' has no text"),
    ("c.jsonl", b"a\rb, text\n", ":1: not JSON"),
    ("c.jsonl", b'{"id": 7, "parts": [{"id": 1, "text": "y"}]}', "needs .contents.*keys found: 'id', 'parts'"),
    ("c.json", b'{"id": 7,\n"parts": [{"id": 1, "text": "y"}]}', "needs .contents.*keys found: 'id', 'parts'"),
    ("c.jsonl", b'{"url": "x", "links": [{"id": 1, "to": "y"}], "id": 7}', "keys found: 'url', 'links', 'id'"),
    ("c.tsv", b"1\tThe text.\tChunk\n2\tMore\t7\t8\n", ":2: a passage needs"),
    ("docs.tsv", b"D1\thttp://x\tA\tThe text.\n", ":1: is a table of 4 columns without names .the first line names"),
    ("c.tsv", b"id\ttext\n1\ta\tb\n", "keys found: none, it is .'1', 'a', 'b'."),
    ("c.zip", zipped(zipfile.ZIP_DEFLATED, **{"corpus.jsonl": LINES, "queries.jsonl": LINES}),
     "a zip archive of 2 files .'corpus.jsonl', "),
    ("c.zip", zipped(zipfile.ZIP_DEFLATED, **{"c.jsonl": LINES})[:-9], "not a whole zip file"),
    ("c.jsonl.bz2", bz2.compress(LINES.encode())[:-9], "not a whole bzip2 file"),
    ("c.jsonl.xz", lzma.compress(LINES.encode())[:-9], "not a whole xz file"),
    ("c.jsonl", gzip.compress(LINES.encode(), mtime=0), r"is gzip by its first bytes \(name it .gz\)"),
    ("c.jsonl", b"PAR1 and more", r"is Parquet by its first bytes \(name it .parquet\)"),
    ("c.arrow", b"\xff\xff\xff\xff", "is Arrow by its first bytes .write it as Parquet"),
    ("c.xls", b"\xd0\xcf\x11\xe0", "is an old Office file by its first bytes .save it as .xlsx"),
    ("c.page", b"<!DOCTYPE html>", "is XML or HTML by its first bytes"),
    ("c.tar.gz", gzip.compress(b"c.jsonl".ljust(257, b"\0") + b"ustar\0", mtime=0), "is a tar archive .unpack it"),
    ("array.json", b'[{"id": 1},\n{"id": 2,}]', ":2: not JSON.*give one JSON object a line"),
])  # fmt: skip
def test_a_form_that_is_not_read_is_named(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        taken(tmp_path / name, tmp_path / "store")


def test_documents_beside_files_of_passages_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a.jsonl", "in/b.md", "in/c.PDF", "d.png", ".e.md"):
        (tmp_path / name).write_text('{"id": "1", "text": "x"}')
    assert len([*open_source(str(tmp_path)).items()]) == 1
    said = capsys.readouterr().err
    assert "(a.jsonl, …); not read are the documents beside them, 2 (in/b.md, …): put those into a folder of" in said


def test_beirs_questions_are_no_passages_of_their_folder(tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus.jsonl")
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "Which?"}\n')
    assert len(taken(tmp_path, tmp_path / "store")) == len(PASSAGES)


def test_parquet_and_folders_give_the_same_passages(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    plain = taken(write_corpus(tmp_path / "plain.jsonl"), tmp_path / "store")
    rows = [{"id": i, "title": title, "text": text} for i, title, text in PASSAGES]
    folder = tmp_path / "several"
    folder.mkdir()
    for number, part in enumerate((rows[:4], rows[4:])):
        parquet.write_table(pyarrow.Table.from_pylist(part), folder / f"part{number}.parquet")
    assert taken(folder, tmp_path / "store") == plain
    (folder / "part0.parquet").replace(folder / "part[0]*.parquet")
    assert taken(folder / "part[0]*.parquet", tmp_path / "store") == plain[:4]
    (folder / "part1.parquet").write_bytes((folder / "part1.parquet").read_bytes()[:-8])
    with pytest.raises(DataError, match="part1.parquet:1: cannot be read as Parquet"):
        taken(folder, tmp_path / "store")


def test_what_is_no_passage_is_left_out_counted_and_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = [json.dumps({"id": str(n), "contents": f"Title {n}\nText {n}."}) for n in range(60)]
    bad = ["{", '{"id": "x"}', '{"id": "y", "contents": "\\"title alone\\""}', good[7], good[7]]
    lines = good[:20] + bad[:3] + good[20:] + bad[3:]
    corpus = tmp_path / "c.jsonl"
    corpus.write_bytes("\n".join(lines).encode() + b"\n\xff\n")
    with pytest.raises(DataError, match=r"c.jsonl:21: not JSON.*6 of 66 lines are no passages.*share of 0.05"):
        taken(corpus, tmp_path / "store", 0.05)
    capsys.readouterr()
    kept = ingest(open_source(str(corpus)), tmp_path / "store", 0.1)
    assert (kept.rows, kept.skipped) == (60, {"json": 1, "fields": 1, "empty": 1, "encoding": 1, "duplicate": 2})
    listed = [json.loads(line) for line in (tmp_path / "store" / "skipped.jsonl").read_text().splitlines()]
    places = sorted(int(row["place"].removeprefix(f"{corpus}:")) for row in listed)
    assert places == [21, 22, 23, 64, 65, 66]
    assert "id '7' stands in line 8 already" in [row["detail"] for row in listed]
    shown = capsys.readouterr().err
    assert f"left out {corpus}:21: not JSON" in shown
    assert "left out 6 lines" in shown
    with PassageStore(tmp_path / "store") as store:
        assert [store.read(row).id for row in range(60)] == [str(n) for n in range(60)]


def test_duplicates_are_told_apart_from_ids_that_only_look_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ids fall to one hash here, and they are compared in several shares."""
    monkeypatch.setattr(indexes.corpora.read_corpus, "hash", lambda _: 1, raising=False)
    monkeypatch.setattr(indexes.corpora.read_corpus, "_SHARES", 2)
    corpus = write_corpus(tmp_path / "c.jsonl", [*PASSAGES, PASSAGES[2]])
    assert [p.id for p in taken(corpus, tmp_path / "store", 0.5)] == [row[0] for row in PASSAGES]


def test_every_id_is_read_once_however_many_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that a process reads for a passage are the same for few and for many."""
    io = Path("/proc/self/io")
    if not io.is_file():
        pytest.skip("the system does not count the bytes that a process reads")

    (tmp_path / "store").mkdir()
    monkeypatch.setattr(indexes.corpora.read_corpus, "_BUFFER", 4_000)

    def read_for(rows: int) -> int:
        corpus = write_corpus(tmp_path / f"{rows}.jsonl", [(str(n), "T", "x") for n in range(rows)])
        before = int(io.read_text().split()[1])
        ingest(open_source(str(corpus)), tmp_path / "store", 0.0)
        return int(io.read_text().split()[1]) - before

    read_for(1)  # loads what is loaded once
    assert read_for(4 * 4_100) < 4.3 * read_for(4_100)


DUMP = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="en">
<siteinfo><sitename>W</sitename><dbname>w</dbname><base>b</base><generator>g</generator><case>first-letter</case>
<namespaces><namespace key="0" case="first-letter" /><namespace key="1" case="first-letter">Talk</namespace>
</namespaces></siteinfo>
<page><title>Iron</title><ns>0</ns><id>7</id><revision><id>1</id><timestamp>2020-01-01T00:00:00Z</timestamp>
<text>{{Infobox|symbol=Fe}}'''Iron''' is a [[metal|hard metal]].&lt;ref&gt;A book&lt;/ref&gt; %s
[[File:Iron.jpg|thumb|a lump]]
{| class="wikitable"
| a cell
|}
== Uses ==
Bridges.
== References ==
A list. [[Category:Metals]]</text></revision></page>
<page><title>Fe</title><ns>0</ns><id>8</id><redirect title="Iron" /><revision><id>2</id>
<timestamp>2020-01-01T00:00:00Z</timestamp><text>#REDIRECT [[Iron]]</text></revision></page>
<page><title>Talk:Iron</title><ns>1</ns><id>9</id><revision><id>3</id><timestamp>2020-01-01T00:00:00Z</timestamp>
<text>chatter</text></revision></page>
</mediawiki>
"""


def test_a_wikipedia_dump_becomes_passages_of_100_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = tmp_path / "w-pages-articles.xml.bz2"
    packed = bz2.compress((DUMP % " ".join(f"w{n}" for n in range(200))).encode())
    dump.write_bytes(packed)
    first, *middle, last = taken(dump, tmp_path / "store")
    assert (first.id, first.title, len(middle)) == ("7-0", "Iron", 1)
    assert first.text.startswith("Iron is a hard metal. w0 w1")
    assert [len(passage.text.split()) for passage in (first, *middle, last)] == [100, 100, 6]
    assert last.text.endswith("w199 Bridges.")
    said = "index: templates and tags left out: 1 (<table> 1), and 2 of the page's frame (infoboxes"
    assert said in capsys.readouterr().err
    dump.write_bytes(packed[:-20])
    with pytest.raises(DataError, match="not a whole Wikipedia dump"):
        taken(dump, tmp_path / "store")


@pytest.mark.parametrize(("markup", "shown"), [
    ("{{convert|1300|km2|sqmi|abbr=on}}", "1300 km2"), ("{{cvt|5|to|10|km}}", "5 to 10 km"),
    ("{{Convert|6|ft|2|in|m}}", "6 ft 2 in"), ("{{formatnum:2450}}", "2450"), ("{{US$|12 million}}", "US$12 million"),
    ("{{€|5}}", "€5"), ("{{circa|1911}}", "c. 1911"), ("{{nowrap|12,345 [[person|people]]}}", "12,345 people"),
    ("{{nihongo|Ondal|온달|Ondal}}", "Ondal (온달, Ondal)"), ("{{lang|fr|{{small|Bon}} jour}}", "Bon jour"),
    ("{{lang-de|Hallo}}", "Hallo"), ("{{transl|ar|DIN|kitab}}", "kitab"), ("a{{IPA|/x/}}b", "ab"),
    ("{{Birth date and age|df=y|1950|3|12}}", "12 March 1950"), ("{{death_date|May 1900}}", "May 1900"),
    ("{{film date|2010|05}}", "May 2010"), ("{{age|1950|6|1|2000|5|6}}", "49"), ("{{abbr|km|kilometre}}", "km"),
    ("{{as of|2020|5|lc=y}}", "as of May 2020"), ("1900{{snd}}1910", "1900 – 1910"), ("{{frac|3|1|2}}", "3 1/2"),
    ("{{USS|Enterprise|CV-6}}", "USS Enterprise (CV-6)"), ("{{height|ft=6|in=2}}", "6 ft 2 in"),
    ("{{val|1.5|e=6|u=km}}", "1.5×10^6 km"), ("{{sortname|Ada|Lovelace}}", "Ada Lovelace"), ("{{hlist|a|b}}", "a, b"),
    ("{{convert|1.5|e6acre|km2}}", "1.5 million acre"), ("{{convert|10|by(-)|20|m}}", "10 by 20 m"),
    ("{{cvt|2|xx|3|ft}}", "2 × 3 ft"), ("{{convert|2|,|3|, and|4|e12m3}}", "2, 3, and 4 trillion m3"),
    ("{{convert|7|e7USD|km}}", "7×10^7 USD"), ("{{circa}} 1911", "c. 1911"), ("{{c.|1911|1920}}", "c. 1911 – c. 1920"),
    ("{{floruit|1200|1210}}", "fl. 1200–1210"), ("{{reign|1066|1087}}", "r. 1066–1087"),
    ("{{linktext|水|星}}", "水星"), ("{{ill|Foo Bar|de|Foo (Bar)|lt=the Foo}}", "the Foo"), ("{{ill|Foo|de}}", "Foo"),
    ("{{script/Hebrew|שלום}}", "שלום"), ("{{mya|5|10}}", "5–10 million years ago"), ("a <chem>H2O</chem> b", "a H2O b"),
    ("a<br/>b", "a b"), ("<p>a</p>b", "a b"),
    ("{{ordinal|12}}", "12th"), ("''{{nowrap|1=a = b}}'' [[x|{{small|y}}]]", "a = b y"),
])  # fmt: skip
def test_inline_templates_are_what_readers_see(markup: str, shown: str) -> None:
    dropped = Counter[str]()
    assert plain_text(markup, dropped) == shown
    assert set(dropped) <= {FRAME}


TAGS = ("math", "chem", "timeline", "score", "hiero", "syntaxhighlight", "math")


@pytest.mark.parametrize(("markup", "shown", "counts"), [
    ("{{Infobox|a={{flagicon|X}}}} a {{percentage|3|4}} {{age|1950|1|1}} {{#if:x|y}}", " a   ",
     {FRAME: 2, "percentage": 1, "age": 1, "#if": 1}),
    ("".join(f"<{tag}>x_{{1}}</{tag}>" for tag in TAGS) + "a<ref>x</ref>\n{|\n|<ref/>\n|}", "a",
     {FRAME: 1, "<table>": 1, "<math>": 2, **{f"<{tag}>": 1 for tag in TAGS[1:-1]}}),
])  # fmt: skip
def test_what_shows_nothing_is_left_out_and_counted_by_name(markup: str, shown: str, counts: dict[str, int]) -> None:
    dropped = Counter[str]()
    assert plain_text(markup, dropped) == shown
    assert dropped == counts
