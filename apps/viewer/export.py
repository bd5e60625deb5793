"""One file that opens without a server: the page's scripts, styles and data in a single HTML document.

Scripts stay modules. Each becomes a `data:` address under a name that an import map knows, and what it imports is named
likewise; nothing is bundled or changed otherwise. Data are pieces of JSON, compressed, that the page unpacks when it
wants them (`page/pack.js`), so a hundred trees are small enough to mail.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

from apps.viewer.answers import Address, Answers
from apps.viewer.quality import CLOCKS
from preference.view_rewards import label_of
from steprag.errors import ConfigError, DataError
from steprag.records.jsonl import written_whole
from steprag.web.app import IMPORT, asset, beside, modules

PAGE = Path(__file__).parent / "page"
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
RECORDS = 500
"""Pairs, predictions and episodes of a file that the export holds at most."""
_STYLE = re.compile(r'<link rel="stylesheet" href="([^"]+)">')
_CLASSIC = re.compile(r'<script src="([^"]+)"></script>')
_MODULE = re.compile(r'<script type="module" src="([^"]+)"></script>')
_ICON = re.compile(r'<link rel="icon" href="([^"]+)"')


def write_export(answers: Answers, out: Path, trees: int) -> int:
    """Writes the file, whole or not at all; returns its size in bytes. `trees`: of each run at most so many."""
    text = exported(answers, trees)
    with written_whole(out) as stream:
        stream.write(text)
    return out.stat().st_size


def exported(answers: Answers, trees: int, *, framed: bool = False) -> str:
    """The text of the file. `framed`: for a frame's `srcdoc`, where links would else lead to the page around it."""
    page = document({name: _packed(value) for name, value in _pieces(answers, trees)})
    # before the policy, which forbids such an element from there on
    return page.replace("<head>", '<head><base href="about:srcdoc">', 1) if framed else page


def document(pieces: dict[str, str]) -> str:
    """The page with everything in it."""
    shell = (PAGE / "index.html").read_text(encoding="utf-8")
    named = {f"@{address}": _module(address) for address in modules(PAGE)}
    imports = json.dumps({"imports": named})
    data = json.dumps(pieces).replace("<", "\\u003c")
    head = f'<meta charset="utf-8">\n    <meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    shell = shell.replace('<meta charset="utf-8">', head)
    shell = _STYLE.sub(lambda found: f"<style>{asset(PAGE, found[1])}</style>", shell)
    shell = _CLASSIC.sub(lambda found: f"<script>{asset(PAGE, found[1])}</script>", shell)
    shell = _ICON.sub(lambda found: f'<link rel="icon" href="{_inline(asset(PAGE, found[1]), "image/svg+xml")}"', shell)
    module = (
        f'<script type="importmap">{imports}</script>\n    <script type="application/json" id="pack">{data}</script>'
    )
    return _MODULE.sub(lambda found: f'{module}\n    <script type="module">import "@/{found[1]}";</script>', shell)


def _module(address: str) -> str:
    """A module as a data: address; what it imports is named as the import map has it."""
    text = IMPORT.sub(lambda found: f'{found[1]}"@{beside(address, found[2])}"', asset(PAGE, address))
    return _inline(text, "text/javascript")


def _inline(text: str, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(text.encode()).decode()}"


def _packed(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return base64.b64encode(gzip.compress(text, mtime=0)).decode()


def _pieces(answers: Answers, most: int) -> Iterator[tuple[str, Any]]:
    """Every piece by the name that the page asks for it."""
    told = answers.runs()
    told["rule"] = _rule(answers, told["rules"])
    told["runs"] = [{**run, "error": None} for run in told["runs"]]  # it may name paths and hosts
    yield "runs", told
    where: dict[str, Any] = {}
    pairs: dict[str, Any] = {}
    for run in told["runs"]:
        key = run["key"]
        for kind, files in run["files"].items():
            for file in range(len(files)):
                rows = _all_rows(answers, key, kind, file, most if kind == "trees" else RECORDS)
                yield f"rows/{kind}/{key}/{file}", rows
                if kind == "trees":
                    for row in rows["rows"]:
                        tree = _tree(answers, Address(key, kind, row["line"], row["id"], file))
                        where[tree["tree"]["hash"]] = {"run": key, "line": row["line"], "id": row["id"]}
                        pairs[tree["tree"]["hash"]] = answers.pairs_of(tree["tree"]["hash"])
                        yield f"tree/{key}/{row['line']}", tree
                else:
                    at = [Address(key, kind, row["line"], row["id"], file) for row in rows["rows"]]
                    yield f"records/{kind}/{key}/{file}", {one.line: answers.record(one) for one in at}
        if "pairs" in run["kinds"]:
            yield f"marks/{key}", answers.marks(key) | {"file": None}  # no path of this machine leaves it
            yield f"kinds/{key}", answers.kinds(key)
        if CLOCKS.keys() & set(run["kinds"]):
            yield f"quality/{key}", answers.quality(key)
        if "series" in run["kinds"]:
            yield f"series/{key}", answers.series(key)
    yield "where", where
    yield "pairs_of", pairs
    yield from _comparisons(answers, [run["key"] for run in told["runs"] if run["stage"] == "infer"])


def _rule(answers: Answers, rules: list[str]) -> str:
    """The rule that the first folder of pairs was labelled by; the default where there is none, or it has weights."""
    manifests = [run.manifest()[0] for run in answers.folders.values()]
    configs = [manifest.get("config") or {} for manifest in manifests if manifest.get("stage") == "pairs"]
    names = [label.get("name") for label in map(label_of, configs) if isinstance(label, dict)]
    return next((name for name in names if name in rules), rules[0])


def _all_rows(answers: Answers, run: str, kind: str, file: int, most: int) -> dict[str, Any]:
    told, rows = answers.rows(run, kind, file, 0), []
    generation = told["generation"]
    while True:
        rows += told["rows"]
        if len(rows) >= most or told["complete"]:
            return told | {"rows": rows[:most], "complete": True}
        told = answers.rows(run, kind, file, len(rows))
        if told["generation"] != generation:  # its index did not hold: from the first row on
            return _all_rows(answers, run, kind, file, most)


def _tree(answers: Answers, at: Address) -> dict[str, Any]:
    tree = answers.tree(at)
    nodes = [answers.node(at, node) for node in range(len(tree["nodes"]["parent"]))]
    for node in nodes:
        del node["prompt"]  # the parent's next_prompt
    return {"tree": tree, "nodes": nodes, "rewards": answers.every_reward(at)}


def _comparisons(answers: Answers, runs: list[str]) -> Iterator[tuple[str, Any]]:
    """Of two runs one way round: the page turns the differences."""
    for keys in [*((key,) for key in runs), *combinations(runs, 2)]:
        try:
            yield f"comparison/{'/'.join(keys)}", answers.comparison(keys)
        except (ConfigError, DataError):
            continue  # runs of other questions have no table; the page says that the file does not hold it
