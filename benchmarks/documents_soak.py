"""200 documents of 12 formats that other people's libraries write, and the share of their words that passages hold.

    python -m venv .venv-peers/soak
    .venv-peers/soak/bin/pip install -c requirements.txt reportlab python-docx python-pptx xlsxwriter odfpy ebooklib \\
        'markitdown[pdf,docx,pptx,xlsx]'
    .venv-peers/soak/bin/python benchmarks/documents_made.py /tmp/soak        # the documents, and what they hold
    .venv-peers/soak/bin/python benchmarks/documents_soak.py markitdown /tmp/soak
    .venv/bin/python -m benchmarks.documents_soak measure /tmp/soak              # both, side by side

Words are made and each stands once, so that a word found is a word read. A document has headings, paragraphs, a table
with a cell merged over two rows and an empty cell, and what its format has beside: notes, comments, charts, forms,
hidden sheets. A row counts where it stands in one line, each text in its column; a cell that is merged over rows may
stand in each of them or in the first. Chinese is looked for as a run without blanks.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from pathlib import Path


def markitdown(folder: Path) -> None:
    """What the peer reads, by file."""
    from markitdown import MarkItDown, MarkItDownException  # pyright: ignore[reportMissingImports]

    reader, said = MarkItDown(), {}
    for path in sorted((folder / "docs").iterdir()):
        try:
            said[path.name] = reader.convert(str(path)).text_content
        except MarkItDownException:
            said[path.name] = ""
    (folder / "markitdown.json").write_text(json.dumps(said))


def found(text: str, words: list[str], rows: list[list[str]], runs: list[str]) -> list[int]:
    """Words found, words, rows found with their columns, rows."""
    there, whole = set(re.findall(r"\w+", text.lower())), 0
    lines = {tuple(cell.strip() for cell in line.strip().strip("|").split("|")) for line in text.splitlines()}
    for at, row in enumerate(rows):
        merged = row[0] == "" and (tuple(row[1:]) in lines or (rows[at - 1][0], *row[1:]) in lines)
        whole += merged or tuple(row) in lines
    chinese = sum(run in text for run in runs)
    return [sum(word in there for word in words) + chinese, len(words) + len(runs), whole, len(rows)]


def measure(folder: Path) -> None:
    """The table: shares of words, and of rows with their columns."""
    from indexes.corpora.readers import open_source
    from steprag.types import Passage

    told, said = json.loads((folder / "known.json").read_text()), defaultdict[str, str](str)
    for _, _, one in open_source(str(folder / "docs")).items():
        if isinstance(one, Passage):
            said[one.id.rpartition("#")[0]] += f"{one.title}\n{one.text}\n"
    readers = {"passages": said, "markitdown": json.loads((folder / "markitdown.json").read_text())}
    titles = "".join(f" {name}: words | rows |" for name in readers)
    sys.stdout.write(f"| format |{titles}\n|---|{'---|---|' * len(readers)}\n")
    for kind in sorted({name.rpartition(".")[2] for name in told}):
        cells = [kind]
        for said in readers.values():
            counts = [found(said.get(name, ""), *told[name]) for name in told if name.endswith(f".{kind}")]
            got, of, whole, rows = map(sum, zip(*counts, strict=True))
            cells += [f"{got / of:.1%}", f"{whole / rows:.1%}" if rows else "–"]
        sys.stdout.write(f"| {' | '.join(cells)} |\n")


if __name__ == "__main__":
    {"markitdown": markitdown, "measure": measure}[sys.argv[1]](Path(sys.argv[2]))
