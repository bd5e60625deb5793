"""How well files of one's own are answered with what ships: no language model, the extractive reader.

    python -m benchmarks.own_files benchmarks/own_files/*.txt

A file holds documents of four kinds, written by hand for this (`==== NAME`), each with questions: `? QUESTION => WORDS`
has its answer in the sentence that holds these words, `! QUESTION` has none in any document. The documents of all files
are one index. `held_out.txt`, `fresh.txt` and `last.txt` were written before the reader was run on them; `last.txt` was
run once, after everything was tuned on the others.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import zipfile
from contextlib import aclosing
from dataclasses import dataclass
from html import escape
from pathlib import Path

from indexes import open_retriever
from indexes.commands.build import build_index
from indexes.config import IndexConfig
from inference.config import READS
from steprag.agent.citations import Support
from steprag.agent.environment import Environment
from steprag.agent.open import make_environment
from steprag.agent.profiles import load_profile
from steprag.agent.reader import Reader
from steprag.agent.rollout import episode_of, rollout
from steprag.config.load import load_config
from steprag.config.sections import EpisodeConfig
from steprag.types import Episode

W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
TYPES = ('<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"><Default Extension="xml" '
         'ContentType="application/xml"/><Default Extension="rels" ContentType="application/vnd.openxmlformats-package.'
         'relationships+xml"/><Override PartName="/word/document.xml" ContentType="application/vnd.openxmlformats-'
         'officedocument.wordprocessingml.document.main+xml"/></Types>')  # fmt: skip
RELATIONS = ('<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship '
             'Id="r1" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument" '
             'Target="word/document.xml"/></Relationships>')  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """A question, and the words of the sentence that answers it; None where no document does."""

    question: str
    words: str | None


def read(file: Path, folder: Path) -> list[Asked]:
    """Writes the documents of a file into the folder, and gives the questions."""
    asked: list[Asked] = []
    for part in file.read_text().split("==== ")[1:]:
        name, _, text = part.partition("\n")
        lines = text.splitlines()
        body = [line for line in lines if not line.startswith(("? ", "! "))]
        for line in lines:
            if line.startswith(("? ", "! ")):
                question, _, words = line[2:].partition(" => ")
                asked.append(Asked(question, words or None))
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if body and name.endswith(".docx"):
            write_docx(place, body)
        elif any(body):
            place.write_text("\n".join(body))
    return asked


def write_docx(place: Path, lines: list[str]) -> None:
    """Headings (#), rows of tables (|) and paragraphs as Word has them."""
    said, table = "", False
    for line in lines:
        if table != (table := line.startswith("|")):
            said += "<w:tbl>" if table else "</w:tbl>"
        if table:
            cells = "".join(f"<w:tc>{_paragraph(cell.strip())}</w:tc>" for cell in line.strip("| ").split("|"))
            said += f"<w:tr>{cells}</w:tr>"
        else:
            said += _paragraph(line.lstrip("# "), line.index(" ") if line.startswith("#") else 0)
    said += "</w:tbl>" * table
    with zipfile.ZipFile(place, "w") as archive:
        archive.writestr("[Content_Types].xml", TYPES)
        archive.writestr("_rels/.rels", RELATIONS)
        archive.writestr("word/document.xml", f'<w:document xmlns:w="{W}"><w:body>{said}</w:body></w:document>')


def _paragraph(text: str, heading: int = 0) -> str:
    style = f'<w:pPr><w:pStyle w:val="Heading{heading}"/></w:pPr>' if heading else ""
    return f"<w:p>{style}<w:r><w:t>{escape(text)}</w:t></w:r></w:p>"


async def answer(index: Path, questions: list[Asked]) -> list[Episode]:
    """The reader's episodes."""
    async with aclosing(open_retriever(index)) as retriever:
        environment: Environment = make_environment(
            load_profile("transcript", 0), retriever, EpisodeConfig(top_k=READS)
        )
        reader = Reader(environment.profile.grammar, retriever)
        return [await episode_of(rollout(environment, reader, environment.start(one.question), seed=0))
                for one in questions]  # fmt: skip


def is_right(one: Asked, episode: Episode) -> bool:
    """Whether one of the sentences that were kept holds the answer's words."""
    kept = " ".join(step.content for step in episode.state.steps if step.action == "evidence")
    return one.words is not None and " ".join(one.words.split()) in kept


def main() -> None:
    """Prints the shares, and with --all every miss."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--documents", type=Path, help="a folder of documents that are there already")
    parser.add_argument("--all", action="store_true", help="show what went wrong")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asked = {file: read(file, Path(folder) / "documents" / file.stem) for file in given.files}
        documents = given.documents or Path(folder) / "documents"
        index = build_index(str(documents), Path(folder) / "index", load_config(IndexConfig, None, {})).path
        for file, questions in asked.items():
            sys.stdout.write(report(file.stem, questions, asyncio.run(answer(index, questions)), given.all))


def report(name: str, questions: list[Asked], episodes: list[Episode], misses: bool) -> str:
    """The shares of a file's questions in a line, and the `misses` below it."""
    lacks = [Support().lacks(episode.state) is not None for episode in episodes]
    told = list(zip(questions, episodes, lacks, strict=True))
    right = sum(is_right(one, episode) for one, episode, _ in told)
    wrongly = sum(lack for one, _, lack in told if one.words)
    absent = [lack for one, _, lack in told if not one.words]
    lines = [
        f"{name}: right sentence among the first three {right} of {len(told) - len(absent)}, "
        f"not found {sum(absent)} of {len(absent)}, wrongly not found {wrongly}\n"
    ]
    for one, episode, lack in told if misses else ():
        if not (is_right(one, episode) if one.words else lack):
            lines += [
                f"  {one.question} [{one.words}]\n",
                *(f"    {step.content}\n" for step in episode.state.steps[1:]),
            ]
    return "".join(lines)


if __name__ == "__main__":
    main()
