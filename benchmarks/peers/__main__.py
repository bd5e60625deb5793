"""StepRAG beside its peers, each in an environment of its own, on the same inputs, in turn.

    python -m benchmarks.peers [NAME …] [--rounds 3] [--quick] [--sources DIR] [--out docs/figures/peers.md]

NAME is a file of this folder or a path to a file like them: a docstring (what, inputs, what equal means), `UNIT`,
`PEERS`, `prepare(work)`, `ours(work)`, a function named as each peer, `equal(ours, theirs)`. A function returns
`{**told, "units": n, "figures": {…}, …}` with what `measured` told. `HEADLINE` names the figure of the ratio (units a
CPU second else; `wall`, `peak`, or one of "figures"); `LESS = True` where less of it is better. `THREADS`, `LIMIT` (s).
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
from pathlib import Path
from types import ModuleType

from benchmarks.peers.pairing import Peer, Told, load

HOME = Path(__file__).resolve().parent
ROOT = HOME.parents[1]
ROOMS = ROOT / ".venv-peers"
COMPARISONS = ("encode", "retrieve", "million", "bm25", "dpo", "grpo", "rollouts", "trees", "chat", "viewer")
SPEED = "units a CPU second"


class Unavailable(Exception):
    """Why a side cannot be compared: a row of the page."""


def called(command: list[str], **variables: str) -> None:
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("[notice]")]
        raise Unavailable(f"not installed: {(lines or [f'exit {done.returncode}'])[-1].strip()[:300]}")


def installed(name: str, peer: Peer) -> Path:
    """The Python of the peer's environment, which is made where it is missing or asked otherwise."""
    if peer.needs and not shutil.which(peer.needs):
        raise Unavailable(f"not run: this machine has no `{peer.needs}`")
    if not peer.packages and not peer.script:
        return Path(sys.executable)
    if peer.script:
        called(["bash", str(ROOT / peer.script)])
        return ROOT / f".venv-{name}" / "bin" / "python"
    room, pins = ROOMS / name, (ROOT / "requirements.txt").read_text(encoding="utf-8")
    python, stamp, torch = room / "bin" / "python", room / "peer.stamp", re.findall(r"^torch==\S+", pins, re.M)[0]
    asked = f"{torch}\n{peer.packages}"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == asked:
        return python
    sys.stderr.write(f"installing {name} …\n")
    called([sys.executable, "-m", "venv", "--clear", str(room)])
    (room / "torch.txt").write_text(f"{torch}\n", encoding="utf-8")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-compile", "-c", str(room / "torch.txt")]
    if index := os.environ.get("TORCH_INDEX"):  # as in scripts/setup.sh
        called([*pip, "--index-url", index, torch])
    for line in filter(None, map(str.strip, peer.packages.splitlines())):
        called([*pip, *line.split()])
    stamp.write_text(asked, encoding="utf-8")
    return python


def checked_out(source: str, sources: Path | None) -> Path:
    """The files of `OWNER/NAME@COMMIT[:PATH]`, of GitHub or of a folder with checkouts or bare ones `OWNER+NAME`."""
    repository, commit, path = re.fullmatch(r"([^@]+)@([0-9a-f]{40})(?::(.+))?", source).groups()  # type: ignore
    files, here = ROOMS / "sources" / f"{repository.replace('/', '+')}@{commit[:12]}", repository.replace("/", "+")
    if files.exists():
        return files
    near = (
        [at for top in [sources / here] if top.is_dir() for at in (top / ".git", top, *top.iterdir())]
        if sources
        else []
    )
    bare = next((at for at in near if (at / "HEAD").is_file()), ROOMS / "sources" / f"{here}.git")
    if bare.parent == ROOMS / "sources":
        called(["git", "init", "-q", "--bare", str(bare)])
        called(["git", "-C", str(bare), "fetch", "-q", "--depth", "1", f"https://github.com/{repository}", commit])
    files.mkdir(parents=True)
    git = ["git", f"--git-dir={bare}", f"--work-tree={files}", "checkout", "-q", commit, "--", path or "."]
    try:
        called(git, GIT_INDEX_FILE=str(files / ".index"))
    except Unavailable:
        shutil.rmtree(files)
        raise
    return files


def played(python: Path, file: Path, function: str, work: Path, module: ModuleType, **variables: str) -> Told:
    """One side in a process of its own, as JSON; its output goes to `work`."""
    out, log = work / f"{function}.json", work / f"{function}.log"
    names = re.findall(r"(?:^|\s)([A-Za-z][\w.-]*)(?:\[[^]]*\])?==", variables.pop("packages", ""))
    command = [str(python), str(HOME / "pairing.py"), str(file), function, str(work), str(out), *names, "torch"]
    threads = str(getattr(module, "THREADS", 1))
    quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}
    env = {**os.environ, **quiet, "OMP_NUM_THREADS": threads, **variables}
    if "PEERS_SOURCE" in variables or function not in ("ours", "prepare"):
        env.pop("PYTHONPATH", None)
    out.unlink(missing_ok=True)
    with log.open("w") as lines:
        process = subprocess.Popen(command, env=env, cwd=work, stdout=lines, stderr=lines, start_new_session=True)
        try:
            process.wait(getattr(module, "LIMIT", 900))
        except subprocess.TimeoutExpired:
            raise Unavailable(f"not run: took more than {getattr(module, 'LIMIT', 900)} s") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        last = ([line for line in log.read_text(errors="replace").splitlines() if line.strip()] or ["nothing said"])[-1]
        raise Unavailable(f"not run: {last.strip()[:300]} (exit {process.returncode})")
    return {"side": function, **json.loads(out.read_text(encoding="utf-8"))}


def compare(file: Path, work: Path, rounds: int, sources: Path | None) -> Told:
    """All rounds of a comparison: `{"rounds": {side: [told]}, "equal": {peer: what}, "why": {side: reason}}`."""
    module, here = load(file), Path(sys.executable)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    ways: dict[str, tuple[Path, dict[str, str]]] = {"ours": (here, {"PYTHONPATH": str(ROOT)})}
    told: Told = {"rounds": {}, "equal": {}, "why": {}}
    for name, peer in module.PEERS.items():
        try:
            python = installed(name, peer)
            found = {"PEERS_SOURCE": str(checked_out(peer.source, sources))} if peer.source else {}
            ways[name] = (python, {"packages": peer.packages, **found})
        except Unavailable as error:
            told["why"][name] = str(error)
    played(here, file, "prepare", work, module, PYTHONPATH=str(ROOT))
    for _ in range(rounds):
        for name, (python, variables) in ways.items():
            if name in told["why"]:
                continue
            try:
                result = played(python, file, name, work, module, **variables)
                if name != "ours":
                    told["equal"][name] = module.equal(told["rounds"]["ours"][-1], result)
            except (Unavailable, AssertionError) as error:
                told["why"][name] = str(error) if isinstance(error, Unavailable) else f"not equal: {error}"
                if name == "ours":
                    raise
            else:
                told["rounds"].setdefault(name, []).append(result)
    return told


def value(result: Told, headline: str) -> float:
    if headline == SPEED:
        return result["units"] / max(result["cpu"], 0.01)
    return result["figures"][headline] if headline in result.get("figures", {}) else result[headline]


def page_of(file: Path, told: Told) -> list[str]:
    """A section of the page: a row a side."""
    module = load(file)
    headline, less, unit = getattr(module, "HEADLINE", SPEED), getattr(module, "LESS", False), module.UNIT
    ours = [value(each, headline) for each in told["rounds"]["ours"]]
    first = {name: each[0] for name, each in told["rounds"].items()}
    shown = [name for name in first["ours"].get("figures", {}) if name != headline]
    label = headline.replace("units", unit)
    lines = ["", f"## {file.stem}: {(module.__doc__ or '').splitlines()[0].rstrip('.')}", ""]
    lines += [f"| side | {' | '.join([label, 'ours is better by', 'wall s', 'peak MiB', *shown, 'equal'])} |"]
    lines += ["|---|" + "---|" * (len(shown) + 5)]
    for name, results in told["rounds"].items():
        values = [value(each, headline) for each in results]
        ratios = [b / a if less else a / b for a, b in zip(ours, values, strict=False)]
        middle = statistics.median(values) / statistics.median(ours[: len(values)])
        ratio = f"{middle if less else 1 / middle:.2f}× ({min(ratios):.2f}–{max(ratios):.2f})"
        of = {key: statistics.median(value(each, key) for each in results) for key in ("wall", "peak", *shown)}
        versions = " ".join(f"{package} {version}" for package, version in first[name]["versions"].items())
        who = "ours" if name == "ours" else f"{name} ({versions})"
        cells = [
            f"{statistics.median(values):.4g}",
            "" if name == "ours" else ratio,
            *(f"{v:.4g}" for v in of.values()),
        ]
        lines += [f"| {who} | {' | '.join(cells)} | {told['equal'].get(name, '')} |"]
    for name, reason in told["why"].items():
        lines += [f"| {name} | {reason.replace('|', '/')} |" + " |" * (len(shown) + 4)]
    return [*lines, "", *(module.__doc__ or "").splitlines()[2:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small sizes: whether it runs, not how fast")
    parser.add_argument(
        "--sources", type=Path, help="a folder with repositories OWNER+NAME, where GitHub is out of reach"
    )
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.quick:
        os.environ["PEERS_QUICK"] = "1"
    runs = ROOT / "runs" / ("peers-quick" if given.quick else "peers")
    out = given.out or (runs / "peers.md" if given.quick else ROOT / "docs" / "figures" / "peers.md")
    every = [HOME / f"{name}.py" for name in COMPARISONS if (HOME / f"{name}.py").exists()]
    chosen = [Path(name) if name.endswith(".py") else HOME / f"{name}.py" for name in given.names] or every
    for file in chosen:
        sys.stderr.write(f"{file.stem} …\n")
        told = compare(file.resolve(), runs / file.stem, given.rounds, given.sources)
        (runs / f"{file.stem}.json").write_text(json.dumps(told, indent=1), encoding="utf-8")
    page = [
        "# StepRAG beside its peers",
        "",
        "`bash scripts/peers.sh` wrote this page: rounds in turn, medians, ranges.",
    ]
    for file in [*every, *(file for file in chosen if file not in every)]:
        if (kept := runs / f"{file.stem}.json").exists():
            page += page_of(file, json.loads(kept.read_text(encoding="utf-8")))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(page).rstrip() + "\n", encoding="utf-8")
    sys.stderr.write(f"wrote {out}\n")


if __name__ == "__main__":
    main()
