"""Documents that libraries of others write, and what they hold. `benchmarks/documents_soak.py` measures how much of
it is read, and says how these libraries are installed.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import csv
import json
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docx
import xlsxwriter
from ebooklib import epub
from odf.office import Annotation
from odf.opendocument import OpenDocumentSpreadsheet, OpenDocumentText
from odf.table import CoveredTableCell, Table, TableCell, TableRow
from odf.text import H, Note, NoteBody, NoteCitation, P
from pptx import Presentation
from pptx.chart.data import CategoryChartData
from pptx.enum.chart import XL_CHART_TYPE
from reportlab import platypus
from reportlab.lib.styles import ParagraphStyle, getSampleStyleSheet
from reportlab.pdfbase import cidfonts, pdfmetrics
from reportlab.platypus import Paragraph

EACH = 17
"""Documents of a format."""
CHINESE = "西湖位于浙江省杭州市是中国著名的风景名胜区每年有大批游客来此参观湖面平静群山环绕四季景色各不相同"


@dataclass
class Known:
    """What a document holds: words, no one twice, rows of its tables, and runs of Chinese."""

    random: random.Random
    words: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)

    def said(self, count: int) -> str:
        made = [f"{''.join(self.random.choices('bdglmnprstv', k=4))}{len(self.words) + at:x}q" for at in range(count)]
        self.words += made
        return " ".join(made)

    def prose(self) -> list[tuple[str, str]]:
        return [(self.said(3), self.said(60).capitalize() + ".") for _ in range(4)]

    def table(self, size: int = 6) -> list[list[str]]:
        """Rows of four columns; the second and third share their first cell, and one has an empty cell."""
        rows = [[self.said(1) for _ in range(4)]]
        for y in range(size):
            numbers = [f"{self.random.uniform(1, 999):.2f}" for _ in range(3)]
            rows.append(["", numbers[0], "", numbers[2]] if y == 1 else [self.said(1), *numbers])
        self.rows += rows
        return rows

    def chinese(self) -> str:
        self.runs.append("".join(self.random.choices(CHINESE, k=90)) + "。")
        return self.runs[-1]


def make_pdf(path: Path, known: Known, number: int) -> None:
    pdfmetrics.registerFont(cidfonts.UnicodeCIDFont("STSong-Light"))
    styles, flow, fields = getSampleStyleSheet(), list[Any](), known.said(2).split()
    for heading, text in known.prose():
        flow += [Paragraph(heading, styles["Heading2"]), Paragraph(text, styles["BodyText"])]
    rows = known.table(120 if number % 3 == 0 else 6)  # over several pages
    flow.append(
        platypus.Table(rows, repeatRows=1, style=[("SPAN", (0, 1), (0, 2)), ("VALIGN", (0, 0), (-1, -1), "TOP")])
    )
    if number % 3 == 1:
        song = ParagraphStyle("song", fontName="STSong-Light", wordWrap="CJK", fontSize=12, leading=16)
        flow += [platypus.PageBreak(), Paragraph(known.chinese(), song)]

    def framed(canvas: Any, document: Any) -> None:
        canvas.drawString(60, 815, "Handbook")
        canvas.drawString(290, 20, f"Page {document.page}")
        if document.page == 1:
            canvas.acroForm.textfield(name="one", value=fields[0], x=380, y=60, width=150, height=18)
            canvas.textAnnotation(fields[1], Rect=[20, 60, 40, 80])

    platypus.SimpleDocTemplate(str(path)).build(flow, onFirstPage=framed, onLaterPages=framed)


def make_docx(path: Path, known: Known, number: int) -> None:
    document = docx.Document()
    document.sections[0].header.paragraphs[0].text = known.said(2)
    for heading, text in known.prose():
        document.add_heading(heading, 2)
        document.add_paragraph(text)
    document.add_comment(document.add_paragraph(known.said(5)).runs, text=known.said(4), author="Ann")
    rows = known.table()
    _fill(document.add_table(7, 4), rows).text = rows[1][0]
    document.save(str(path))


def _fill(table: Any, rows: list[list[str]]) -> Any:
    """Writes rows into a table of python-docx or python-pptx, and returns the merged cell."""
    for y, row in enumerate(rows):
        for x, text in enumerate(row):
            table.cell(y, x).text = text
    return table.cell(1, 0).merge(table.cell(2, 0)) or table.cell(1, 0)


def make_pptx(path: Path, known: Known, number: int) -> None:
    slides, place = Presentation(), [900_000 * n for n in (1, 2, 6, 3)]
    for heading, text in known.prose():
        slide = slides.slides.add_slide(slides.slide_layouts[1])
        slide.shapes.title.text, slide.placeholders[1].text = heading, text
        slide.notes_slide.notes_text_frame.text = known.said(6)
    data = CategoryChartData()
    data.categories = known.said(2).split()
    data.add_series(known.said(1), (number + 0.5, 2))
    blank = slides.slide_layouts[6]
    slides.slides.add_slide(blank).shapes.add_chart(XL_CHART_TYPE.COLUMN_CLUSTERED, *place, data)
    _fill(slides.slides.add_slide(blank).shapes.add_table(7, 4, *place).table, known.table())
    slides.save(str(path))


def make_xlsx(path: Path, known: Known, number: int) -> None:
    book = xlsxwriter.Workbook(str(path))
    sheet, forms = book.add_worksheet("Rates"), [book.add_format({"num_format": form}) for form in ("@", "0%", "00000")]
    rows = known.table()
    for y, row in enumerate(rows):
        sheet.write_row(y, 0, row)
    sheet.merge_range(1, 0, 2, 0, rows[1][0])
    known.rows.append([known.said(1), f"{number}%", f"{number:05}"])
    for x, value in enumerate((known.words[-1], number / 100, number)):
        sheet.write(7, x, value, forms[x])
    sheet.write_comment(0, 0, known.said(3))
    sheet.insert_textbox(12, 1, known.said(5))
    hidden = book.add_worksheet("Hidden")
    hidden.hide()
    for y, texts in enumerate(known.prose()):
        hidden.write_row(y, 0, texts)
    book.close()


def make_ods(path: Path, known: Known, number: int, document: Any = None) -> None:
    document = document or OpenDocumentSpreadsheet()
    document.body.firstChild.addElement(table := Table(name="T"))
    for y, row in enumerate(known.table()):
        table.addElement(line := TableRow())
        for x, text in enumerate(row):
            spans = {"numberrowsspanned": 2, "numbercolumnsspanned": 1} if (y, x) == (1, 0) else {}
            line.addElement(cell := CoveredTableCell() if (y, x) == (2, 0) else TableCell(**spans))
            if text:
                cell.addElement(P(text=text))
    document.save(str(path))


def make_odt(path: Path, known: Known, number: int) -> None:
    document = OpenDocumentText()
    for heading, text in known.prose():
        document.text.addElement(H(outlinelevel=2, text=heading))
        document.text.addElement(paragraph := P(text=text))
        paragraph.addElement(note := Note(noteclass="footnote"))
        note.addElement(NoteCitation(text="1"))
        note.addElement(body := NoteBody())
        paragraph.addElement(remark := Annotation())
        body.addElement(P(text=known.said(4)))
        remark.addElement(P(text=known.said(2)))
    make_ods(path, known, number, document)


def _html(known: Known) -> str:
    parts = [f"<h2>{heading}</h2><p>{text}</p>" for heading, text in known.prose()]
    parts.append(f"<div hidden>{known.said(8)}</div><details><summary>{known.said(1)}</summary>{known.said(3)}")
    parts.append(
        f"</details><dl><dt>{known.said(1)}</dt><dd>{known.said(4)}</dd></dl><img alt='{known.said(2)}'/><table>"
    )
    for y, row in enumerate(known.table()):
        first = f"<td rowspan='2'>{row[0]}</td>" if y == 1 else f"<td>{row[0]}</td>" * (y != 2)
        parts.append(f"{'<table>' * (y == 0)}<tr>{first}{''.join(f'<td>{text}</td>' for text in row[1:])}</tr>")
    return f"{''.join(parts)}</table><p>{known.chinese()}</p>"


def make_html(path: Path, known: Known, number: int) -> None:
    head = f"<html><head><title>{known.said(3)}</title></head>"
    path.write_text(f"{head}<body>{_html(known)}</body></html>", ("utf-8", "gb18030", "utf-16")[number % 3])


make_xhtml = make_html


def make_epub(path: Path, known: Known, number: int) -> None:
    book = epub.EpubBook()
    book.set_title(known.said(3))
    book.add_author(known.said(2))
    chapters = [epub.EpubHtml(title=f"C{at}", file_name=f"{at}.xhtml", content=_html(known)) for at in range(2)]
    for item in (*chapters, epub.EpubNcx(), epub.EpubNav()):
        book.add_item(item)
    book.toc, book.spine = chapters, ["nav", *chapters]
    epub.write_epub(str(path), book)


def make_md(path: Path, known: Known, number: int) -> None:
    head = ("---\ntitle: {}\n---\n", "+++\ntitle = '{}'\n+++\n", "---\n\n{}\n\n---\n\n")[number % 3]
    table = [f"| {' | '.join(row)} |" for row in known.table()]
    body = [f"## {heading}\n\n{text}" for heading, text in known.prose()]
    body += ["\n".join([table[0], "|---" * 4 + "|", *table[1:]]), f"```\n{known.said(4)}\n```", known.chinese()]
    path.write_text(head.format(known.said(3)) + "\n\n".join(body), "utf-8")


def make_txt(path: Path, known: Known, number: int) -> None:
    text = "\n\n".join([f"{heading}\n\n{text}" for heading, text in known.prose()] + [known.chinese()])
    path.write_bytes(text.encode(("utf-8", "gb18030", "utf-16-le", "utf-16")[number % 4]))


def make_csv(path: Path, known: Known, number: int) -> None:
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, delimiter=",;\t"[number % 3]).writerows(known.table(30))


MAKERS = {name.removeprefix("make_"): value for name, value in list(globals().items()) if name.startswith("make_")}


def make(folder: Path) -> None:
    """Writes the documents, and `known.json` beside them."""
    (folder / "docs").mkdir(parents=True)
    told = {}
    for number in range(EACH * len(MAKERS)):
        known, kind = Known(random.Random(number)), [*MAKERS][number % len(MAKERS)]
        MAKERS[kind](folder / "docs" / f"{number:03}.{kind}", known, number // len(MAKERS))
        told[f"{number:03}.{kind}"] = [known.words, known.rows, known.runs]
    (folder / "known.json").write_text(json.dumps(told))


if __name__ == "__main__":
    make(Path(sys.argv[1]))
