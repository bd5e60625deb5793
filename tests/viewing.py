"""Run folders for tests of the viewer, and the viewer itself as a process."""

from __future__ import annotations

import gzip
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from apps.commands import main
from inference.scoring.scores import HARNESS
from steprag.batch.results import Results
from steprag.batch.tree_results import TREES
from steprag.records.jsonl import write_records
from steprag.runs.run import open_run
from steprag.tree import TREE_FORMAT, Node, Tree
from steprag.types import Found, Message, Prediction, Question, Step, Usage
from tests.fakes import BY_ROLLOUTS

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).parent.parent
SHIPPED = ROOT / "steprag" / "atlas" / "trees.jsonl.gz"
MARKUP = '<img src="x" onerror="document.title=1"><script>document.title=1</script>'
"""Words that must stay words wherever they are shown."""
TOKEN = "token-of-the-test"


def shipped_lines(count: int) -> list[str]:
    """The lines of the first shipped trees."""
    with gzip.open(SHIPPED, "rt", encoding="utf-8") as stream:
        return [line for line, _ in zip(stream, range(count), strict=False)]


def shipped_run(folder: Path, count: int) -> Path:
    """A run folder of shipped trees, with the index that `steprag generate` writes."""
    with open_run(folder, "generate", identity={}, config={}):
        (folder / "trees.jsonl").write_text("".join(shipped_lines(count)), encoding="utf-8")
        Results(folder / "trees.jsonl", TREES)
    return folder


def made_tree(size: int, name: str = "made-1", words: str = "step") -> Tree:
    """A tree of so many nodes whose shape a search could have: some levels, wide where it is deep."""
    rng = random.Random(size)
    prompt = (Message(role="user", content=f"Question: {words}?"),)
    nodes = [Node(0, None, 0, visits=size, value=0.5, messages=prompt)]
    while len(nodes) < size:
        parent = nodes[rng.randrange(max(0, len(nodes) - 400), len(nodes))]
        while parent.terminal or parent.depth > 6:
            parent = nodes[parent.parent or 0]
        ends = rng.random() < 0.15
        action = "answer" if ends else ("query", "evidence")[parent.depth % 2]
        score = float(rng.random() < 0.4)
        nodes.append(Node(
            len(nodes), parent.id, parent.depth + 1, action, f"{words} {len(nodes)}", f"{words} {len(nodes)}",
            visits=rng.randrange(6), value=rng.random(), terminal=ends, prediction_f1=score if ends else None,
            passages=(Found("7", words, 0.5),) if action == "query" else (), messages=prompt,
        ))  # fmt: skip
    question = Question(name, f"{words}: which of {size}?", (words,), {"type": "made"})
    return Tree(TREE_FORMAT, question, "enough", Usage(3, 30, 20, 0), tuple(nodes), 5)


def made_run(folder: Path, *trees: Tree) -> Path:
    """A run folder of these trees."""
    with open_run(folder, "generate", identity={}, config={}):
        append_trees(folder, *trees)
    return folder


def append_trees(folder: Path, *trees: Tree) -> None:
    """What a running search does."""
    with Results(folder / "trees.jsonl", TREES).appending() as add:
        for tree in trees:
            add(tree)


def answered_run(folder: Path, said: Sequence[str | None]) -> Path:
    """A run of `steprag infer` whose right answers are "lek"."""
    rows = []
    for number, words in enumerate(said):
        steps = (Step("query", "So the next query is <query> lek </query>", "lek"), Step("answer", "…", words or ""))
        rows.append(Prediction(
            f"q{number}", f"Which currency is number {number}?", ("lek",), words, steps[: 2 if words else 1],
            ((Found("7", "The Lek", 0.9),),), Usage(2, 100, 10, 0), "answer" if words else "no_action",
        ))  # fmt: skip
    identity = {"questions": "abc", "index": "i1", "harness": HARNESS}
    with open_run(folder, "infer", identity=identity, config={}):
        write_records(folder / "predictions.jsonl", rows)
    return folder


def usual_runs(folder: Path) -> list[Path]:
    """The shipped trees, pairs of them, and two runs of inference, before and after a training."""
    shipped_run(folder / "trees", 100)
    made = ["--trees", str(folder / "trees"), "--out", str(folder / "pairs"), "--card.plots", "false", *BY_ROLLOUTS]
    assert main(["pairs", *made]) == 0
    answered_run(folder / "before", ["lek", "lek", "sol", None, "sol"])
    answered_run(folder / "after", ["sol", "lek", "lek", "sol", "the old lek"])
    return [folder / name for name in ("trees", "pairs", "before", "after")]


@contextmanager
def viewer(*runs: Path) -> Iterator[str]:
    """`steprag view` as a process; the address with the token."""
    command = [sys.executable, "-m", "apps.commands", "view", *map(str, runs), "--port", "0"]
    environment = {**os.environ, "STEPRAG_TOKEN": TOKEN}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            link = process.stdout.readline().strip()
            assert link.startswith("http://127.0.0.1:"), link
            yield link
        finally:
            process.terminate()
            process.wait(20)


def at(page: Page, link: str, place: str) -> None:
    """Opens a place of the viewer's page; the token comes first."""
    page.goto(link)
    page.wait_for_selector("nav a")
    page.goto(link.split("#")[0] + place)
