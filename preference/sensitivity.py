"""`steprag pairs sensitivity`: what another discount would do to the pairs: which flip, which survive.

Only the rules that build pairs from a tree are run, once for each alpha: a pair that two of them have the other way
round has flipped; one that all have has survived.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from preference.build import manifests_of, one_prompt, read_trees, trees_file
from preference.config import PairsStageConfig
from preference.pairs import build_pairs
from preference.reward_diagnostics import share
from preference.rewards import rewards
from steprag.agent.grammar import Grammar
from steprag.cli import guarded
from steprag.config import add_options, config_from, parse_arguments
from steprag.errors import ConfigError
from steprag.files import dump_line, file_hash, write_json, written_whole
from steprag.progress import say
from steprag.runs import open_run
from steprag.tree import Tree

ALPHAS = (0.7, 0.8, 0.9, 0.95, 1.0)


def main(argv: list[str]) -> int:
    """Runs `steprag pairs sensitivity`; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="steprag pairs sensitivity", description="Which pairs another discount would flip, lose or add."
    )
    parser.add_argument(
        "--trees", required=True, nargs="+", metavar="RUN", help="run folders of steprag generate, or files of trees"
    )
    parser.add_argument(
        "--alphas", nargs="+", type=float, default=list(ALPHAS), metavar="A", help=f"discounts {ALPHAS}"
    )
    parser.add_argument("--out", metavar="DIR", help="where the report goes [sensitivity in the first RUN]")
    parser.add_argument("--json", action="store_true", help="the report as JSON on standard output")
    add_options(parser, PairsStageConfig)
    given = parse_arguments(parser, argv)
    config = config_from(PairsStageConfig, given)
    if bad := [alpha for alpha in given.alphas if not 0 < alpha <= 1]:
        raise ConfigError(f"--alphas: {bad[0]} is not above 0 and at most 1")
    trees = [trees_file(each) for each in given.trees]
    out = Path(given.out) if given.out else trees[0].parent / "sensitivity"
    report = sensitivity(config, trees, out, tuple(sorted({*given.alphas, config.reward.alpha})))
    sys.stdout.write(json.dumps(report, indent=2) + "\n" if given.json else table(report))
    say(f"pairs sensitivity: every pair that is not in all of them: {out / 'changes.jsonl'}")
    return 0


@dataclass(frozen=True)
class Preference:
    """Two siblings and, by alpha, the margin of the first over the second: negative where the second is chosen, None
    where they are no pair.
    """

    nodes: tuple[int, int]
    actions: tuple[str, str]
    depth: int
    margins: dict[float, float | None]


def sensitivity(config: PairsStageConfig, trees: list[Path], out: Path, alphas: tuple[float, ...]) -> dict[str, Any]:
    """Compares the pairs of all alphas with those of the configured one; writes and returns the report."""
    identity = {
        "trees": [file_hash(file) for file in trees],
        "alphas": alphas,
        **config.model_dump(include={"reward", "pairs"}),
    }
    _, grammar = one_prompt(trees, manifests_of(trees))
    with open_run(out, "sensitivity", identity=identity, config=config.model_dump()) as run:
        base = config.reward.alpha
        tally: dict[float, Counter[str]] = {alpha: Counter() for alpha in alphas}
        survive = Counter[str]()
        with written_whole(out / "changes.jsonl") as stream:
            for tree, tree_hash in read_trees(*trees):
                survive["trees"] += 1
                for found in preferences(tree, config, alphas, grammar):
                    _count(found, base, tally, survive)
                    if len({_sign(margin) for margin in found.margins.values()}) > 1:
                        where = {"question_id": tree.question.id, "tree": tree_hash}
                        stream.write(dump_line({**where, **vars(found)}) + "\n")
        report = {
            "alpha": base,
            "trees": survive["trees"],
            "pairs": survive["pairs"],
            "survive_every_alpha": share(survive["all"], survive["pairs"]),
            "flip_at_some_alpha": share(survive["flip"], survive["pairs"]),
            "alphas": [{"alpha": alpha, **_row(counts)} for alpha, counts in tally.items()],
        }
        write_json(out / "report.json", report)
        run.set(counts=dict(survive))
    return report


def preferences(
    tree: Tree, config: PairsStageConfig, alphas: tuple[float, ...], grammar: Grammar
) -> Iterator[Preference]:
    """Every two siblings that some alpha makes a pair of."""
    found: dict[tuple[int, int], Preference] = {}
    for alpha in alphas:
        reward = config.reward.model_copy(update={"alpha": alpha})
        for pair in build_pairs(tree, "", rewards(tree, reward, grammar), config.pairs):
            chosen, rejected = pair.chosen_node or 0, pair.rejected_node or 0
            first, second = sorted((chosen, rejected))
            actions = (tree.nodes[first].action or "", tree.nodes[second].action or "")
            new = Preference((first, second), actions, pair.depth, dict.fromkeys(alphas))
            kept = found.setdefault(new.nodes, new)
            kept.margins[alpha] = (pair.margin or 0.0) * (1 if chosen == first else -1)
    yield from found.values()


def _sign(margin: float | None) -> int:
    return 0 if margin is None else 1 if margin > 0 else -1


def _count(found: Preference, base: float, tally: dict[float, Counter[str]], survive: Counter[str]) -> None:
    here = _sign(found.margins[base])
    signs = {alpha: _sign(margin) for alpha, margin in found.margins.items()}
    for alpha, sign in signs.items():
        tally[alpha]["pairs"] += sign != 0
        tally[alpha]["kept"] += sign != 0 and sign == here
        tally[alpha]["flipped"] += sign * here < 0
        tally[alpha]["lost"] += here != 0 and sign == 0
        tally[alpha]["added"] += here == 0 and sign != 0
    if here:
        survive["pairs"] += 1
        survive["all"] += set(signs.values()) == {here}
        survive["flip"] += -here in signs.values()


def _row(counts: Counter[str]) -> dict[str, int]:
    return {name: counts[name] for name in ("pairs", "kept", "flipped", "lost", "added")}


def table(report: dict[str, Any]) -> str:
    """The report for a person."""
    lines = [f"{report['trees']:,} trees; against alpha {report['alpha']:g}, which makes {report['pairs']:,} pairs", ""]
    names = ("pairs", "kept", "flipped", "lost", "added")
    lines.append(f"{'alpha':>7}" + "".join(f"{name:>10}" for name in names))
    lines += [f"{row['alpha']:>7g}" + "".join(f"{row[name]:>10,}" for name in names) for row in report["alphas"]]
    for name, words in (("survive_every_alpha", "survive every alpha"), ("flip_at_some_alpha", "flip at some alpha")):
        part = report[name]
        if part["count"]:
            lines.append(f"{part['share']:.1%} {words} (95 % interval {part['low']:.1%} to {part['high']:.1%})")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
