"""Atlas as a folder of documents, and what `steprag index build` and `steprag adapt questions` make of it.

    python -m benchmarks.atlas_documents OUT [--kinds pdf html docx] [--questions 60]

OUT/KIND holds documents of 12 passages each: headings, links, page headers and footers; Chromium prints the PDFs, five
passages a page, the fifth of which ends on the next one. OUT/KIND.map.jsonl says where each passage stands. The table:
passages that come back "whole" in one passage of the index, with "equal" text, under their "title", on their "page";
"more": further passages of the index; "paths": pairs of passages of Atlas's bridge questions that the passage graph
joins. Templates make the questions. "checked": those each hop of which is of a relation that `steprag/atlas/facts.tsv`
knows; "right": each hop is a fact of it, and the only one. "leaked": documents in both training and test questions.
"""

from __future__ import annotations

import argparse
import html
import re
import sys
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from apps.adapt.gates import Hop, MadeQuestion
from apps.adapt.passages import PassageGraph, heading_of
from apps.commands import run as steprag
from indexes.corpora.readers import open_source
from indexes.rows.passage_store import PassageStore
from inference.scoring.tables import markdown
from steprag import atlas
from steprag.records.inputs import read_questions
from steprag.records.jsonl import read_records, read_rows, write_records
from steprag.scores.metrics import normalise
from steprag.types import Passage, Question
from tests.browser import chromium

VOLUME, PAGE = 12, 5
RELATIONS = {"official language": "language", "sole official language": "language", "usual writing system": "script",
             "legal tender": "currency", "currency": "currency", "surface": "area in km²", "population": "population",
             "capital": "capital", "state capital": "capital", "largest city": "largest city",
             "biggest city": "largest city", "most populous city": "largest city", "internet domain": "internet domain",
             "IATA code": "airport code", "number of counties": "counties"}  # fmt: skip
"""Words of Atlas's passages, and the relation of its facts that they stand for."""
_NAME = re.compile(r"[A-Z][\w'-]+(?: [A-Z][\w'-]+)*")
_EDGE = "<div style='font-size: 8px; margin-left: 2cm'>{}</div>"
_HEAD = "Atlas of the world, volume {}"
_W = "xmlns:w='http://schemas.openxmlformats.org/wordprocessingml/2006/main'"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_MAIN = "application/vnd.openxmlformats-officedocument.wordprocessingml"
_RELS = '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'


@dataclass(frozen=True)
class Volume:
    """Passages of one document; `home`: the number of each title's volume, for links."""

    number: int
    passages: tuple[Passage, ...]
    home: Mapping[str, int]

    def pieces(self, text: str) -> Iterator[tuple[str, int | None]]:
        """A text in pieces, each with the number of the volume that it links to."""
        at = 0
        for found in _NAME.finditer(text):
            if found.group() in self.home:
                yield text[at : found.start()], None
                yield found.group(), self.home[found.group()]
                at = found.end()
        yield text[at:], None

    def linked(self, text: str, ending: str) -> str:
        """A text in HTML."""
        return "".join(html.escape(piece) if to is None else f'<a href="volume-{to:03}.{ending}">{piece}</a>'
                       for piece, to in self.pieces(text))  # fmt: skip

    def html(self, *, printed: bool = False) -> str:
        """The document in HTML; `printed`: for PDF, with page breaks in place of navigation."""
        parts, ending = list[str](), "pdf" if printed else "html"
        for number, one in enumerate(self.passages, 1):
            words = one.text.split(" ")
            half = len(words) // 2 if printed and number % PAGE == 0 and number < len(self.passages) else 0
            turned = '<div style="break-before: page"></div>' if half else ""
            before, after = (self.linked(" ".join(each), ending) for each in (words[:half], words[half:]))
            parts.append(f"<h2>{html.escape(one.title)}</h2>\n<p>{before}{turned}{after}</p>\n")
        head, body = _HEAD.format(self.number), "".join(parts)
        links = "".join(f'<li><a href="volume-{number:03}.html">Volume {number}</a></li>' for number in range(1, 9))
        menu, foot = ("", "") if printed else (f"<nav><ul>{links}</ul></nav>", f"<footer>{head}. Imprint</footer>")
        style = "<style>body {font: 11pt/1.4 serif} h2 {font-size: 15pt}</style>" if printed else ""
        return (f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{head}</title>{style}</head>\n'
                f"<body>{menu}<h1>{head}</h1>\n{body}{foot}</body></html>")  # fmt: skip

    def docx(self, path: Path) -> None:
        """The document with the parts that Word writes, made by hand."""
        links: dict[str, str] = {}

        def said(text: str, style: str = "") -> str:
            runs = []
            for piece, to in [(text, None)] if style else self.pieces(text):
                run = f'<w:r><w:t xml:space="preserve">{html.escape(piece, quote=False)}</w:t></w:r>'
                key = links.setdefault(f"volume-{to:03}.docx", f"rId{9 + len(links)}") if to is not None else ""
                runs.append(f'<w:hyperlink r:id="{key}">{run}</w:hyperlink>' if key else run)
            styled = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
            return f"<w:p>{styled}{''.join(runs)}</w:p>"

        body = said(_HEAD.format(self.number), "Title")
        body += "".join(said(one.title, "Heading1") + said(one.text) for one in self.passages)
        styles = "".join(f'<w:style w:type="paragraph" w:styleId="{key}"><w:name w:val="{name}"/></w:style>'
                         for key, name in (("Title", "Title"), ("Heading1", "heading 1")))  # fmt: skip
        own = {"header": "hdr", "footer": "ftr", "styles": "styles"}
        edges = "".join(f'<w:{kind}Reference w:type="default" r:id="{kind}"/>' for kind in ("header", "footer"))
        rels = "".join(f'<Relationship Id="{kind}" Type="{_OFFICE}/{kind}" Target="{kind}.xml"/>' for kind in own)
        rels += "".join(f'<Relationship Id="{key}" Type="{_OFFICE}/hyperlink" Target="{name}" TargetMode="External"/>'
                        for name, key in links.items())  # fmt: skip
        types = "".join(f'<Override PartName="/word/{name}.xml" ContentType="{_MAIN}.{kind}+xml"/>' for name, kind in
                        (("document", "document.main"), *((name, name) for name in own)))  # fmt: skip
        first = f'<Relationship Id="rId1" Type="{_OFFICE}/officeDocument" Target="word/document.xml"/>'
        texts = {"header": said(_HEAD.format(self.number), "Header"), "footer": said("Page 1", "Footer"),
                 "styles": styles}  # fmt: skip
        files = {
            "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types">{_RELS}{types}</Types>',
            "_rels/.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">{first}</Relationships>',
            "word/_rels/document.xml.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">{rels}</Relationships>',
            "word/document.xml": f'<w:document {_W} xmlns:r="{_OFFICE}"><w:body>{body}<w:sectPr>{edges}</w:sectPr>'
                                 "</w:body></w:document>",
            **{f"word/{name}.xml": f"<w:{own[name]} {_W}>{text}</w:{own[name]}>" for name, text in texts.items()},
        }  # fmt: skip
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in files.items():
                archive.writestr(name, f'<?xml version="1.0" encoding="UTF-8" standalone="yes"?>{text}')


def export(out: Path, kind: str) -> Path:
    """Writes all documents of a kind, and the map beside their folder; returns the folder."""
    passages = [one for _, _, one in open_source("atlas").items() if isinstance(one, Passage)]
    home = {one.title: at // VOLUME + 1 for at, one in enumerate(passages)}
    volumes = [Volume(at // VOLUME + 1, tuple(passages[at : at + VOLUME]), home)
               for at in range(0, len(passages), VOLUME)]  # fmt: skip
    folder = out / kind
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"volume-{each.number:03}.{kind}" for each in volumes]
    if kind == "pdf":
        _print(volumes, paths)
    for each, path in zip(volumes, paths, strict=True):
        if kind == "docx":
            each.docx(path)
        elif kind == "html":
            path.write_text(each.html(), encoding="utf-8")
    write_records(out / f"{kind}.map.jsonl", (
        {"id": one.id, "document": path.name, "page": at // PAGE + 1 if kind == "pdf" else 0}
        for each, path in zip(volumes, paths, strict=True) for at, one in enumerate(each.passages)))  # fmt: skip
    return folder


def _print(volumes: list[Volume], paths: list[Path]) -> None:
    foot = _EDGE.format('Page <span class="pageNumber"></span> of <span class="totalPages"></span>')
    with chromium() as browser:
        page = browser.new_page()
        for each, path in zip(volumes, paths, strict=True):
            page.set_content(each.html(printed=True))
            page.pdf(path=path, format="A4", margin={"top": "2cm", "bottom": "2cm", "left": "2cm", "right": "2cm"},
                     display_header_footer=True, header_template=_EDGE.format(_HEAD.format(each.number)),
                     footer_template=foot)  # fmt: skip


def returned(index: Path, table: Path) -> dict[str, str]:
    """What of Atlas's passages an index of the documents holds, and which paths its graph has."""
    golden = {one.id: one for _, _, one in open_source("atlas").items() if isinstance(one, Passage)}
    with PassageStore(index) as store:
        found = list(map(store.read, range(len(store))))
        graph = PassageGraph(store, {"train": 1}, seed=0)
    texts, rows, counts = [" ".join(one.text.split()) for one in found], dict[str, int](), Counter[str]()
    at = {text: row for row, text in enumerate(texts)}
    for _, each in read_rows(table):
        gold = golden[each["id"]]
        row = at.get(gold.text, next((row for row, text in enumerate(texts) if gold.text in text), None))
        if row is not None:
            one, rows[gold.id] = found[row], row
            page = f"{each['document']}, p. {each['page']}," if each["page"] else each["document"]
            counts.update(whole=1, equal=one.text == gold.text, title=heading_of(one) == gold.title,
                          page=one.title.startswith(page))  # fmt: skip
    asked = [one for name in ("train", "dev", "test") for one in read_questions(atlas.path(name))]
    pairs = [one.metadata["supporting_ids"] for one in asked if one.metadata["type"] == "bridge"]
    there = [[rows[key] for key in pair] for pair in pairs if all(key in rows for key in pair)]
    joined = sum(bool(graph.joins(a, b) or graph.joins(b, a)) for a, b in there)
    shares = {name: f"{counts[name] / len(golden):.2%}" for name in ("whole", "equal", "title", "page")}
    return {**shares, "more": str(len(found) - len({*rows.values()})), "paths": f"{joined / len(pairs):.1%}"}


def right_of(run: Path) -> dict[str, str]:
    """Of the questions of a run of `adapt questions` with templates, those that Atlas's facts bear out or deny."""
    ends = defaultdict[tuple[str, str, str], set[str]](set)
    for line in atlas.FACTS.read_text(encoding="utf-8").splitlines():
        subject, relation, value = line.split("\t")
        ends["of", relation, _bare(subject)].add(_bare(value))
        ends["with", relation, _bare(value)].add(_bare(subject))

    def told(hop: Hop) -> bool | None:
        way, relation, known = hop.relation
        there = ends[way, RELATIONS.get(relation, ""), _bare(known)]
        return there == {_bare(hop.answer)} if there else None

    kept = {one.id: one for one in read_records(run / "questions.jsonl", Question)}
    made = [one for one in read_records(run / "made.jsonl", MadeQuestion) if one.id in kept]
    hops = [[told(hop) for hop in one.draft.hops] for one in made if one.draft]
    right, wrong = sum(map(all, hops)), sum(False in each for each in hops)
    documents = [{key.rpartition("#")[0] for one in made if one.split == split for key in one.passages}
                 for split in ("train", "test")]  # fmt: skip
    return {"questions": str(len(kept)), "checked": str(right + wrong), "right": f"{right / (right + wrong):.1%}",
            "leaked": str(len(documents[0] & documents[1]))}  # fmt: skip


def _bare(name: str) -> str:
    """A name without what tells it from others of the same name, and a value without its unit."""
    name = re.sub(r",(?= ).*|^(country of|the) | (language|script|square kilometres|counties)$", "", name)
    return normalise(name)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--kinds", nargs="+", choices=("pdf", "html", "docx"), default=["pdf", "html", "docx"])
    parser.add_argument("--questions", type=int, default=60)
    given = parser.parse_args(argv)
    rows = list[dict[str, str]]()
    for kind in given.kinds:
        folder, index, made = export(given.out, kind), given.out / f"{kind}-index", given.out / f"{kind}-questions"
        codes = [steprag(["index", "build", "--corpus", str(folder), "--out", str(index), "--encoder", "none"]),
                 steprag(["adapt", "questions", "--index", str(index), "--out", str(made), "--writer", "templates",
                          "--questions", str(given.questions), "--test", str(given.questions)])]  # fmt: skip
        if any(codes):
            return max(codes)
        rows.append({"kind": kind, **returned(index, given.out / f"{kind}.map.jsonl"), **right_of(made)})
    sys.stdout.write(markdown([*rows[0]], ([*row.values()] for row in rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
