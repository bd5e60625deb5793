"""People's own documents: what of each format reaches the passages, what is left out and named, and updates."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from apps.commands import main
from indexes.commands.build import build_index
from indexes.config import IndexConfig
from indexes.corpora import documents
from indexes.corpora.cutting import MOST, cut
from indexes.corpora.document_list import KINDS, Document, Originals
from indexes.corpora.document_report import loss
from indexes.corpora.document_worker import Read, cut_away, read
from indexes.corpora.documents import DocumentsConfig
from indexes.corpora.read_corpus import ingest
from indexes.corpora.readers import Problem, count_rows, open_source
from indexes.folder.manifest import read_index_manifest
from indexes.rows.passage_store import DOCUMENTS, OFFSETS, PASSAGES, PassageStore
from indexes.rows.vector_file import VECTORS, VectorFile
from steprag.errors import ConfigError, DataError
from steprag.types import Passage
from tests.indexing import ask, small

Text = tuple[float, float, float, str]
"""Left end, height above the page's foot, size, and words."""
PICTURE = "q 99 0 0 99 0 0 cm BI /W 1 /H 1 /CS /G /BPC 8 ID \xff EI Q"
LOCK = "<</Filter/Standard/V 1/R 2/P -4/O<" + "11" * 32 + ">/U<" + "22" * 32 + ">>>"


HELVETICA = "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"


def pdf(*pages: list[Text] | str, lock: str = "", packed: bool = False, font: str = HELVETICA) -> bytes:
    """A PDF of these pages: texts, or a page's own drawing; packed, as most programs write them."""
    bodies = ["<</Type/Catalog/Pages 2 0 R>>", "", font, lock or "null"]
    for page in pages:
        drawn = page if isinstance(page, str) else "".join(
            f"BT /F {size} Tf {x} {y} Td ({words}) Tj ET\n" for x, y, size, words in page)  # fmt: skip
        if packed:
            drawn = zlib.compress(drawn.encode("latin-1")).decode("latin-1")
        bodies.append(f"<<{'/Filter/FlateDecode' * packed}/Length {len(drawn)}>>stream\n{drawn}\nendstream")
        bodies.append(f"<</Type/Page/Parent 2 0 R/MediaBox[0 0 595 842]/Contents {len(bodies)} 0 R"
                      "/Resources<</Font<</F 3 0 R>>>>>>")  # fmt: skip
    kids = " ".join(f"{number} 0 R" for number in range(6, 5 + 2 * len(pages), 2))
    bodies[1] = f"<</Type/Pages/Count {len(pages)}/Kids[{kids}]>>"
    out, places = b"%PDF-1.4\n", []
    for number, body in enumerate(bodies, 1):
        places.append(f"{len(out):010} 00000 n \n")
        out += f"{number} 0 obj{body}endobj\n".encode("latin-1")
    ends = f"/Size {len(bodies) + 1}/Root 1 0 R{'/Encrypt 4 0 R/ID[<00><00>]' if lock else ''}"
    table = f"xref\n0 {len(bodies) + 1}\n0000000000 65535 f \n{''.join(places)}"
    return out + f"{table}trailer<<{ends}>>startxref\n{len(out)}\n%%EOF".encode()


def zipped(how: int = zipfile.ZIP_STORED, /, **files: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", how) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


def word(body: str, how: int = zipfile.ZIP_STORED, /, **more: str) -> bytes:
    """A DOCX of paragraphs, each as `SAID` has it."""
    types = "<Types xmlns='http://schemas.openxmlformats.org/package/2006/content-types'/>"
    return zipped(how, **{"word/document.xml": WORD.format(body), "word/styles.xml": STYLES,
                          "[Content_Types].xml": types, **more})  # fmt: skip


def lines(*texts: str, x: float = 72, top: float = 700) -> list[Text]:
    return [(x, top - 14 * number, 11, text) for number, text in enumerate(texts)]


def framed(number: int, *body: Text) -> list[Text]:
    """A page with the header and the footer of all pages."""
    return [(72, 810, 9, "ACME Handbook 2026"), *body, (300, 20, 9, f"Page {number} of 4")]


HANDBOOK = pdf(
    framed(1, (72, 750, 20, "Leave"), *lines("Everybody has thirty days of leave. They are asked", "for in writing.")),
    framed(2, (72, 750, 14, "2.1 Sick leave"), *lines("Whoever falls ill says so on the first day and brings a")),
    framed(3, *lines("note on the third. It is kept for a year."), (72, 600, 11, "Rank"), (200, 600, 11, "Days"),
           (72, 580, 11, "Clerk"), (200, 580, 11, "30")),
    framed(4, *lines(*(f"left side {n} goes on and on" for n in "abcdef")),
           *lines(*(f"right side {n} goes on and on" for n in "abcdef"), x=310)),
)  # fmt: skip
INTERLEAVED = pdf([text for pair in zip(lines(*(f"left {n} goes on and on" for n in "abcdef")),
                                        lines(*(f"right {n} goes on and on" for n in "abcdef"), x=310), strict=True)
                   for text in pair])  # fmt: skip
WORD = "<w:document xmlns:w='http://schemas.openxmlformats.org/wordprocessingml/2006/main'><w:body>{}</w:body></w:document>"
SAID = "<w:p>{}<w:r><w:t>{}</w:t></w:r></w:p>"
HEADED = "<w:pPr><w:pStyle w:val='Titel1'/></w:pPr>"
STYLES = ("<w:styles xmlns:w='http://schemas.openxmlformats.org/wordprocessingml/2006/main'><w:style w:type='paragraph'"
          " w:styleId='Titel1'><w:name w:val='heading 1'/></w:style></w:styles>")  # fmt: skip
ROWS = "".join(f"<w:tr><w:tc>{SAID.format('', a)}</w:tc><w:tc>{SAID.format('', b)}</w:tc></w:tr>"
               for a, b in (("City", "Rate"), ("Oslo", "210")))  # fmt: skip
BODY = SAID.format(HEADED, "Travel") + SAID.format("", "Book early.")
DOCX = word(f"{BODY}<w:tbl>{ROWS}</w:tbl>", **{"word/media/inner.zip": "PK"})
OPF = ("<package xmlns='http://www.idpf.org/2007/opf'><manifest><item id='n' href='nav.xhtml' properties='nav'"
       " media-type='application/xhtml+xml'/><item id='b' href='b%20.xhtml' media-type='application/xhtml+xml'/><item"
       " id='a' href='a.xhtml' media-type='application/xhtml+xml'/></manifest><spine><itemref idref='n'/><itemref"
       " idref='a'/><itemref idref='b'/></spine></package>")  # fmt: skip
CONTAINER = "<container><rootfiles><rootfile full-path='in/book.opf'/></rootfiles></container>"
BOOK = {"META-INF/container.xml": CONTAINER, "in/book.opf": OPF, "in/nav.xhtml": "<p>Contents</p>",
        "in/a.xhtml": "<?xml version='1.0' encoding='utf-8'?><html><h1>One</h1><p>First.</p></html>",
        "in/b .xhtml": "<html><h2>Two</h2><p>Sec<b>ond</b>.</p></html>"}  # fmt: skip
A = "xmlns:a='a' xmlns:p='p' xmlns:r='r'"
SLIDE = (f"<p:sld {A}><p:sp><p:nvPr><p:ph type='title'/></p:nvPr><a:t>Goals</a:t></p:sp><p:sp><a:p><a:r><a:t>Sell</a:t>"
         "</a:r><a:r><a:t> more.</a:t></a:r></a:p></p:sp></p:sld>")  # fmt: skip
SLIDES = {"ppt/presentation.xml": f"<p:presentation {A}><p:sldId id='256' r:id='x'/></p:presentation>",
          "ppt/_rels/presentation.xml.rels": "<R><L Id='x' Target='slides/slide7.xml'/></R>",
          "ppt/slides/slide7.xml": SLIDE}  # fmt: skip
HTML = b"""<html><head><title>T</title><script>var x = 1</script></head><body><nav><a href=/>Home</a></nav>
<div class="page-sidebar"><a href=a>All pages</a> <a href=b>News</a></div>
<div class="menu"><p>Soup of the day.</p></div>
<h1>Menu &amp; hours</h1><p>Open <b>dai</b>ly<br>at noon.</p><pre>x = 1
y = 2</pre><table><tr><th>Day<th>Hour<tr><td><p>Mon<p>Tue<td>12</table><footer>Imprint</footer></body></html>"""
MARKDOWN = b"---\ntitle: x\n---\n# Tirana\n\nA [capital](http://x).\nOf Albania.\n\n```\n# no heading\n```\n"
ODT = "<o xmlns:text='t'><text:tracked-changes><text:p>Gone.</text:p></text:tracked-changes><text:h>Haus</text:h>" \
      "<text:p>Ein<text:s/>Satz.</text:p></o>"  # fmt: skip
ON_AND_ON = " ".join(f"{side}{n} goes on and on" for side in ("{0}", "{1}") for n in "abcdef")


def column(x: float, *texts: str, top: float = 700, apart: float = 20) -> list[Text]:
    """Cells below one another; an empty one stays free."""
    return [(x, top - apart * row, 11, text) for row, text in enumerate(texts) if text]


AROUND = lines("Here is what each of us earns in a year, by rank.", top=760), lines("The text goes on below.", top=600)
PROSE = [[f"{side} {n} goes on and on" for n in "abcdef"] for side in ("left", "right")]
TURNED = "BT /F 11 Tf 0 1 -1 0 30 100 Tm (written upwards at the edge) Tj ET BT /F 11 Tf 72 700 Td (And text.) Tj ET"
COLUMNWISE = {
    "words": (column(72, "City", "Oslo", "Lima") + column(200, "Country", "Norway", "Peru"),
              "City | Country\nOslo | Norway\nLima | Peru"),
    "numbers, a cell missing, text around": (
        AROUND[0] + column(72, "Rank", "Clerk", "Head", "Boss") + column(200, "Days", "30", "", "40")
        + column(300, "N", "1", "2", "4") + AROUND[1],
        "Here is what each of us earns in a year, by rank.\nRank | Days | N\nClerk | 30 | 1\nHead |  | 2\n"
        "Boss | 40 | 4\nThe text goes on below."),
    "cells of several lines": (
        column(72, "Rank", "Clerk", "Boss", apart=30) + column(200, "Work", top=700)
        + column(200, "Files letters and notes", "of everybody else here", top=670, apart=13)
        + column(200, "Signs", top=640),
        "Rank | Work\nClerk | Files letters and notes of everybody else here\nBoss | Signs"),
    "cells that wrap between rules": (
        "".join(f"{a} m {b} l S " for a, b in (("70 710", "300 710"), ("70 670", "300 670"), ("70 650", "300 650"), (
            "70 650", "70 710"), ("160 650", "160 710"), ("300 650", "300 710")))
        + "".join(f"BT /F 11 Tf {x} {y} Td ({said}) Tj ET " for x, y, said in (
            (75, 696, "Long cell"), (75, 680, "of two lines"), (170, 688, "7"), (75, 655, "b"), (170, 655, "8"))),
        "Long cell of two lines | 7\nb | 8"),
    "two tables": (column(72, "K", "a", "b") + column(200, "V", "1", "2") + column(72, "L", "c", "d", top=500)
                   + column(200, "W", "3", "4", top=500), "K | V\na | 1\nb | 2\nL | W\nc | 3\nd | 4"),
    "prose in two columns": (lines(*PROSE[0]) + lines(*PROSE[1], x=310), " ".join([*PROSE[0], *PROSE[1]])),
    "prose with short ends": (lines("A column goes on and", "ends.", "Another one goes on and on", "to here.")
                              + lines("The next column goes on", "too.", "And still another one goes", "on.", x=310),
                              "A column goes on and ends. Another one goes on and on to here.\nThe next column goes on"
                              " too. And still another one goes on."),
    "few letters, which PDFium takes for words written downwards": (
        column(36, *(f"item {n}" for n in "4567"), apart=13), "item 4 item 5 item 6 item 7"),
    "words at the edge, written upwards": (TURNED, "written upwards at the edge\nAnd text."),
    "lists in two columns": (lines("- a", "- b", "- c") + lines("- d", "- e", "- f", x=310),
                             "- a\n- b\n- c\n- d\n- e\n- f"),
    "words parted at a line's end": (
        lines("a well-known letter of in-", "ter-", "national law of Timor-", "Leste, in ISO 639-", "3, on USB-",
              "sticks, well-", "known as an X-", "ray, in IMPOR-", "TANT words of I-", "Kiribati on e-", "mail."),
        "a well-known letter of international law of Timor-Leste, in ISO 639-3, on USB-sticks, well-known as an X-ray,"
        " in IMPORTANT words of I-Kiribati on e-mail."),
    "numbers and letters that go on a sentence": (
        lines("The hill stands far from the sea at some", "10 feet. It was found by men of the east in",
              "1801. Its birds sing in winter and it has", "a population of rabbits that dig on about", "63.5 acres."),
        "The hill stands far from the sea at some 10 feet. It was found by men of the east in 1801. Its birds sing in"
        " winter and it has a population of rabbits that dig on about 63.5 acres."),
    "items after a sentence, after items, and where there was room": (
        lines("It says:", "1 Start in the month of June, on the", "10. of it", "2 End", "2.1 Very end")
        + lines("Contents", "12 What follows is long", "14 The rest", top=600)
        + lines("You take", "1. an egg", "2. salt", top=500),
        "It says:\n1 Start in the month of June, on the 10. of it\n2 End\n2.1 Very end\n"
        "Contents\n12 What follows is long\n14 The rest\nYou take\n1. an egg\n2. salt"),
}  # fmt: skip


@pytest.mark.parametrize(("page", "text"), COLUMNWISE.values(), ids=[*COLUMNWISE])
def test_a_table_that_was_drawn_by_columns_has_rows_and_prose_in_columns_stays_prose(
    page: list[Text] | str, text: str, tmp_path: Path
) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf(page))
    assert "\n".join(said for _, _, said in read(str(tmp_path / "a.pdf"), "pdf").blocks) == text


FORMATS = [
    ("handbook.pdf", HANDBOOK, [
        (", p. 1, Leave", "Everybody has thirty days of leave. They are asked for in writing."),
        (", p. 2, 2.1 Sick leave", "Whoever falls ill says so on the first day and brings a note on the third."
         " It is kept for a year.\nRank | Days\nClerk | 30\n" + ON_AND_ON.format("left side ", "right side ")),
    ]),
    ("columns.pdf", INTERLEAVED, [(", p. 1", ON_AND_ON.format("left ", "right "))]),
    ("travel.docx", DOCX, [(", Travel", "Book early.\nCity | Rate\nOslo | 210")]),
    ("book.epub", zipped(**BOOK), [(", One", "First."), (", Two", "Second.")]),
    ("talk.pptx", zipped(**SLIDES), [(", p. 1, Goals", "Sell more.")]),
    ("haus.odt", zipped(**{"content.xml": ODT}), [(", Haus", "Ein Satz.")]),
    ("page.HTML", HTML, [(", T", "Soup of the day."),
                         (", Menu & hours", "Open daily at noon.\nx = 1\ny = 2\nDay | Hour\nMon Tue | 12")]),
    ("notes.md", MARKDOWN, [(", Tirana", "x\nA capital. Of Albania.\n# no heading")]),
    ("plain.txt", "#1 of all – café.\r\n\r\nMore.".encode("cp1252"), [("", "#1 of all – café.\nMore.")]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "expected"), FORMATS, ids=[row[0] for row in FORMATS])
def test_headings_pages_and_tables_reach_the_passages(
    name: str, content: bytes, expected: list[tuple[str, str]], tmp_path: Path
) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / name).write_bytes(content)
    items = [item for _, _, item in open_source(str(tmp_path)).items()]
    assert items == [
        Passage(f"deep/{name}#{number}", f"{name}{title}", text) for number, (title, text) in enumerate(expected, 1)
    ]
    assert count_rows(open_source(str(tmp_path / "deep" / name))) == (len(expected), True)


SONG = (
    "<</Type/Font/Subtype/Type0/BaseFont/STSong-Light/Encoding/UniGB-UCS2-H/DescendantFonts[<</Type/Font/Subtype/"
    "CIDFontType0/BaseFont/STSong-Light/CIDSystemInfo<</Registry(Adobe)/Ordering(GB1)/Supplement 0>>>>]>>"
)
WRAPPED = pdf("".join(f"BT /F 11 Tf 72 {y} Td <{text.encode('utf-16-be').hex()}> Tj ET "
                      for y, text in ((700, "每年有大"), (686, "批游客来"), (672, "此参观。"))), font=SONG)  # fmt: skip
FORM = b"""%PDF-1.4
1 0 obj<</Type/Catalog/Pages 2 0 R/AcroForm<</Fields[5 0 R 6 0 R]>>/Outlines 8 0 R>>endobj
2 0 obj<</Type/Pages/Count 1/Kids[3 0 R]>>endobj
3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 595 842]/Contents 4 0 R/Annots[5 0 R 6 0 R 7 0 R]/Resources<</Font<<
/F<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>>>>>>>endobj
4 0 obj<</Length 40>>stream
BT /F 11 Tf 72 700 Td (Surname:) Tj ET  \nendstream endobj
5 0 obj<</Type/Annot/Subtype/Widget/FT/Tx/T(s)/V(Oyelaran)/Rect[140 695 300 712]/P 3 0 R>>endobj
6 0 obj<</Type/Annot/Subtype/Widget/FT/Btn/T(member)/V/Yes/AS/Yes/AP<</N<</Yes 4 0 R/Off 4 0 R>>>>/Rect[140 600 150 610]
/P 3 0 R>>endobj
7 0 obj<</Type/Annot/Subtype/FreeText/Contents(Typed by hand)/Rect[72 400 200 420]>>endobj
8 0 obj<</First 9 0 R/Last 9 0 R/Count 1>>endobj
9 0 obj<</Title(An outline)/Parent 8 0 R>>endobj
trailer<</Root 1 0 R>>"""
NUMBERS = [[f"{row}", f"{row * 1.37:.2f}", f"{row * 71}"] for row in range(1, 121)]
"""A table over four pages: nothing but numbers, and its head on each of them."""
PRINTED = [row for at in range(0, 120, 30) for row in [["No", "Weight", "Price"], *NUMBERS[at : at + 30]]]
TABLE = pdf(*([(72.0 + 90 * x, 800.0 - 18 * y, 10.0, cell) for y, row in enumerate(PRINTED[at : at + 31])
               for x, cell in enumerate(row)] for at in range(0, 124, 31)))  # fmt: skip
PAGED = pdf(*([(72, 810, 9, "Visits"), (72, 700, 11, f"Yes. {name}"), (72, 686, 11, "No."), (300, 20, 9, f"- {n} -")]
              for n, name in enumerate(("Oslo", "Lima", "Kyiv"), 7)))  # fmt: skip
W = "xmlns:w='http://schemas.openxmlformats.org/wordprocessingml/2006/main' xmlns:m='http://schemas.openxmlformats.org/m'"
DOWN = "<w:tcPr><w:vMerge{}/></w:tcPr>"
POOLS = [[(DOWN.format(" w:val='restart'"), "North"), ("", "Monday"), ("", "8-12"), ("", "")],
         [(DOWN.format(""), ""), ("", "Tuesday"), ("", ""), ("", "14-18")]]  # fmt: skip
KINSHIP = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


def related(**parts: str) -> str:
    """Relations of an Office part: kinds and where they lead, by id."""
    links = "".join(f"<R Id='{kind}' Type='{KINSHIP}/{kind}' Target='{target}'/>" for kind, target in parts.items())
    return f"<Rs>{links}</Rs>"


MERGED = "".join("<w:tr>" + "".join(f"<w:tc>{down}{SAID.format('', text)}</w:tc>" for down, text in row) + "</w:tr>"
                 for row in POOLS)  # fmt: skip
NOTED = word(
    f"<w:tbl>{MERGED}</w:tbl><w:p><w:r><w:t>Said</w:t><w:footnoteReference w:id='2'/></w:r><w:del><w:r><w:delText>"
    f"unsaid words</w:delText></w:r></w:del><m:oMath {W}><m:f><m:num><m:r><m:t>a</m:t></m:r></m:num><m:den><m:r><m:t>"
    "bc</m:t></m:r></m:den></m:f></m:oMath></w:p>",
    **{"word/_rels/document.xml.rels": related(footnotes="notes.xml", header="top.xml", oleObject="a.bin"),
       "word/notes.xml": f"<w:n {W}><w:footnote w:id='2'>{SAID.format('', 'By whom.')}</w:footnote></w:n>",
       "word/top.xml": f"<w:hdr {W}>{SAID.format('', 'Top secret')}</w:hdr>"},
)  # fmt: skip
CHART = ("<c:c xmlns:c='c'><c:ser><c:tx><c:v>East</c:v></c:tx><c:cat><c:pt idx='0'><c:v>Q1</c:v></c:pt></c:cat>"
         "<c:val><c:pt idx='0'><c:v>10.5</c:v></c:pt></c:val></c:ser></c:c>")  # fmt: skip
TALK = zipped(**SLIDES, **{
    "ppt/slides/_rels/slide7.xml.rels": related(notesSlide="../notes.xml", chart="../charts/c.xml"),
    "ppt/notes.xml": f"<p:n {A}><p:sp><a:p><a:t>Speak up.</a:t></a:p></p:sp></p:n>",
    "ppt/charts/c.xml": CHART})  # fmt: skip
CELLS = ("<w><sheetData><row r='1'><c r='A1' t='s'><v>0</v></c><c r='B1' s='1'><v>0.09</v></c>"
         "<c r='C1' s='2'><v>11767</v></c><c r='D1' s='3'><v>2134</v></c></row><row r='2'><c r='C2'><f>A1</f></c>"
         "<c r='D2' t='b'><v>1</v></c></row></sheetData><m><mergeCell ref='A1:A2'/></m></w>")  # fmt: skip
BOOK_OF_CELLS = zipped(**{
    "xl/workbook.xml": "<w xmlns:r='r'><sheets><sheet name='Rates' r:id='s' state='hidden'/></sheets></w>",
    "xl/_rels/workbook.xml.rels": "<R><L Id='s' Target='worksheets/a.xml'/><L Id='t' Target='sharedStrings.xml'/>"
                                  "<L Id='f' Target='styles.xml'/></R>",
    "xl/sharedStrings.xml": "<s><si><t>Ada</t><rPh><t>eida</t></rPh></si></s>", "xl/worksheets/a.xml": CELLS,
    "xl/styles.xml": "<s><numFmts><numFmt numFmtId='164' formatCode='00000'/></numFmts><cellXfs><xf/><xf numFmtId='9'/>"
                     "<xf numFmtId='14'/><xf numFmtId='164'/></cellXfs></s>"})  # fmt: skip
SHEET = ("<o xmlns:table='t' xmlns:text='x'><body><spreadsheet><table:table table:name='Pools'><table:table-row>"
         "<table:table-cell table:number-rows-spanned='2'><text:p>North</text:p></table:table-cell><table:table-cell>"
         "<text:p>8-12</text:p></table:table-cell></table:table-row><table:table-row><table:covered-table-cell/>"
         "<table:table-cell table:number-columns-repeated='2'/><table:table-cell><text:p>14</text:p></table:table-cell>"
         "</table:table-row></table:table></spreadsheet></body></o>")  # fmt: skip
PAGE = """<title>Tabs</title><h1>Tabs</h1><script type='application/ld+json'>{"a": "b"}</script>
<div hidden>Another panel.</div><!-- a remark --><template>A template.</template>
<p><ruby>漢<rp>(</rp><rt>kan</rt>字<rt>ji</rt></ruby> E = <math><msup><mi>m</mi><mn>2</mn></msup></math>
<table><tr><td rowspan=2>A<td colspan=2>1<td>2<tr><td><td><td>3<table><tr><td>x<td>y</table></table>
<details><summary>More</summary>Inner</details><img alt='A red fox'><input type=checkbox checked> Yes
<aside>soft\xadly ﬁne</aside>"""
WHOLE = {
    "numbers.pdf": (TABLE, "\n".join(" | ".join(row) for row in PRINTED), []),
    "paged.pdf": (PAGED, "Yes. Oslo No.\nYes. Lima No.\nYes. Kyiv No.", ["header and footer lines"]),
    "form.pdf": (FORM, "Surname: Oyelaran\n[x] member\nTyped by hand", ["bookmarks"]),
    "chinese.pdf": (WRAPPED, "每年有大批游客来此参观。", []),
    "gbk.txt": ("西湖位于浙江省杭州市。\n每年".encode("gbk"), "西湖位于浙江省杭州市。每年", []),
    "utf-16.txt": ("Plain words without a mark.".encode("utf-16-le"), "Plain words without a mark.", []),
    "broken.txt": ("ä ö ü ".encode() * 20 + b"\xff", None, ["broken letters"]),
    "pools.docx": (NOTED, "North | Monday | 8-12\nNorth | Tuesday |  | 14-18\nSaid a/(bc)\nBy whom.\nTop secret",
                   ["deleted text", "embedded files"]),
    "talk.pptx": (TALK, "Goals\nSell more.\n| East\nQ1 | 10.5\nSpeak up.", []),
    "rates.xlsx": (BOOK_OF_CELLS, "Rates\nAda | 9% | 1932-03-19 | 02134\nAda |  |  | TRUE",
                   ["formulas without a stored value"]),
    "pools.ods": (zipped(**{"content.xml": SHEET}), "Pools\nNorth | 8-12\nNorth |  |  | 14", []),
    "names.csv": (b'name;note\nAda;"a; b"\n;x\n', "name | note\nAda | a; b\n| x", []),
    "dos.txt": ("Größe, Straße, Möhre und Äpfel.".encode("cp850"), "Größe, Straße, Möhre und Äpfel.", []),
    "unix.txt": ("Бассейн открыт по пятницам.".encode("iso8859-5"), "Бассейн открыт по пятницам.", []),
    "asides.rtf": (b"{\\rtf1 A{\\*\\footnote \\{Two\\}{\\b 2}} three.{\\shptxt Box}{\\headerl Head}\\par}",
                   "A three.\n{Two}2\nBox\nHead", []),
    "rich.rtf": (b"{\\rtf1\\ansi Caf\\'e9 \\b noir\\b0.\\par Two.}", "Café noir.\nTwo.", []),
    "rule.md": (b"---\n\nFirst.\n\n---\n\nSecond.\n\n[^1]: Noted\n", "First.\nSecond.\n[^1]: Noted", []),
    "yaml.md": (b"---\ntitle: Whole\ndate: 2020-01-02\n---\nText.\n", "Whole\ndate: 2020-01-02\nText.", []),
    "toml.md": (b"+++\ntitle = 'Whole'\ntags = ['x']\n+++\nText.\n", "Whole\ntags = ['x']\nText.", []),
    "json.md": (b'{\n"title": "Whole"\n}\nText.\n', "Whole\nText.", []),
    "tabs.html": (PAGE.encode(), "Tabs\nAnother panel.\n漢字 (kanji) E = m^2\nA | 1 |  | 2\nA |  |  | 3 x, y\nMore\n"
                  "Inner\nA red fox [x] Yes\nsoftly fine", ["JSON-LD", "comments in the markup", "templates"]),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_all_that_a_file_holds_is_read_or_named(name: str, tmp_path: Path) -> None:
    content, text, left = WHOLE[name]
    (tmp_path / name).write_bytes(content)
    told = read(str(tmp_path / name), KINDS[Path(name).suffix])
    assert told.problems == []
    assert text in (None, "\n".join(said for _, _, said in told.blocks))
    assert sorted(one[0] for one in told.left) == left


def test_what_no_reader_and_no_chunker_keeps_is_named_with_its_first_words() -> None:
    lost, title = "lost words " * 20, "a.pdf, p. 1, Head"
    seen = Read(blocks=[("p", 1, "Kept words.")])
    seen.account([(1, "Kept words."), (2, lost)])
    blocks = [("h", 1, "Head"), ("p", 1, "Kept words."), ("p", 2, lost)]
    assert seen.left == cut_away(blocks, [(title, "Kept words.")], "a.pdf")
    assert [(kind, page, words[:10], letters) for kind, page, words, letters, _ in seen.left] == [
        ("text", 2, "lost words", 180)]  # fmt: skip
    named = loss(Document("a.pdf", letters=seen.letters, left=seen.left))
    assert named
    assert (named.place, named.kind) == ("a.pdf, p. 2", "95% of its text stands in no passage")
    assert cut_away(blocks[:2], [(title, "Kept words.")], "a.pdf") == []


def lying(content: bytes, says: int = 2**31 - 1, place: int = 24) -> bytes:
    """A ZIP whose first file says that it unpacks to 2 GiB; or anything else, at a place of its entry."""
    at = content.index(b"PK\1\2") + place
    return content[:at] + says.to_bytes(4, "little") + content[at + 4 :]


_LAUGHS = "".join(f"<!ENTITY {name} '{f'&{before};' * 20}'>" for before, name in zip("abcdefg", "bcdefgh", strict=True))
LAUGHS = f"<!DOCTYPE x [<!ENTITY a '{'ha' * 30_000}'>{_LAUGHS}]><x>&h;</x>"
"""Entities of entities: 70 TB."""


TROUBLES = {
    "locked.pdf": (pdf(lines("secret"), lock=LOCK), "encrypted"),
    "torn.pdf": (HANDBOOK[: len(HANDBOOK) // 2], "torn"),
    "blank.pdf": (pdf(""), "empty"),
    "scan.pdf": (pdf(lines("A cover sheet."), PICTURE, PICTURE), "scanned"),
    "zip.pdf": (DOCX, "type"),
    "zip.txt": (DOCX, "type"),
    "pdf.docx": (HANDBOOK, "type"),
    "sheet.docx": (zipped(**{"xl/workbook.xml": "<x/>"}), "type"),
    "old.docx": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "encrypted"),
    "noise.md": (bytes(range(256)), "type"),
    "none.txt": (b" \n", "empty"),
    "menu.html": (b"<nav>Home</nav>", "empty"),
    "bomb.docx": (lying(DOCX), "large"),
    "many.epub": (zipped(**{str(number): "" for number in range(10_001)}), "large"),
    "small.odt": (lying(zipped(**{"content.xml": ODT * 9}), 40), "torn"),
    "inner.docx": (zipped(**{"inner.docx": DOCX.decode("latin-1")}), "type"),
    "laughs.docx": (zipped(**{"word/document.xml": LAUGHS}), "torn"),
    "key.odt": (lying(zipped(**{"content.xml": ODT}), 1, place=8), "encrypted"),
    "page.pdf": (HTML, "type"),
    "pages.pdf": (pdf(lines("Said.")).replace(b"/Count 1/", b"/Count 9999/"), "torn"),
    "drm.epub": (zipped(**BOOK, **{"META-INF/encryption.xml": "<x URI='in/a.xhtml'/>"}), "encrypted"),
    "entities.odt": (zipped(**{"content.xml": "<!DOCTYPE x [<!ENTITY a SYSTEM 'file:///etc/passwd'>]><x><p>&a;</p></x>"}),
                     "empty"),
    "huge.txt": (b"word " * 300_000, "large"),
}  # fmt: skip


def test_what_cannot_be_read_is_named_and_the_others_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, store = tmp_path / "docs", tmp_path / "store"
    folder.mkdir()
    store.mkdir()
    (tmp_path / "none").mkdir()
    for name, (content, _) in TROUBLES.items():
        (folder / name).write_bytes(content)
    (folder / "loop").symlink_to(folder)
    (folder / "secret.txt").symlink_to("/etc/passwd")
    Path(os.fsdecode(os.fsencode(folder) + b"/caf\xe9.txt")).write_text("coffee")
    (folder / "z.txt").write_text("The last one.")
    (folder / "zz.txt").write_text("the  last one.")
    os.mkfifo(folder / "pipe.pdf")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(folder / "socket.txt"))
    (folder / "picture.png").write_bytes(b"\x89PNG")
    (folder / ".hidden.txt").write_text("hidden")
    (folder / "gone.txt").write_text("It is deleted after the folder was listed.")
    source = open_source(str(folder), DocumentsConfig(megabytes=1))
    (folder / "gone.txt").unlink()
    found = [(Path(source.files[number]).name, item) for number, _, item in source.items()]
    kinds = {name: item.kind for name, item in found if isinstance(item, Problem)}
    expected = {name: kind for name, (_, kind) in TROUBLES.items()}
    expected |= {"loop": "link", "secret.txt": "link", r"caf\udce9.txt": "name", "zz.txt": "repeated"}
    expected |= {"pipe.pdf": "type", "socket.txt": "type", "gone.txt": "unreadable"}
    assert kinds == expected
    assert source.documents
    assert [one.path for one in source.documents.gave if one.bytes and not one.sha256] == ["huge.txt"], "not hashed"
    assert [item.text for _, item in found if isinstance(item, Passage)] == ["A cover sheet.", "The last one."]
    taken = ingest(source, store, 0.0)
    said = capsys.readouterr().err
    assert (taken.rows, taken.skipped["type"], taken.skipped["scanned"]) == (2, 9, 1)
    assert (
        "index: 31 documents; pages or slides: 10,003; left out: blocks of navigation 1, repeated passages 1\n" in said
    )
    assert "files of other types are not read: .png 1" in said
    assert "2 of 3 pages, from p. 2 on, are pictures without text" in (store / "skipped.jsonl").read_text()
    with pytest.raises(DataError, match="lines above say why no document gives any text"):
        ingest(open_source(str(folder / "torn.pdf")), store, 0.0)
    with pytest.raises(ConfigError, match="is a pipe, a socket or a device; a corpus is read twice"):
        open_source(str(folder / "pipe.pdf"))
    with pytest.raises(ConfigError, match=r"holds no corpus files .* and no documents .*\.pdf"):
        open_source(str(tmp_path / "none"))


STRANGE = {
    "no-rootfile.epub": (zipped(**{"META-INF/container.xml": "<container/>"}), "torn"),
    "no-href.epub": (zipped(**{**BOOK, "in/book.opf": "<package><manifest><item id='a'/></manifest></package>"}), None),
    "struck.html": (b"<p>Now <s>120 EUR</s> 99 EUR.</p>", None),
}


def test_damaged_parts_and_odd_names_are_this_documents_own(tmp_path: Path) -> None:
    """Nothing of them ends the process that reads, nor the build."""
    folder, store = tmp_path / "docs", tmp_path / "store"
    folder.mkdir()
    store.mkdir()
    for name, (content, _) in STRANGE.items():
        (folder / name).write_bytes(content)
    os.symlink("/etc/passwd", os.fsencode(folder) + b"/caf\xe9.txt")
    for shut in (folder / "shut.txt", folder / "shut"):
        shut.write_text("Shut.") if shut.suffix else shut.mkdir()
        shut.chmod(0)
    source = open_source(str(folder))
    found = [(Path(source.files[number]).name, item) for number, _, item in source.items()]
    kinds = {name: item.kind for name, item in found if isinstance(item, Problem)}
    assert kinds[r"caf\udce9.txt"] == "link"
    assert kinds["no-rootfile.epub"] == "torn"
    if os.geteuid():  # root may read all
        assert kinds["shut.txt"] == kinds["shut"] == "unreadable"
    assert "died" not in kinds.values()
    assert "Now 120 EUR 99 EUR." in [item.text for _, item in found if isinstance(item, Passage)]
    assert ingest(open_source(str(folder)), store, 0.0).skipped["link"] == 1


def test_thousands_of_pages_and_of_empty_files_are_read_to_the_last(tmp_path: Path) -> None:
    (docs := tmp_path / "docs").mkdir()
    words = ["".join("abcdefghij"[int(digit)] for digit in str(number)) for number in range(5000)]
    (docs / "long.pdf").write_bytes(pdf(*(lines(f"word {word}.") for word in words)))
    for number in range(3000):
        (docs / f"{number:04}.txt").touch()
    taken = ingest(open_source(str(docs), DocumentsConfig(seconds=250)), tmp_path, 0.0)
    assert taken.skipped == {"empty": 3000}
    with PassageStore(tmp_path) as store:
        passages = list(map(store.read, range(taken.rows)))
    assert " ".join(one.text for one in passages).split() == " ".join(f"word {word}." for word in words).split()
    assert passages[-1].title == "long.pdf, p. 4938"


WORKER = """
import json, struct, sys, time, os
while head := sys.stdin.buffer.read(4):
    path = json.loads(sys.stdin.buffer.read(struct.unpack(">I", head)[0]))["path"]
    if "hangs.txt" in path: time.sleep(600)
    if "kills.txt" in path: os._exit(9)
    told = {"passages": [["", path[-6:]]], "pages": 0, "left": [], "problems": []}
    if "lies.txt" in path: told["passages"] = [["x"]]
    if "grows.txt" in path: open(path, "a").write("more")
    reply = json.dumps(told).encode()
    sys.stdout.buffer.write(struct.pack(">I", len(reply)) + reply)
    sys.stdout.buffer.flush()
"""


def test_a_document_that_hangs_or_kills_its_reader_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    monkeypatch.setattr(documents, "WORKER", tmp_path / "worker.py")
    monkeypatch.setattr(documents, "usable_cores", lambda: 1)
    (tmp_path / "docs").mkdir()
    for name in ("a", "grows", "hangs", "kills", "lies", "z"):
        (tmp_path / "docs" / f"{name}.txt").write_text(name)
    items = [item for _, _, item in open_source(str(tmp_path / "docs"), DocumentsConfig(seconds=6.0)).items()]
    said = [item.kind if isinstance(item, Problem) else item.text for item in items]
    assert said == ["/a.txt", "changed", "slow", "died", "died", "/z.txt"]


BUILT = """
from pathlib import Path
from apps.commands import main
from indexes.commands.build import build_index
from indexes.config import IndexConfig
from indexes.corpora import documents
documents.WORKER, documents.usable_cores = Path("worker.py"), lambda: 1
build_index("docs", Path("killed"), IndexConfig(encoder="none"))
"""
REACHED = (
    "open('reached', 'w'); asks = os.getppid(); [time.sleep(0.1) for _ in iter(lambda: os.getppid() == asks, False)]"
)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_a_build_that_was_ended_goes_on_with_what_it_read(
    end: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(documents, "WORKER", worker := tmp_path / "worker.py")
    (docs := tmp_path / "docs").mkdir()
    for name in ("a", "b", "kills", "z"):
        (docs / f"{name}.txt").write_text(name)
    worker.write_text(WORKER.replace("os._exit(9)", REACHED))
    root = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen([sys.executable, "-c", BUILT], env=root) as first:
        while not Path("reached").exists():
            assert first.poll() is None
            time.sleep(0.1)
        with pytest.raises(ConfigError, match="killed is being built by another process; wait for it or choose"):
            build_index("docs", tmp_path / "killed", IndexConfig(encoder="none"))
        first.send_signal(end)
        assert first.wait() == -end
    (docs / "c.txt").write_text("c")
    for name, does in (("whole", "pass"), ("killed", "path = path.replace('a.txt', 'read anew').replace('b.txt', '')")):
        worker.write_text(WORKER.replace('if "kills.txt" in path: os._exit(9)', does))
        build_index("docs", tmp_path / name, IndexConfig(encoder="none"))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert {path.name for path in whole.iterdir()} == {path.name for path in killed.iterdir()}
    for name in (PASSAGES, OFFSETS, DOCUMENTS):
        assert (whole / name).read_bytes() == (killed / name).read_bytes()
    originals = Originals(killed, str(docs))
    assert [originals.document(f"{name}.txt#1") for name in "abcz"] == [docs / f"{name}.txt" for name in "abcz"]
    assert [originals.document(f"{name}#1") for name in ("", "0", "a.txt0", "zz.txt")] == [None] * 4


def test_passages_end_with_sentences_and_are_of_one_size() -> None:
    said = [f"Dr. Ada Lovelace wrote note {n} on the engine of Mr. Babbage in May 1843, it is good." for n in range(40)]
    passages = list(cut([("h", 1, "Notes"), ("p", 1, " ".join(said[:33])), ("p", 3, " ".join(said[33:]))], "a/b.pdf"))
    sizes = [len(one.text.split()) for one in passages]
    assert sum(sizes) == 40 * 18
    assert MOST * 0.6 < min(sizes) <= max(sizes) <= MOST * 1.3
    assert all(one.text.startswith("Dr. Ada") and one.text.endswith("good.") for one in passages)
    assert [one.title for one in passages][::5] == ["b.pdf, p. 1, Notes", "b.pdf, p. 3, Notes"]
    assert {len(one.text.split()) for one in cut([("p", 0, "word " * 500)], "x")} == {MOST}
    chinese = [one.text for one in cut([("p", 0, "北京是中华人民共和国的首都。" * 60)], "x")]
    assert len(chinese) == 4
    assert all(text.endswith("。") for text in chinese)
    assert [one.text for one in cut([("h", 2, "A title alone")], "x.pptx")] == ["A title alone"]


def test_an_update_reads_and_encodes_what_changed(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def build(name: str = "i", corpus: str = "docs", update: bool = False, **values: object) -> None:
        build_index(str(tmp_path / corpus), tmp_path / name, small(encoder, **values), hybrid=not update, update=update)

    def rows(name: str) -> tuple[list[Passage], np.ndarray]:
        with PassageStore(tmp_path / name) as store:
            dimension = read_index_manifest(tmp_path / name).encoder.dimension
            vectors = VectorFile(tmp_path / name / VECTORS, len(store), dimension)
            return [store.read(row) for row in range(len(store))], vectors.take(np.arange(len(store)))

    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "handbook.pdf").write_bytes(HANDBOOK)
    (docs / "locked.pdf").write_bytes(TROUBLES["locked.pdf"][0])
    for name, text in (("a", "Otters swim."), ("b", "The lek is a currency."), ("c", "otters swim."), ("d", "Gone.")):
        (docs / f"{name}.txt").write_text(text)
    build()
    os.utime(docs / "b.txt", (1, 1))
    capsys.readouterr()
    build(update=True)
    assert "documents" not in capsys.readouterr().err, "its content is the same"
    before = (docs / "a.txt").stat()
    (docs / "a.txt").write_text("Badgers dig.")  # as long as before, and of the same time
    os.utime(docs / "a.txt", ns=(before.st_atime_ns, before.st_mtime_ns))
    (docs / "d.txt").unlink()
    (docs / "0.md").write_text("# New\n\nKepler was born in Weil der Stadt.")
    with pytest.raises(ConfigError, match="of another corpus; --update brings it up to date"):
        build()
    shutil.copytree(docs, tmp_path / "copy")
    build("fresh", "copy")
    capsys.readouterr()
    build(update=True)
    said = capsys.readouterr().err
    assert "index: 6 documents (3 as before); pages or slides: 4; left out: header and footer lines 8\n" in said
    assert "index: 3 of 6 passages have their vectors already" in said
    (kept, vectors), (expected, encoded) = rows("i"), rows("fresh")
    assert kept == expected
    assert np.allclose(vectors, encoded, atol=2e-3)
    manifest = read_index_manifest(tmp_path / "i")
    assert manifest.identity["corpus"] == open_source(str(docs), DocumentsConfig()).identity()
    assert {path.name for path in (tmp_path / "i").iterdir()} == {path.name for path in (tmp_path / "fresh").iterdir()}
    assert ask(tmp_path / "i", "Who was born in Weil der Stadt?")[0][0].id == "0.md#1"
    monkeypatch.setattr(documents, "WORKER", tmp_path / "none.py")
    (docs / "0.md").unlink()
    build(update=True, type="hnsw-sq8")
    assert rows("i")[0] == expected[1:], "nothing is read"


def test_a_document_is_cut_within_the_bounds_in_which_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = Path(documents.__file__).parents[1]
    for name in ("web/extraction_worker.py", "corpora/document_worker.py", "corpora/cutting.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(package / name, tmp_path / name)
    with (tmp_path / "corpora/cutting.py").open("a") as cutting:
        cutting.write("import time\nown = cut_rows\n")
        cutting.write("cut_rows = lambda blocks, path: own(blocks, path) if path != 'hangs.txt' else time.sleep(99)\n")
    monkeypatch.setattr(documents, "WORKER", tmp_path / "corpora/document_worker.py")
    monkeypatch.setattr("indexes.web.extraction.START_SECONDS", 7.0)
    (tmp_path / "docs").mkdir()
    for name in ("hangs", "read"):
        (tmp_path / "docs" / f"{name}.txt").write_text("Lima is a city.")
    items = [item for _, _, item in open_source(str(tmp_path / "docs"), DocumentsConfig(seconds=3.0)).items()]
    assert [item.kind if isinstance(item, Problem) else item.text for item in items] == ["slow", "Lima is a city."]


def test_an_index_needs_no_name_and_folders_of_one_name_get_one_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder, name in (("a/docs", "index-docs"), ("b/docs", "index-docs-2"), ("a/docs", "index-docs")):
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, "note.md").write_text(f"The office {folder} has 340 staff.\n")
        assert main(["index", "build", folder, "--encoder", "none"]) == 0
        said = capsys.readouterr()
        assert said.out.splitlines()[0].startswith(f"1 passage in {tmp_path / 'runs' / name}, ")
        assert len(said.out.splitlines()) == 2
        assert said.err.splitlines()[-1] == f"next: steprag serve runs/{name}"
    assert main(["index", "build", "a/docs", "--encoder", "none", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["passages"] == 1
    assert "next: " not in said.err
