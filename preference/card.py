"""The data card: README.md of a pairs folder in the form of the Hugging Face hub, from report.json and leakage.json."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

LICENCES = {
    "hotpotqa": "CC BY-SA 4.0",
    "2wikimultihopqa": "Apache-2.0",
    "musique": "CC BY 4.0",
    "popqa": "MIT",
    "atlas": "see steprag/atlas/SOURCES.md",
    "wikipedia text": "CC BY-SA",
}
"""Licences of well-known sources, as their publishers state them, by the name that questions give."""

SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
PRODUCTS = {
    "pairs": "preference pairs: `prompt`, `chosen`, `rejected` as chat messages (TRL's conversational form)",
    "sft": "steps of right episodes: `prompt`, `completion`",
    "steps": "every rewarded step with its `value`, for a critic",
    "rankings": "siblings of one prompt, best first, with their `rewards`",
}
PLOTS = {
    "margins": "margins", "depths": "depths", "actions": "actions", "lengths": "lengths of the steps",
    "tokens": "tokens against the cut-off", "calibration": "belief against outcome",
    "reward_against_judge": "reward against judge",
}  # fmt: skip


def card(report: dict[str, Any], plots: list[str], leakage: dict[str, Any] | None) -> str:
    """The card's text; the same report gives the same bytes."""
    said = report["config"]["card"]
    parts = [
        "---\n" + yaml.safe_dump(_front(report), sort_keys=False, allow_unicode=True) + "---",
        f"# {said['name']}",
        "Step-level data for an agent that searches, keeps evidence and answers, made by StepRAG. Rows name their "
        "question, golden answers, tree and nodes, rewards and visits as far as the source tells them: they can "
        "be re-scored, filtered and checked.",
        _section("What is in it", _contents(report)),
        _section("Where it comes from", _origin(report)),
        _section("How the pairs were made", _rules(report)),
        _section("What the pairs are like", _pairs(report, plots)),
        _section("How far the rewards can be trusted", _credit(report.get("credit"))),
        _section("How far the policy's belief can be trusted", _calibration(report.get("calibration"), plots)),
        _section("Overlap with evaluation sets", _leakage(leakage)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _front(report: dict[str, Any]) -> dict[str, Any]:
    config, counts = report["config"], report["counts"]
    kinds = [kind for kind in report["products"] if counts.get(f"{kind}.train") or counts.get(f"{kind}.val")]
    rows = sum(counts.get(f"{kind}.{split}", 0) for kind in kinds for split in ("train", "val"))
    files = [
        {
            "config_name": kind,
            "data_files": [
                {"split": hub, "path": f"{kind}.{split}.jsonl"}
                for split, hub in (("train", "train"), ("val", "validation"))
                if counts.get(f"{kind}.{split}")
            ],
        }
        for kind in kinds
    ]
    return {
        "pretty_name": config["card"]["name"],
        "license": config["card"]["license"],
        "language": ["en"],
        "task_categories": ["question-answering", "text-generation"],
        "tags": ["preference", "dpo", "process-supervision", "agentic-rag", "steprag"],
        "size_categories": [next((name for limit, name in SIZES if rows < limit), "n>1M")],
        "configs": files,
    }


def _section(title: str, body: str) -> str:
    return f"## {title}\n\n{body}" if body else ""


def _contents(report: dict[str, Any]) -> str:
    counts = report["counts"]
    rows: list[tuple[Any, ...]] = [
        (f"`{kind}.*.jsonl`", counts.get(f"{kind}.train", 0), counts.get(f"{kind}.val", 0), PRODUCTS[kind])
        for kind in report["products"]
    ]
    rows.append(("`questions.jsonl`", counts.get("questions", 0), "", "the questions, with all they came with"))
    return _table(("file", "train", "validation", "a row is"), rows)


def _origin(report: dict[str, Any]) -> str:
    source, said = report["source"], report["config"]["card"]["sources"]
    lines = [f"- Questions: {_named(source.get('question_sources', {}))}"]
    names = " ".join(source.get("question_sources", {})).lower()
    licences = {name: licence for name, licence in LICENCES.items() if name in names} | said
    stated = "; ".join(f"{name} {licence}" for name, licence in sorted(licences.items()))
    lines.append(f"- Licences of the sources, as stated by their publishers: {stated or 'not known'}")
    runs = source.get("runs", [])
    for number, run in enumerate(runs, 1):
        lines += _generation(run, f" of run {number}" if len(runs) > 1 else "")
    if report.get("prompt"):
        lines.append(f"- Prompt profile: {_named(report['prompt'])}")
    if "file" in source:
        lines.append(f"- Imported from: {_named(source['file'])}")
    if source.get("lacks"):
        lines.append(f"- What that file does not tell: {', '.join(source['lacks'])}")
    lines.append(f"- Seed of this data set: {report['config']['seed']}")
    if usage := source.get("usage"):
        lines.append(f"- What the trees took: {_named(usage)}")
    return "\n".join(lines)


def _generation(run: dict[str, Any], which: str) -> list[str]:
    """What a generation run's facts (`preference.report.generation_facts`) say, a line each."""
    shown: dict[str, str] = {}
    for role in ("policy", "judge"):
        if model := run.get(role):
            kept = ("model", "adapter", "temperature", "top_p", "top_k", "min_p", "max_tokens")
            shown[role] = _named({key: model[key] for key in kept if key in model})
    shown |= {key: _named(run[key]) for key in ("episode", "search", "reward", "retriever") if key in run}
    shown |= {"index": f"fingerprint {run['index']}"} if "index" in run else {}
    shown |= {"seed": str(run["seed"])} if "seed" in run else {}
    shown |= {"cost": _named(run["spent"])} if run.get("spent") else {}
    return [f"- {key.capitalize()}{which}: {text}" for key, text in shown.items()]


def _rules(report: dict[str, Any]) -> str:
    rows = [(row["rule"], row["before"], row["after"], row["before"] - row["after"]) for row in report["rules"]]
    table = _table(("rule or filter, in order", "before", "after", "dropped"), rows)
    reward = report["config"].get("label") or report["config"].get("reward")
    if reward is None:
        return "The source decided which steps are pairs; these filters came after it.\n\n" + table
    intro = f"Reward `{reward['name']}`, metric `{reward['metric']}`, alpha {reward['alpha']}" + (
        f", mix {_named(reward['mix'])}." if reward["name"] == "mixed" else "."
    )
    return intro + "\n\n" + table


def _pairs(report: dict[str, Any], plots: list[str]) -> str:
    pairs = report["pairs"]
    actions = list(pairs["actions"])
    by_depth = [(depth, *(row.get(action, 0) for action in actions), sum(row.values()))
                for depth, row in pairs["depths"].items()]  # fmt: skip
    total = ("all", *pairs["actions"].values(), pairs["pairs"])
    lengths, tokens = pairs["lengths"], pairs["tokens"]
    spread = [("margin", pairs["margins"]), ("chosen, characters", lengths["chosen"]),
              ("rejected, characters", lengths["rejected"])]  # fmt: skip
    if tokens:
        spread.append((f"prompt and longer step, tokens (cut-off {tokens['cutoff']})", tokens))
    rows = [
        (name, *(_figure(summary[key]) for key in ("mean", "median", "p99", "greatest"))) for name, summary in spread
    ]
    parts = [
        _table(("depth", *actions, "all"), [*by_depth, total]),
        _table(("", "mean", "median", "99 % below", "greatest"), rows),
        f"The chosen step is the shorter in {lengths['chosen_is_shorter']:,} pairs and the longer in "
        f"{lengths['chosen_is_longer']:,}.",
        "\n".join(f"![{PLOTS[name]}](plot_{name}.png)" for name in PLOTS if name in plots and name != "calibration"),
    ]
    return "\n\n".join(parts)


def _credit(credit: dict[str, Any] | None) -> str:
    if credit is None:
        return "The source has no trees, so nothing can be said of its rewards."
    trees = credit["trees"]
    steps = [
        (row["action"] or "other", row["depth"], row["steps"],
         *(_figure(row.get(key)) for key in ("reward", "answers_below", "standard_error")),
         *(_share(row.get(key)) for key in ("gap_above_its_error", "halves_agree", "first_sampled_is_better")))
        for row in credit["steps"]
    ]  # fmt: skip
    agreement = [(row["signals"], row["action"] or "other", row["depth"], _share(row)) for row in credit["agreement"]]
    return "\n\n".join(
        [
            f"Trees whose answers are all worth the same, and so teach nothing: {_share(trees['without_contrast'])} "
            f"({_named({k: v for k, v in trees.items() if k != 'without_contrast' and v})}).",
            "Steps by action and depth: mean reward, answers below, standard error; then of comparisons of siblings "
            "the share whose gap exceeds its standard error, on which two halves of the rollouts agree, and that the "
            "sibling sampled first wins (half, where the order of sampling does not matter). Early steps are judged by "
            "answers far below them; where the halves agree little more than half the time, their pairs are noise.",
            _table(("action", "depth", "steps", "reward", "answers", "error",
                    "gap > error", "halves agree", "first wins"), steps),
            "Share of sibling comparisons that two signals order alike, with 95 % intervals:" if agreement else "",
            _table(("signals", "action", "depth", "agree"), agreement) if agreement else "",
        ]
    ).strip()  # fmt: skip


def _calibration(calibration: dict[str, Any] | None, plots: list[str]) -> str:
    if not calibration:
        return ""
    kinds = [(kind, row["answers"], f"{row['right']:.0%}", f"{row['believed']:.0%}", _figure(row["brier"]),
              _figure(row["brier_of_the_mean"])) for kind, row in calibration.items()]  # fmt: skip
    curve = [(kind, f"{point['from']:g} to {point['to']:g}", f"{point['believed']:.3f}", _share(point))
             for kind, row in calibration.items() for point in row["curve"]]  # fmt: skip
    return "\n\n".join(
        [
            "Answers that the search played, by the probability that the policy gave the golden answer where they were "
            "given. A Brier score below that of always saying the mean says that belief tells something; labels by "
            "`gain` rest on it.",
            _table(("questions", "answers", "right", "believed", "Brier", "Brier of the mean"), kinds),
            _table(("questions", "belief", "its mean", "right, with 95 % interval"), curve),
            "![belief against outcome](plot_calibration.png)" if "calibration" in plots else "",
        ]
    ).strip()


def _leakage(found: dict[str, Any] | None) -> str:
    if found is None:
        return "Not checked. `steprag pairs leakage --pairs DIR --against FILE …` does."
    rows = [
        (f"`{file['file']}`", file["questions"], *(file["found"].get(kind, 0) for kind in found["kinds"]))
        for file in found["files"]
    ]
    parts = [_table(("evaluation file", "questions", *found["kinds"]), rows)]
    parts += [f"**{warning}**" for warning in found["warnings"]]
    parts.append("Every match is listed in `leakage.json`.")
    return "\n\n".join(parts)


def _table(head: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += [
        "| " + " | ".join(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row) + " |" for row in rows
    ]
    return "\n".join(lines)


def _named(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items() if value is not None)


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"


def _share(row: dict[str, Any] | None) -> str:
    if not row or row["share"] is None:
        return "–"
    return f"{row['share']:.0%} ({row['low']:.0%} to {row['high']:.0%} of {row['count']:,})"
