"""The figures of several runs as tables: every mean, the completions by action, and what is the matter with answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from inference.quality import FIGURES, errors_of, gain, how_counted, values_of, written_by
from inference.runs_compared import Scored
from inference.scores import ERRORS


def quality_of(run: Scored, base: Scored) -> dict[str, Any]:
    """All that is told of a run's answers: `figures`, `written` (completions by action), `errors`, `counted_with`, and
    `gains`: every figure less that of `base`, on the same questions; none for the base itself.
    """
    scores = list(run.scores.values())
    gains = {} if run is base else {name: _gain(name, run, base) for name in run.figures}
    return {
        "figures": run.figures,
        "gains": {name: one for name, one in gains.items() if one},
        "written": written_by(scores),
        "errors": errors_of(scores),
        "kinds": ERRORS,
        "counted_with": how_counted(run.bert),
    }


def _gain(name: str, run: Scored, base: Scored) -> dict[str, Any] | None:
    kind = next(one for one in FIGURES if one.name == name)
    if name == "bertscore" and run.bert != base.bert:
        return None  # of two models: no difference
    return gain(values_of(kind, run.scores.values(), run.texts), values_of(kind, base.scores.values(), base.texts))


def quality_tables(quality: Mapping[str, dict[str, Any]]) -> str:
    """Markdown: the figures with their intervals and differences from the first run, completions, errors; `quality`
    holds what `quality_of` tells of every run, by its name.
    """
    names, told = list(quality), list(quality.values())
    named = [kind for kind in FIGURES if any(kind.name in one["figures"] for one in told)]
    parts = [
        _table(["figure (95 % interval; less the first run)", *names, "means"],
               [[kind.label, *(_figure(one, kind.name) for one in told), kind.definition] for kind in named]),
        _table(["completions that follow the grammar, %", *names], _by_action([one["written"] for one in told])),
        _table(["predictions by error", *names, "means"],
               [[kind, *(_share(one["errors"], kind) for one in told), means] for kind, means in ERRORS.items()
                if any(kind in one["errors"] for one in told)]),
    ]  # fmt: skip
    notes = [f"{name}: {words}" for name, one in quality.items() for words in _notes(one)]
    return "".join(f"\n{part}" for part in parts) + "".join(f"\n{note}\n" for note in notes)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _figure(told: dict[str, Any], name: str) -> str:
    one, gained = told["figures"].get(name), told["gains"].get(name)
    if one is None:
        return ""
    shown = _shown(one["unit"])
    text = f"{shown(one['value'])} ({shown(one['low'])} to {shown(one['high'])}), n {one['n']}"
    if not gained:
        return text
    return f"{text}; {shown(gained['value'], '+')} ({shown(gained['low'], '+')} to {shown(gained['high'], '+')})"


def _shown(unit: str) -> Callable[..., str]:
    scale, digits = (100, 1) if unit == "share" else (1, 2)
    return lambda value, sign="": f"{scale * value:{sign}.{digits}f}"


def _by_action(each: list[dict[str, Any]]) -> list[list[str]]:
    actions = list(dict.fromkeys(one["action"] for told in each for one in told["actions"]))
    parts = [{one["action"]: one for one in told["actions"]} for told in each]
    rows = [["all", *(_kept(told) for told in each)]]
    return rows + [[action, *(_kept(part.get(action)) for part in parts)] for action in actions]


def _kept(one: dict[str, Any] | None) -> str:
    if not one or not one["n"]:
        return ""
    reasons = "".join(f", {reason} {count}" for reason, count in one["reasons"].items())
    return f"{100 * one['value']:.1f} ({100 * one['low']:.1f} to {100 * one['high']:.1f}), n {one['n']}{reasons}"


def _share(errors: dict[str, int], kind: str) -> str:
    count = errors.get(kind, 0)
    return f"{count} ({100 * count / max(1, sum(errors.values())):.1f} %)"


def _notes(told: dict[str, Any]) -> list[str]:
    counted, notes = told["counted_with"], []
    if "missing" in counted:
        notes.append(counted["missing"])
    if "bertscore" in counted:
        bert = counted["bertscore"]
        notes.append(f"BERTScore by {bert['model']}, layer {bert['layer']}, weights {bert['weights']}")
    return notes
