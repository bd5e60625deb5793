"""The site of the documentation: Sphinx over the same Markdown files, as `scripts/site.sh` makes it.

GitHub shows the same files, so what Sphinx alone needs, the list of pages, stands here.
"""

from pathlib import Path

from sphinx.application import Sphinx

project = "StepRAG"
copyright = "the StepRAG authors, Apache-2.0"
extensions = ["myst_parser", "sphinx_llms_txt"]
root_doc = "README"
include_patterns = ["*.md", "docs/**.md", "steprag/atlas/SOURCES.md"]
exclude_patterns = ["AGENTS.md"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = "StepRAG"
llms_txt_summary = "A language model learns to search step by step: tree search, pairs of steps, training, a chat."
PARTS = {
    "How do I …": "docs/tour docs/howto/*",
    "Reference": "docs/*",
    "Figures": "docs/figures/*",
    "Project": "CONTRIBUTING SECURITY CHANGELOG steprag/atlas/SOURCES",
}


def _with_pages(app: Sphinx, page: str, source: list[str]) -> None:
    """Ends the first page with the list of all."""
    if page == root_doc:
        for name, globs in PARTS.items():
            pages = "\n".join(globs.split())
            source[0] += f"\n```{{toctree}}\n:hidden:\n:glob:\n:maxdepth: 1\n:caption: {name}\n\n{pages}\n```\n"


def _with_a_first_page(app: Sphinx, error: Exception | None) -> None:
    """Leads from the site's root to README."""
    html = '<!doctype html><title>StepRAG</title><meta http-equiv="refresh" content="0; url=README/">'
    (Path(app.outdir) / "index.html").write_text(f'{html}<a href="README/">StepRAG</a>\n', encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _with_pages)
    app.connect("build-finished", _with_a_first_page)
