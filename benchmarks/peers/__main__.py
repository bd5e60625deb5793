"""StepRAG beside its peers, each in an environment of its own, on the same inputs, in turn.

    python -m benchmarks.peers [NAME …] [--rounds 3] [--quick] [--sources DIR] [--out docs/figures/peers.md]

NAME is a file of this folder or a path to a file like them: a docstring (what, inputs, what equal means), `UNIT`,
`PEERS`, `prepare(work)`, `ours(work)`, a function named as each peer, where it is to be made ready once `PEER_built`.
A function runs in `work` and returns `{**told, "units": n, "figures": {…}, "same": {…}}` with what `measured` told;
what is the same makes sides equal, else `equal(ours, theirs)` says. `HEADLINE` names the figure of the ratio (units a
CPU second else; `wall`, `peak`, or one of "figures"); `LESS = True` where less of it is better. `BOUND`: a side that
is no peer and stays out of the first table. `LIMIT`: seconds.
"""

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
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.peers.pairing import Peer, Told, family, load
from inference.scoring.tables import markdown
from steprag.engines.models import sha256_of

HOME = Path(__file__).resolve().parent
ROOT = HOME.parents[1]
ROOMS = ROOT / ".venv-peers"
RUNS = ROOT / "runs" / "peers"
NAMES = ("encode", "retrieve", "vectors", "bm25", "dpo", "grpo", "rollouts", "trees", "chat", "viewer", "resume")
SPEED, LEAST = "units a CPU second", 1e-9
PAGE = """# StepRAG beside its peers

`bash scripts/peers.sh` made this page. Each side runs in a process of its own, in turn with the others. Figures are
medians of the rounds; brackets hold the least and the greatest ratio of a round. Above 1 ours is ahead. The first table
names of each comparison the peer that is nearest to ours, or most ahead; where ours is behind comes first. Wall seconds
count what other work took of the machine meanwhile; processor seconds do not. A ratio of one round that is near 1 says
nothing."""
HEAD = ["comparison", "peer", "figure", "ours is better by", "equal"]


class Unavailable(Exception):
    """Why a side cannot be compared: a row of the page."""


def called(command: list[Any]) -> None:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
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


def checked_out(source: str, sources: Path | None) -> str:
    """The folder of `OWNER/NAME@COMMIT[:PATH]`, cloned from GitHub or a folder of repositories `OWNER+NAME`."""
    repository, commit, path = re.split("[@:]", f"{source}:")[:3]
    name = repository.replace("/", "+")
    near, files = sources or ROOMS, ROOMS / "sources" / f"{name}@{commit[:12]}"
    if not (files / ".git" / "index").exists():
        heads = [*near.glob(f"{name}/HEAD"), *near.glob(f"{name}/*/HEAD")]
        shutil.rmtree(files, ignore_errors=True)
        called(["git", "clone", "-qn", heads[0].parent if heads else f"https://github.com/{repository}", files])
        called(["git", "-C", files, "checkout", "-q", commit, "--", path or "."])
    return str(files)


def played(module: ModuleType, work: Path, python: str | Path, function: str, path: str) -> Told:
    """One side in a process of its own; what it says goes to a log in `work`."""
    out, log = work / f"{function}.json", work / f"{function}.log"
    peer, limit = module.PEERS.get(function, Peer()), getattr(module, "LIMIT", 900)
    packages = [*re.findall(r"(?:^|\s)([A-Za-z][\w.-]*)(?:\[[^]]*\])?==", peer.packages), function]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": "",
           "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "PEERS_PYTHON": sys.executable}  # fmt: skip
    out.unlink(missing_ok=True)
    command = [python, HOME / "pairing.py", module.__file__, function, work, out, *packages]
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

    `{"rounds": {side: [told]}, "equal": {peer: what}, "why": {peer: reason}, "loads": [of a round], "of": script}`.
    """
    module, ways = load(file), {}
    told = Told(rounds={"ours": []}, equal={}, why={}, loads=[], of=sha256_of(file))
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    ours = partial(played, module, work, sys.executable, path=str(ROOT))
    ours("prepare")
    for name, peer in module.PEERS.items():
        try:
            path = checked_out(peer.source, sources) if peer.source else ""
            play = partial(played, module, work, installed(name, peer), path=path)
            if hasattr(module, f"{name}_built"):
                play(f"{name}_built")
            ways[name] = play
        except Unavailable as error:
            told["why"][name] = str(error)
    for _ in range(rounds):
        told["loads"].append(os.getloadavg()[0])
        mine = ours("ours")
        for name, play in [*ways.items()]:
            try:
                result = play(name)
                told["equal"][name] = getattr(module, "equal", same)(mine, result)
                told["rounds"].setdefault(name, []).append(kept(result))
            except (Unavailable, AssertionError, ValueError, KeyError) as error:
                told["why"][name] = str(error) if isinstance(error, Unavailable) else f"not equal: {error}"
                told["rounds"].pop(name, None)
                del ways[name]
        told["rounds"]["ours"].append(kept(mine))
        work.with_suffix(".json").write_text(json.dumps(told, indent=1), encoding="utf-8")


def same(ours: Told, theirs: Told) -> str:
    for what, mine in ours["same"].items():
        other = theirs["same"][what]
        assert mine == other, f"{what}: {other!s:.100}, ours {mine!s:.100}"
    return ", ".join(f"{len(it) if isinstance(it, list) else it} {what}" for what, it in ours["same"].items())


def kept(result: Told) -> Told:
    """Without what only equality needs."""
    return {key: result[key] for key in ("wall", "cpu", "peak", "units", "figures", "versions") if key in result}


def value(result: Told, name: str) -> float:
    return {SPEED: result["units"] / max(result["cpu"], 0.01), **result, **result.get("figures", {})}[name]


def named(module: ModuleType, name: str, result: Told) -> str:
    """A peer with the versions of its own packages, else with the commit of its source."""
    own = {each.lower(): f"{each} {v}" for each, v in reversed(result["versions"].items())}
    own = [shown for each, shown in own.items() if name.replace("_", "-") in each]
    _, _, commit = module.PEERS.get(name, Peer()).source.partition("@")
    return ", ".join(own) or f"{name} {commit[:7]}".strip()


def section(file: Path, told: Told) -> tuple[float, list[str], str]:
    """How much better ours is than the peer that is nearest to it or most ahead, its row of the first table, and what
    the page says of this comparison, a row a side.
    """
    module, link, sides = load(file), f"[{file.stem}](#{file.stem})", told["rounds"]
    title, _, rest = (module.__doc__ or "").strip().partition("\n")
    title, none = f"\n## {file.stem}\n\n{title}\n\n", (0.0, [link, "no peer ran", "", "", ""])
    if not sides:
        return *none, f"{title}{told['why']['ours']}\n"
    headline, less = getattr(module, "HEADLINE", SPEED), getattr(module, "LESS", False)
    unit, peers, rows, mine = headline.replace("units", module.UNIT), [], [], []
    more = [name for name in sides["ours"][0].get("figures", {}) if name != headline]
    for name, results in sides.items():
        speeds, *figures = ([value(each, key) for each in results] for key in (headline, "wall", "peak", *more))
        speeds.append(statistics.median(speeds))
        mine = mine or speeds  # the first side is ours
        pairs = zip(mine, speeds, strict=True) if less else zip(speeds, mine, strict=True)
        *rounds, middle = (max(over, LEAST) / max(under, LEAST) for under, over in pairs)
        spread = f"{min(rounds):.2f} to {max(rounds):.2f}" if len(rounds) > 1 else "one round"
        better = f"none beside {speeds[-1]:.4g}" if less and not mine[-1] else f"{middle:.2f} ({spread})"
        who, equal = named(module, name, results[0]), told["equal"].get(name, "")
        if name not in ("ours", getattr(module, "BOUND", "")):
            peers.append((middle, [link, who, unit, better, equal]))
        cells = [f"{statistics.median(each):.4g}" for each in figures]
        rows.append([who, f"{speeds[-1]:.4g}", "" if name == "ours" else better, *cells, equal])
    rows += [[name, reason] for name, reason in told["why"].items()]
    head = ["side", unit, "ours is better by", "wall s", "peak MiB", *more, "equal"]
    return *min(peers, default=none), f"{title}{markdown(head, rows)}{rest}\n"


def page(files: dict[Path, Path]) -> str:
    """Of the comparisons and their results, as far as there are some."""
    found = {file: json.loads(each.read_text(encoding="utf-8")) for file, each in files.items() if each.exists()}
    told = {file: one for file, one in found.items() if one.get("of") == sha256_of(file)}  # not an older script's
    loads = [load for each in told.values() for load in each["loads"]] or [0.0]
    machine = f"The machine had {os.cpu_count()} cores and a load of {min(loads):.0f} to {max(loads):.0f}."
    sections = [section(*each) for each in told.items()]
    table = markdown(HEAD, [row for _, row, _ in sorted(sections)])
    missing = ", ".join(file.stem for file in files if file not in told)
    table += f"\nNot run yet: {missing}.\n" if missing else ""
    return f"{PAGE}\n{machine}\n\n{table}{''.join(own for *_, own in sections)}"


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
    every = [HOME / f"{name}.py" for name in NAMES]
    chosen = [Path(name).resolve() if name.endswith(".py") else HOME / f"{name}.py" for name in given.names] or every
    for file in chosen:
        sys.stderr.write(f"{file.stem} …\n")
        try:
            compare(file, runs / file.stem, given.rounds, given.sources)
        except Unavailable as error:  # ours, or the inputs: the other comparisons go on
            failed = Told(rounds={}, equal={}, why={"ours": str(error)}, loads=[], of=sha256_of(file))
            (runs / f"{file.stem}.json").write_text(json.dumps(failed, indent=1), encoding="utf-8")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page({file: runs / f"{file.stem}.json" for file in dict.fromkeys([*every, *chosen])}))
    sys.stderr.write(f"wrote {out}\n")


if __name__ == "__main__":
    main()
