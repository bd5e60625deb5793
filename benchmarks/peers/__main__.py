"""StepRAG beside its peers, each in an environment of its own, on the same inputs, in turn.

    python -m benchmarks.peers [NAME …] [--rounds 3] [--quick] [--sources DIR] [--out docs/figures/peers.md]

NAME is a file of this folder or a path to a file like them: a docstring (what, inputs, what equal means), `UNIT`,
`PEERS`, `prepare(work)`, `ours(work)`, a function named as each peer, `equal(ours, theirs)`. A function returns
`{**told, "units": n, "figures": {…}, …}` with what `measured` told. `HEADLINE` names the figure of the ratio (units a
CPU second else; `wall`, `peak`, or one of "figures"); `LESS = True` where less of it is better. `BOUND`: a side that
is no peer and stays out of the first table. `LIMIT`: seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.peers.pairing import Peer, Told, family, load

HOME = Path(__file__).resolve().parent
ROOT = HOME.parents[1]
ROOMS = ROOT / ".venv-peers"
RUNS = ROOT / "runs" / "peers"
NAMES = ("encode", "retrieve", "vectors", "bm25", "dpo", "grpo", "rollouts", "trees", "chat", "viewer", "resume")
SPEED = "units a CPU second"
PAGE = """# StepRAG beside its peers

`bash scripts/peers.sh` made this page. Each side runs in a process of its own, in turn with the others. Figures are
medians of the rounds; brackets hold the least and the greatest ratio of a round. Above 1 ours is ahead. The first table
names of each comparison the peer that is nearest to ours, or most ahead; where ours is behind comes first. Wall seconds
count what other work took of the machine meanwhile; processor seconds do not. A ratio of one round that is near 1 says
nothing."""
HEAD = ["", "| comparison | peer | figure | ours is better by | equal |", "|---|---|---|---|---|"]


class Unavailable(Exception):
    """Why a side cannot be compared: a row of the page."""


def called(command: list[Any], **variables: str) -> None:
    env, command = {**os.environ, **variables}, [*map(str, command)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"not installed: {last_line(done.stderr)}")


def last_line(text: str) -> str:
    lines = [each for each in text.splitlines() if each.strip() and not each.startswith(("[notice]", "WARNING"))]
    return (lines or ["nothing was said"])[-1].strip()[:300].replace("|", "/")


def installed(name: str, peer: Peer) -> Path:
    """The Python of the peer's environment, which is made where it is missing or was asked otherwise."""
    if peer.script:
        called(["bash", ROOT / peer.script])
        return ROOT / f".venv-{name}" / "bin" / "python"
    if not peer.packages:
        return Path(sys.executable)
    torch = re.findall(r"^torch==\S+", (ROOT / "requirements.txt").read_text(encoding="utf-8"), re.M)[0]
    room, asked = ROOMS / (peer.room or name), f"{torch}\n{peer.packages}"
    python, stamp = room / "bin" / "python", room / "peer.stamp"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != asked:
        sys.stderr.write(f"installing {name} …\n")
        called([sys.executable, "-m", "venv", "--clear", room])
        (room / "torch.txt").write_text(f"{torch}\n", encoding="utf-8")
        pip = [python, "-m", "pip", "install", "--quiet", "--no-compile", "-c", room / "torch.txt"]
        if index := os.environ.get("TORCH_INDEX"):  # as in scripts/setup.sh
            called([*pip, "--index-url", index, torch])
        for line in filter(str.strip, peer.packages.splitlines()):
            called([*pip, *line.split()])
        stamp.write_text(asked, encoding="utf-8")
    return python


def checked_out(source: str, sources: Path | None) -> Path:
    """The files of `OWNER/NAME@COMMIT[:PATH]`, of GitHub or of a folder with checkouts or bare ones `OWNER+NAME`."""
    repository, _, commit = source.partition("@")
    commit, _, path = commit.partition(":")
    name = repository.replace("/", "+")
    files, bare = ROOMS / "sources" / f"{name}@{commit[:12]}", ROOMS / "sources" / f"{name}.git"
    if not (files / ".index").exists():
        near = [*sources.glob(f"{name}/HEAD"), *sources.glob(f"{name}/*/HEAD")] if sources else []
        if near:
            bare = near[0].parent
        else:
            called(["git", "init", "-q", "--bare", bare])
            called(["git", "-C", bare, "fetch", "-q", "--depth", "1", f"https://github.com/{repository}", commit])
        files.mkdir(parents=True, exist_ok=True)
        git = ["git", f"--git-dir={bare}", f"--work-tree={files}", "checkout", "-q", commit, "--", path or "."]
        called(git, GIT_INDEX_FILE=str(files / ".index"))
    return files


def played(python: Path, file: Path, function: str, work: Path, module: ModuleType, **variables: str) -> Told:
    """One side in a process of its own; what it says goes to a log in `work`."""
    out, log = work / f"{function}.json", work / f"{function}.log"
    peer = module.PEERS.get(function, Peer())
    packages = [*re.findall(r"(?:^|\s)([A-Za-z][\w.-]*)(?:\[[^]]*\])?==", peer.packages), function]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": "",
           "OMP_NUM_THREADS": "1", "PYTHONPATH": "", **variables}  # fmt: skip
    out.unlink(missing_ok=True)
    limit, command = getattr(module, "LIMIT", 900), [python, HOME / "pairing.py", file, function, work, out, *packages]
    with log.open("w") as lines:
        process = subprocess.Popen(command, env=env, cwd=work, stdout=lines, stderr=lines, start_new_session=True)
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"not run: took more than {limit} s") from None
        finally:
            if process.poll() is None:
                for each in family(process.pid):
                    with suppress(ProcessLookupError):
                        os.kill(each, signal.SIGKILL)
                process.wait()
    if process.returncode:
        raise Unavailable(f"not run: {last_line(log.read_text(errors='replace'))} (exit {process.returncode})")
    return json.loads(out.read_text(encoding="utf-8"))


def compare(file: Path, work: Path, rounds: int, sources: Path | None) -> None:
    """Each round to a file beside `work`, so that none is lost.

    `{"rounds": {side: [told]}, "equal": {peer: what}, "why": {peer: reason}, "loads": [of a round]}`.
    """
    module, told = load(file), Told(rounds={"ours": []}, equal={}, why={}, loads=[])
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    ways = {}
    for name, peer in module.PEERS.items():
        try:
            python = installed(name, peer)
            ways[name] = python, {"PEERS_SOURCE": str(checked_out(peer.source, sources))} if peer.source else {}
        except Unavailable as error:
            told["why"][name] = str(error)
    played(Path(sys.executable), file, "prepare", work, module, PYTHONPATH=str(ROOT))
    for _ in range(rounds):
        told["loads"].append(os.getloadavg()[0])
        mine = played(Path(sys.executable), file, "ours", work, module, PYTHONPATH=str(ROOT))
        for name, (python, variables) in [*ways.items()]:
            try:
                result = played(python, file, name, work, module, **variables)
                told["equal"][name] = module.equal(mine, result)
                told["rounds"].setdefault(name, []).append(kept(result))
            except (Unavailable, AssertionError) as error:
                told["why"][name] = str(error) if isinstance(error, Unavailable) else f"not equal: {error}"
                told["rounds"].pop(name, None)
                del ways[name]
        told["rounds"]["ours"].append(kept(mine))
        work.with_suffix(".json").write_text(json.dumps(told, indent=1), encoding="utf-8")


def kept(result: Told) -> Told:
    """Without what only `equal` needs."""
    return {key: result[key] for key in ("wall", "cpu", "peak", "units", "figures", "versions") if key in result}


def value(result: Told, name: str) -> float:
    """At least a little, so that ratios are told of nothing too."""
    found = {SPEED: result["units"] / max(result["cpu"], 0.01), **result, **result.get("figures", {})}
    return max(found[name], 1e-9)


def compared(module: ModuleType, told: Told) -> dict[str, tuple[float, str]]:
    """Of each peer how much better ours is: of the medians, and the same as text with the range of the rounds."""
    headline, less, ours = getattr(module, "HEADLINE", SPEED), getattr(module, "LESS", False), told["rounds"]["ours"]
    found = {}
    for name in told["rounds"].keys() - {"ours"}:
        pairs = [[value(each, headline) for each in sides] for sides in zip(ours, told["rounds"][name], strict=True)]
        pairs.append([statistics.median(side) for side in zip(*pairs, strict=True)])
        *rounds, middle = (theirs / mine if less else mine / theirs for mine, theirs in pairs)
        spread = f"{min(rounds):.2f} to {max(rounds):.2f}" if len(rounds) > 1 else "one round"
        found[name] = middle, f"{middle:.2f} ({spread})"
    return found


def named(module: ModuleType, name: str, result: Told) -> str:
    """A peer with the versions of its own packages, else with the commit of its source."""
    own = {each.lower(): f"{each} {v}" for each, v in reversed(result["versions"].items())}
    own = [shown for each, shown in own.items() if name.replace("_", "-") in each]
    _, _, commit = module.PEERS[name].source.partition("@") if name in module.PEERS else ("", "", "")
    return ", ".join(own) or f"{name} {commit[:7]}".strip()


def first(file: Path, told: Told) -> tuple[float, str]:
    """The row of the first table: the peer that is nearest to ours or most ahead of it."""
    module = load(file)
    found = compared(module, told) if told["rounds"] else {}
    found.pop(getattr(module, "BOUND", ""), None)
    if not found:
        return 0, f"| [{file.stem}](#{file.stem}) | no peer ran | | | |"
    name = min(found, key=lambda each: found[each][0])
    who, what = named(module, name, told["rounds"][name][0]), getattr(module, "HEADLINE", SPEED)
    cells = [who, what.replace("units", module.UNIT), found[name][1], told["equal"][name]]
    return found[name][0], f"| [{file.stem}](#{file.stem}) | {' | '.join(cells)} |"


def section(file: Path, told: Told) -> list[str]:
    """Lines of the page: a row a side."""
    module = load(file)
    title, *rest = (module.__doc__ or "").strip().splitlines()
    lines = ["", f"## {file.stem}", "", title, ""]
    if not told["rounds"]:
        return [*lines, told["why"]["ours"]]
    headline, found = getattr(module, "HEADLINE", SPEED), compared(module, told)
    shown = ["wall", "peak", *(name for name in told["rounds"]["ours"][0].get("figures", {}) if name != headline)]
    head = [headline.replace("units", module.UNIT), "ours is better by", "wall s", "peak MiB", *shown[2:], "equal"]
    lines += [f"| side | {' | '.join(head)} |", "|---|" + "---|" * len(head)]
    for name, results in told["rounds"].items():
        middle, *figures = (f"{statistics.median(value(each, key) for each in results):.4g}"
                            for key in (headline, *shown))  # fmt: skip
        cells = [named(module, name, results[0]), middle, found.get(name, ("", ""))[1], *figures]
        lines.append(f"| {' | '.join([*cells, told['equal'].get(name, '')])} |")
    return [*lines, *(f"| {name} | {reason} |" for name, reason in told["why"].items()), *rest]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small sizes: whether it runs, not how fast")
    parser.add_argument("--sources", type=Path, help="a folder of repositories OWNER+NAME, where GitHub is not reached")
    parser.add_argument("--out", type=Path, help="the page; with --quick beside the runs")
    given = parser.parse_args()
    if given.quick:
        os.environ["PEERS_QUICK"] = "1"
    runs = RUNS.with_name("peers-quick") if given.quick else RUNS
    out = given.out or (runs / "peers.md" if given.quick else ROOT / "docs" / "figures" / "peers.md")
    every = [HOME / f"{name}.py" for name in NAMES if (HOME / f"{name}.py").exists()]
    chosen = [Path(name).resolve() if name.endswith(".py") else HOME / f"{name}.py" for name in given.names] or every
    for file in chosen:
        sys.stderr.write(f"{file.stem} …\n")
        try:
            compare(file, runs / file.stem, given.rounds, given.sources)
        except Unavailable as error:  # ours, or the inputs: the other comparisons go on
            failed = Told(rounds={}, equal={}, why={"ours": str(error)}, loads=[])
            (runs / f"{file.stem}.json").write_text(json.dumps(failed, indent=1), encoding="utf-8")
    files = {file: runs / f"{file.stem}.json" for file in dict.fromkeys([*every, *chosen])}
    told = {file: json.loads(each.read_text(encoding="utf-8")) for file, each in files.items() if each.exists()}
    loads = [load for each in told.values() for load in each["loads"]] or [0.0]
    machine = f"The machine had {os.cpu_count()} cores and a load of {min(loads):.0f} to {max(loads):.0f}."
    page = [PAGE, machine, *HEAD]
    page += [row for _, row in sorted(first(*each) for each in told.items())]
    missing = ", ".join(file.stem for file in every if file not in told)
    page += ["", f"Not run yet: {missing}."] if missing else []
    page += [line for each in told.items() for line in section(*each)]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(page) + "\n", encoding="utf-8")
    sys.stderr.write(f"wrote {out}\n")


if __name__ == "__main__":
    main()
