"""A pairs folder while it is made: records go in, and all its files appear together at the end, or none. Then it may be
published on the Hugging Face hub: nothing is sent unless `--push` names a repository.
"""

from __future__ import annotations

import argparse
import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from preference.config import FolderConfig
from preference.filters import checks, content_reader, open_counter, step_checks
from preference.pairs import RuleCounts
from preference.report.card import report_files, summary
from steprag.agent.grammar import Grammar
from steprag.console.progress import say
from steprag.errors import ConfigError, quoted
from steprag.records.jsonl import dump_line, written_whole
from steprag.records.question_ids import dataset_of
from steprag.records.training_rows import Pair, Ranking, StepLabel, Trajectory
from steprag.runs.run import Run
from steprag.scores.metrics import normalise
from steprag.tree import Node, Tree
from steprag.types import Question

if TYPE_CHECKING:
    from huggingface_hub import HfApi

SPLITS = ("train", "val")
KINDS = {Trajectory: "sft", StepLabel: "steps", Ranking: "rankings"}
FILES = ["*.jsonl", "README.md", "report.json", "leakage.json", "manifest.json", "plot_*.png", "*.yaml"]
"""What is sent of a folder. Locks, metrics and refused rows stay."""
KEPT_BACK = ["metrics.jsonl", "refused.jsonl"]


class PairsFolder:
    """Takes questions and records, filters the pairs, and writes the files. Use as a context manager, and call `finish`
    once everything is in: only then are the pairs selected and written. `counts`, `rules` and `facts` are what its
    report says; the caller adds to them.
    """

    def __init__(self, out: Path, config: FolderConfig, products: tuple[str, ...], grammar: Grammar) -> None:
        from preference.candidates import Candidates  # numpy, which no help needs

        self.out, self.products, self._config = out, products, config
        self.rules = RuleCounts()
        self.facts: dict[str, Any] = {}
        content = content_reader(grammar)
        self._checks, self._counter = checks(config.filters, grammar, content), open_counter(config.filters)
        self._step_checks = step_checks(config.filters, grammar, content)
        self._candidates = Candidates(out, config.seed, self.rules, grammar)
        self._stack = ExitStack()
        self._streams: dict[str, Any] = {}
        self._questions: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        self.sources: Counter[str] = Counter()

    def __enter__(self) -> PairsFolder:
        self._stack.enter_context(self._candidates)
        names = [f"{kind}.{split}" for kind in self.products for split in SPLITS]
        for name in [*names, "questions"]:
            self._streams[name] = self._stack.enter_context(written_whole(self.out / f"{name}.jsonl"))
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def file(self, name: str, mode: str = "w") -> Any:
        """A stream to a further file of the folder."""
        return self._stack.enter_context(written_whole(self.out / name, mode))

    def add(
        self,
        question: Question,
        records: list[Pair] | list[Trajectory] | list[StepLabel] | list[Ranking],
        unsolved: int = 0,
    ) -> None:
        """Takes the records of one kind that a question gave. Questions that gave none are not listed. `unsolved`: as
        `Candidates.add` takes it.
        """
        if self._questions.get(question.id, question.question) != question.question:
            raise ConfigError(
                f"two questions are called {quoted(question.id)}: give each data set a pairs folder of its own, or "
                "make the trees again with steprag generate --dataset_name NAME, which puts the data set into the ids"
            )
        if records and question.id not in self._questions:
            self._questions[question.id] = question.question
            self._write("questions", question)
            self.sources[dataset_of(question) or "not named"] += 1
        split = split_of(question, self._config)
        for record in records:
            if isinstance(record, Pair):
                self._offer(record, split, unsolved)
            else:
                self._write(f"{KINDS[type(record)]}.{SPLITS[split]}", record)

    def exemplary(self, tree: Tree, steps: list[Node]) -> bool:
        """Whether every step of an episode passes the filters that ask what training may imitate; counted."""
        return all(
            self.rules.count(
                f"episode: {check.name}",
                all(
                    check.passes(tree.nodes[step.parent or 0].messages or (), step.text, step.action or "")
                    for step in steps
                ),
            )
            for check in self._step_checks
        )

    def _offer(self, pair: Pair, split: int, unsolved: int) -> None:
        if not all(self.rules.count(check.name, check.passes(pair)) for check in self._checks):
            return
        tokens = self._counter(pair) if self._counter else 0
        most = self._config.filters.max_tokens
        if most is None or self.rules.count("within the cut-off", tokens <= most):
            self._candidates.add(pair, split, tokens, unsolved)

    def _write(self, name: str, record: object) -> None:
        self._streams[name].write(dump_line(record) + "\n")
        self.counts[name] += 1

    def finish(self) -> dict[str, Any]:
        """Writes the pairs that stay; returns what the report says of them."""
        kept = self._candidates.select(self._config.filters, self._config.balance)
        for line, split in self._candidates.lines(kept):
            self._streams[f"pairs.{SPLITS[split]}"].write(line)
            self.counts[f"pairs.{SPLITS[split]}"] += 1
        from preference.candidates import pair_stats

        return pair_stats(self._candidates, kept, self._config.filters.max_tokens)


@contextmanager
def made_folder(
    command: str, run: Run, config: FolderConfig, products: tuple[str, ...], grammar: Grammar, prompt: object
) -> Iterator[PairsFolder]:
    """A pairs folder in the run's own, for the block to fill; then come report, card, plots, the check for leakage and
    the lines that a person reads. `prompt`: the identity of the prompts, None where it is not known.
    """
    with PairsFolder(run.path, config, products, grammar) as folder:
        yield folder
        pairs = folder.finish()
        counts = {**folder.counts, **{f"pairs.action.{name}": count for name, count in pairs["actions"].items()}}
        report = {"config": config.model_dump(mode="json", exclude={"leakage"}), "products": products, "counts": counts,
                  "prompt": prompt, "rules": folder.rules.rows(), "pairs": pairs, **folder.facts}  # fmt: skip
        for name, content in report_files(report, run.path):
            folder.file(name, "w" if isinstance(content, str) else "wb").write(content)
    run.set(counts=counts, prompt=prompt)
    if config.leakage.against:
        from preference.report.leakage import check_folder  # numpy again

        check_folder(run.path, config.leakage)
    say(summary(command, run.path))


def split_of(question: Question, config: FolderConfig) -> int:
    """0 for train, 1 for val, from the question's normalised words alone: equal questions of two data sets lie on one
    side, and none changes sides when others are added.
    """
    digest = hashlib.sha256(f"{config.seed}/{normalise(question.question)}".encode()).digest()
    return int(int.from_bytes(digest[:8]) / 2**64 < config.validation)


def add_push_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--push REPO` and `--public`, which `push_if_asked` reads."""
    parser.add_argument("--push", metavar="REPO", help="publish as OWNER/NAME on the hub; needs HF_TOKEN [off]")
    parser.add_argument("--public", action="store_true", help="with --push: a public repository, not a private one")


def push_if_asked(arguments: argparse.Namespace, folder: Path) -> None:
    """Publishes the folder if the options say so. Raises ConfigError where the hub refuses."""
    if not arguments.push:
        return
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError

    try:
        push(folder, arguments.push, HfApi(), private=not arguments.public)
    except (HfHubHTTPError, HFValidationError, LocalTokenNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(f"--push {arguments.push}: {reason[:200]} (is HF_TOKEN set, and may it write?)") from None


def push(folder: Path, repo: str, hub: HfApi, *, private: bool) -> None:
    """Makes the repository if there is none, and sends the folder's files in one commit."""
    hub.create_repo(repo, repo_type="dataset", private=private, exist_ok=True)
    hub.upload_folder(
        repo_id=repo,
        repo_type="dataset",
        folder_path=str(folder),
        allow_patterns=FILES,
        ignore_patterns=KEPT_BACK,
        commit_message="Preference pairs with their report and card",
    )
    say(f"pairs: {folder} is published as data set {repo}")
