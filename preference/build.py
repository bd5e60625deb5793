"""`steprag pairs`: the trees of a run to pairs and supervised steps, split by question into train and validation."""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from preference.config import PairsStageConfig
from preference.pairs import build_pairs, build_trajectories
from preference.rewards import spre
from steprag.cli import guarded
from steprag.config import add_options, config_from, parse_arguments
from steprag.errors import ConfigError
from steprag.files import dump_line, existing, file_hash, from_dict, line_hash, read_rows, written_whole
from steprag.progress import say
from steprag.runs import open_run, read_manifest
from steprag.types import Pair, Trajectory, Tree


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="steprag pairs", description="Trees to preference pairs and supervised steps."
    )
    parser.add_argument(
        "--trees", required=True, metavar="RUN", help="run folder of steprag generate, or a trees.jsonl"
    )
    parser.add_argument("--out", metavar="DIR", help="where the pairs go [RUN/pairs]")
    add_options(parser, PairsStageConfig)
    arguments = parse_arguments(parser, argv)
    config = config_from(PairsStageConfig, arguments)
    trees = existing(arguments.trees, "trees")
    trees = existing(trees / "trees.jsonl", "trees of the run") if trees.is_dir() else trees
    return build(config, trees, Path(arguments.out) if arguments.out else trees.parent / "pairs")


def build(config: PairsStageConfig, trees: Path, out: Path) -> int:
    """Writes pairs.{train,val}.jsonl, sft.{train,val}.jsonl and a manifest into `out`; returns the exit code."""
    source = read_manifest(trees.parent) if (trees.parent / "manifest.json").exists() else {}
    identity = {"trees": file_hash(trees), **config.model_dump()}
    with open_run(out, "pairs", identity=identity, config=config.model_dump()) as run:
        names = [f"{kind}.{split}.jsonl" for kind in ("pairs", "sft") for split in ("train", "val")]
        counts: Counter[str] = Counter()
        with ExitStack() as stack:
            streams = {name: stack.enter_context(written_whole(out / name)) for name in names}
            for tree, tree_hash in _trees(trees):
                counts["trees"] += 1
                split = _split(tree.question.id, config)
                for record in _records(tree, tree_hash, config):
                    kind = "pairs" if isinstance(record, Pair) else "sft"
                    streams[f"{kind}.{split}.jsonl"].write(dump_line(record) + "\n")
                    counts[f"{kind}.{split}"] += 1
                    counts[f"{kind}.action.{record.action}"] += 1
            if not counts["trees"]:
                raise ConfigError(f"{trees} holds no trees; run steprag generate first")
        run.set(counts=dict(counts), prompt=source.get("identity", {}).get("prompt"))
    _report(counts, out)
    return 0


def _trees(path: Path) -> Iterator[tuple[Tree, str]]:
    """Each tree with the hash of its line, streamed."""
    for number, row in read_rows(path):
        tree = from_dict(Tree, row, path, number)
        yield tree, line_hash(dump_line(tree))


def _records(tree: Tree, tree_hash: str, config: PairsStageConfig) -> list[Pair | Trajectory]:
    rewards = spre(tree, config.reward.alpha)
    return [*build_pairs(tree, tree_hash, rewards, config.pairs), *build_trajectories(tree, config.sft)]


def _split(question_id: str, config: PairsStageConfig) -> str:
    """train or val, from the question's id alone, so that a question never changes sides when others are added."""
    digest = hashlib.sha256(f"{config.seed}/{question_id}".encode()).digest()
    return "val" if int.from_bytes(digest[:8]) / 2**64 < config.validation else "train"


def _report(counts: Counter[str], out: Path) -> None:
    def by_action(kind: str) -> str:
        prefix = f"{kind}.action."
        found: dict[str, Any] = {key[len(prefix) :]: n for key, n in sorted(counts.items()) if key.startswith(prefix)}
        return ", ".join(f"{action} {n}" for action, n in found.items()) or "none"

    say(
        f"pairs: {counts['pairs.train']} + {counts['pairs.val']} pairs (train + validation; {by_action('pairs')}), "
        f"{counts['sft.train']} + {counts['sft.val']} supervised steps ({by_action('sft')}) in {out}"
    )
    if not counts["pairs.train"]:
        say("pairs: no pair to train on: no siblings differ by the margin; search more, hotter, or lower pairs.margin")


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
