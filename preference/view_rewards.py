"""What the viewer shows of a tree: the rewards of its steps under a rule, and what became of every two siblings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any, get_args

from preference.config import PairsConfig, PairsStageConfig, Part
from preference.filters import checks, content_reader
from preference.labels.estimates import Rewards
from preference.pairs import Rated, build_pairs, ordered_by_reward, pair_of, prompts, rules_of
from preference.rewards import rewards
from steprag.agent.facts import facts_about
from steprag.agent.grammar import Grammar
from steprag.config.load import leaves
from steprag.errors import ConfigError, quoted
from steprag.records.jsonl import line_hash
from steprag.records.training_rows import Pair
from steprag.records.yaml_files import shaped
from steprag.tree import Tree


def rule_names() -> list[str]:
    """The names of the reward rules that need no weights, the default first."""
    return ["evidence", *get_args(Part)]


def label_of(config: Mapping[str, Any]) -> Any:
    """The section `label` of a pairs folder's configuration; those of earlier versions call it `reward`."""
    return config.get("label") or config.get("reward")


def known_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """What decides the pairs of a folder, by its configuration, without the keys that only another version knows."""
    known = {key for key, _ in leaves(PairsStageConfig)}
    sections = {"label": label_of(config),
                "pairs": config.get("pairs"), "filters": config.get("filters")}  # fmt: skip
    return {
        name: {key: one for key, one in section.items() if f"{name}.{key}" in known}
        for name, section in sections.items()
        if isinstance(section, dict)
    }


def view_rewards(tree: Tree, line: str, grammar: Grammar, options: Mapping[str, Any]) -> dict[str, Any]:
    """Rewards by node id with their standard errors, and a row for every two siblings that could be a pair.

    `line` is the tree's own in its file. `options` are sections of `steprag pairs`, such as a pairs folder's own
    configuration. A row's `rule` names what dropped the pair, None where it passed every rule and filter that looks at
    one pair alone. Raises ConfigError where the options are none.
    """
    config = shaped(PairsStageConfig, options, "reward rule")
    if config.label.own:  # named by a request, or by a folder that may be a stranger's
        raise ConfigError(f"reward rule: {quoted(config.label.own[0])} is somebody's code, which is not run to look at "
                          "a tree; choose another rule")  # fmt: skip
    facts = facts_about(tree, grammar, grounded=config.label.grounded)
    estimates = rewards(facts, config.label)
    # no models are loaded for a page, and it shows its marks by itself
    filters = config.filters.model_copy(update={"max_tokens": None, "marked": None})
    passing = checks(filters, grammar, content_reader(grammar))
    rows = []
    for pair, rule in fates(facts.tree, line_hash(line), estimates, config.pairs):
        dropped = rule or next((check.name for check in passing if not check.passes(pair)), None)
        rows.append(
            {"chosen": pair.chosen_node, "rejected": pair.rejected_node, "margin": pair.margin,
             "error": pair.margin_error, "rule": dropped}
        )  # fmt: skip
    fields = {"values": "value", "errors": "error", "bases": "basis"}
    columns = {name: [one and getattr(one, field) for one in estimates] for name, field in fields.items()}
    return {"rule": config.label.name, **columns, "pairs": rows}


def fates(tree: Tree, tree_hash: str, estimates: Rewards, config: PairsConfig) -> Iterator[tuple[Pair, str | None]]:
    """Every two rewarded siblings as the pair that they would make, and the first rule that says no; None where each
    lets it pass. Siblings whose rewards are equal or of different bases prefer nothing: they are left out.
    """
    made = {(pair.chosen_node, pair.rejected_node) for pair in build_pairs(tree, tree_hash, estimates, config)}
    known = frozenset(tree.known or ()) if config.new else frozenset()
    whole = {id(parent) for parent, _ in prompts(tree, estimates, config.unbroken)}
    for parent, siblings in prompts(tree, estimates):
        for one, other in combinations(siblings, 2):
            if one[0].basis != other[0].basis or one[0].value == other[0].value:
                continue
            better, worse = ordered_by_reward(one, other)
            rule = None
            if (better[1].id, worse[1].id) not in made:
                reached = id(parent) in whole
                rule = _objection(better, worse, known, config) if reached else "whole branches"
            yield pair_of(tree, tree_hash, parent, better, worse, config), rule


def _objection(better: Rated, worse: Rated, known: frozenset[int], config: PairsConfig) -> str:
    """The name of the rule that dropped a pair, as `RuleCounts` counts it."""
    objections = (name for name, passes in rules_of(better, worse, known, config) if not passes)
    return next(objections, "cap")
