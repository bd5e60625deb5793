"""What the trees of a run hold, counted without reading them again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from steprag.batch.merge import Merging
from steprag.batch.results import Results
from steprag.batch.tree_results import TREES
from steprag.policy.budget import Spending
from steprag.progress import say
from steprag.runs import Run
from steprag.tree import Tree
from steprag.types import Usage

COUNTED = ("nodes", "known", "refused_steps", "solved", "mixed")


def summarise(run: Run, trees: Iterable[dict[str, Any]], spending: Spending) -> None:
    """Writes the counts of all trees into the manifest and says what the trees hold."""
    counts, ended, usage = dict.fromkeys(("trees", *COUNTED), 0), Counter[str](), Usage()
    for tree in trees:
        counts["trees"] += 1
        for name in COUNTED:
            counts[name] += tree[name]
        ended[tree["ended"]] += 1
        usage += Usage(**tree["usage"])
    run.set(counts=counts, ended_by=dict(sorted(ended.items())), usage=vars(usage))
    if spending.usage.calls:
        run.set(spent=spending.summary())
    known = f" ({counts['known']} known from earlier runs)" if counts["known"] else ""
    cost = f", ${spending.usd:.2f}" if spending.usd else ""
    say(
        f"generate: {counts['trees']} trees ({counts['solved']} solved, {counts['mixed']} with answers of both kinds), "
        f"{counts['nodes']} nodes{known}, {usage.calls} calls, "
        f"{usage.prompt_tokens:,} prompt and {usage.completion_tokens:,} completion tokens{cost}"
    )
    if counts["trees"]:
        listed = ", ".join(f"{name} {count}" for name, count in ended.most_common())
        say(f"generate: ended by {listed}; next: steprag pairs --trees {run.path}")


def _finish(run: Run, trees: Results[Tree], spending: Spending) -> None:
    summarise(run, trees.counts(), spending)


MERGING = Merging("trees.jsonl", TREES, _finish)
