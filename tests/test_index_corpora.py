"""Corpora that come in: what is read, what is left out and told, and what is refused."""

from __future__ import annotations

import bz2
import gzip
import json
from pathlib import Path

import pytest
import zstandard

import indexes.commands.build
import indexes.corpora.read_corpus
from indexes.commands.build import IndexConfig, build_index
from indexes.corpora.read_corpus import take_in
from indexes.corpora.readers import open_source
from indexes.rows.passage_store import PassageStore
from steprag.config.load import load_config
from steprag.console.terminal import guarded
from steprag.errors import ConfigError, DataError
from steprag.types import Passage
from tests.indexing import PASSAGES, write_corpus

GOOD = '{"id": "a", "contents": "Title\\nText."}'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no passages"),
        ("\n\n", "holds no passages"),
        (f"{GOOD}\n{{nonsense\n", ":2: not JSON"),
        (f"{GOOD}\n\n[1]\n", ':3: a passage needs an "id"'),
        (f'{GOOD}\n{{"id": "b"}}\n', ':2: a passage needs "contents"'),
        (f'{GOOD}\n{{"id": "b", "contents": "title alone"}}\n', ":2: passage 'b' has no text"),
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
    rows = take_in(open_source(str(corpus)), folder, max_skipped).rows
    with PassageStore(folder) as store:
        assert len(store) == rows
        return [store.read(row) for row in range(rows)]


def test_paths_that_are_no_corpus(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="holds no corpus files"):
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
    bad = ["{", '{"id": "x"}', '{"id": "y", "contents": "title alone"}', good[7], good[7]]
    lines = good[:20] + bad[:3] + good[20:] + bad[3:]
    corpus = tmp_path / "c.jsonl"
    corpus.write_bytes("\n".join(lines).encode() + b"\n\xff\n")
    with pytest.raises(DataError, match=r"c.jsonl:21: not JSON.*6 of 66 lines are no passages.*share of 0.05"):
        taken(corpus, tmp_path / "store", 0.05)
    capsys.readouterr()
    kept = take_in(open_source(str(corpus)), tmp_path / "store", 0.1)
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


def test_every_id_is_read_once_however_many_there_are(tmp_path: Path) -> None:
    """Bytes that a process reads for a passage are the same for few and for many."""
    io = Path("/proc/self/io")
    if not io.is_file():
        pytest.skip("the system does not count the bytes that a process reads")

    (tmp_path / "store").mkdir()

    def read_for(rows: int) -> int:
        corpus = write_corpus(tmp_path / f"{rows}.jsonl", [(str(n), "T", "x") for n in range(rows)])
        before = int(io.read_text().split()[1])
        take_in(open_source(str(corpus)), tmp_path / "store", 0.0)
        return int(io.read_text().split()[1]) - before

    assert read_for(4 * 66_000) < 4.3 * read_for(66_000)


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


def test_a_wikipedia_dump_becomes_passages_of_100_words(tmp_path: Path) -> None:
    dump = tmp_path / "w-pages-articles.xml.bz2"
    packed = bz2.compress((DUMP % " ".join(f"w{n}" for n in range(200))).encode())
    dump.write_bytes(packed)
    first, *middle, last = taken(dump, tmp_path / "store")
    assert (first.id, first.title, len(middle)) == ("7-0", "Iron", 1)
    assert first.text.startswith("Iron is a hard metal. w0 w1")
    assert [len(passage.text.split()) for passage in (first, *middle, last)] == [100, 100, 6]
    assert last.text.endswith("w199 Bridges.")
    dump.write_bytes(packed[:-20])
    with pytest.raises(DataError, match="not a whole Wikipedia dump"):
        taken(dump, tmp_path / "store")
