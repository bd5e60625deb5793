"""StepRAG beside its peers, each in an environment of its own, on the same inputs, in turn.

    python -m benchmarks.peers [NAME …] [--rounds 3] [--quick] [--sources DIR] [--out docs/figures/peers.md]

NAME is a file of this folder or a path to a file like them: a docstring (what, inputs, what equal means), `PEERS`,
`prepare(work)`, `ours(work)`, a function named as each peer, where it is to be made ready once `PEER_built`. A function
runs in `work`, in a process of its own, and returns `{"figures": {…}, "same": {…}}`. Its `wall`, `cpu` and `peak` are
those of the whole process, unless it returns what `measured` says of a part or of a server. What is the same makes
sides equal, else `equal(ours, theirs)` decides. `HEADLINE` names the figure that counts beside the three; `MORE = True`
where more of it is better. `BOUND`: a side that is no peer and stays out of the first table. `LIMIT`: seconds.
"""

import argparse
import ast
import hashlib
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

HOME = Path(__file__).resolve().parent
ROOT = HOME.parents[1]
ROOMS = ROOT / ".venv-peers"
RUNS = ROOT / "runs" / "peers"
NAMES = ("encode", "encode_many", "retrieve", "vectors", "bm25", "dpo", "grpo", "grpo_sampled", "rollouts", "trees",
         "chat", "viewer", "resume")  # fmt: skip
COSTS = {"wall": "wall s", "cpu": "processor s", "peak": "peak MiB"}
LEAST = 1e-9
PAGE = """# StepRAG beside its peers

`bash scripts/peers.sh` made this page: each side in a process of its own, in pairs, ours and a peer's one after the
other, the next round the other way round. A cell of a comparison is theirs / ours and the median of the rounds' ratios
(least to greatest); above 1 ours is ahead. The first table shows of each comparison the peer that is nearest to ours,
or most ahead, by what the comparison is about, else by wall clock."""
HEAD = ["comparison", "nearest peer", *COSTS.values(), "what it is about", "equal"]


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
        pip = [python, "-m", "pip", "install", "--quiet", "-c", room / "torch.txt"]
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
           "OMP_NUM_THREADS": str(os.cpu_count()), "PYTHONPATH": path, "PEERS_PYTHON": sys.executable}  # fmt: skip
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


def code_of(file: Path) -> str:
    """The hash of what a comparison does: other words in its docstring leave its results valid."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return hashlib.sha256(ast.dump(ast.Module(tree.body[1:], [])).encode()).hexdigest()


def compare(file: Path, work: Path, rounds: int, sources: Path | None) -> None:
    """Each pair of runs to a file beside `work`, so that none is lost.

    `{"pairs": {peer: [[ours, theirs]]}, "equal": {peer: what}, "why": {peer: reason}, "loads": [], "of": script}`.
    """
    module, ways = load(file), {}
    told = Told(pairs={}, equal={}, why={}, loads=[], of=code_of(file))
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
    for number in range(rounds):
        told["loads"].append(os.getloadavg()[0])
        for name, play in [*ways.items()]:
            try:
                both = {"ours": partial(ours, "ours"), name: partial(play, name)}
                done = {side: both[side]() for side in sorted(both, key="ours".__eq__, reverse=number % 2 == 0)}
                told["equal"][name] = getattr(module, "equal", same)(done["ours"], done[name])
                told["pairs"].setdefault(name, []).append([kept(done["ours"]), kept(done[name])])
            except (Unavailable, AssertionError, ValueError, KeyError) as error:
                told["why"][name] = str(error) if isinstance(error, Unavailable) else f"not equal: {error}"
                told["pairs"].pop(name, None)
                del ways[name]
            work.with_suffix(".json").write_text(json.dumps(told, indent=1), encoding="utf-8")


def same(ours: Told, theirs: Told) -> str:
    for what, mine in ours["same"].items():
        other = theirs["same"][what]
        assert mine == other, f"{what}: {other!s:.100}, ours {mine!s:.100}"
    return ", ".join(f"{len(it) if isinstance(it, list) else it} {what}" for what, it in ours["same"].items())


def kept(result: Told) -> Told:
    """Without what only equality needs."""
    return {key: result[key] for key in (*COSTS, "figures", "versions") if key in result}


def named(module: ModuleType, name: str, result: Told) -> str:
    """A peer with the versions of its own packages, else with the commit of its source."""
    own = {each.lower(): f"{each} {v}" for each, v in reversed(result["versions"].items())}
    own = [shown for each, shown in own.items() if name.replace("_", "-") in each]
    _, _, commit = module.PEERS.get(name, Peer()).source.partition("@")
    return ", ".join(own) or f"{name} {commit[:7]}".strip()


def compared(pairs: list[list[Told]], figure: str, more: bool) -> tuple[float, str]:
    """By how much ours is better in a figure, the median of its pairs, and theirs / ours beside it."""
    values = [[{**side, **side.get("figures", {})}[figure] for side in pair] for pair in pairs]
    ours, theirs = map(statistics.median, zip(*values, strict=True))
    ratios = [max(mine if more else other, LEAST) / max(other if more else mine, LEAST) for mine, other in values]
    middle, spread = statistics.median(ratios), f" ({min(ratios):.2f}–{max(ratios):.2f})" if len(ratios) > 1 else ""
    better = f"**{middle:.2f}**{spread}" if ours or more else "none of ours"
    return middle, f"{theirs:.4g} / {ours:.4g}: {better}"


def section(file: Path, told: Told) -> tuple[float, list[str], list[str], str]:
    """How much better ours is than the peer that is nearest to it or most ahead, its row of the first table, where ours
    is behind, and what the page says of this comparison, a row a peer.
    """
    module, link = load(file), f"[{file.stem}](#{file.stem})"
    title, _, rest = (module.__doc__ or "").strip().partition("\n")
    headline, more = getattr(module, "HEADLINE", ""), getattr(module, "MORE", False)
    peers, rows, behind, figures = [], [], [], []
    for name, pairs in told["pairs"].items():
        who, equal = named(module, name, pairs[0][1]), told["equal"][name]
        figures = [each for each in pairs[0][0].get("figures", {}) if each != headline]
        asked = [*([(headline, more)] if headline else []), *((cost, False) for cost in COSTS)]
        better = {figure: compared(pairs, figure, most) for figure, most in asked}
        costs, about = [better[cost][1] for cost in COSTS], better[headline][1] if headline else ""
        others = [" / ".join(f"{statistics.median(p[i]['figures'][each] for p in pairs):.4g}" for i in (1, 0))
                  for each in figures]  # fmt: skip
        rows.append([who, *([about] if headline else []), *costs, *others, equal])
        if name != getattr(module, "BOUND", ""):
            nearest = better[headline or "wall"][0]
            peers.append((nearest, [link, who, *costs, f"{headline}: {about}" if headline else "", equal]))
            behind += [f"{link} beside {who}, {COSTS.get(figure, figure)}: {ratio:.2f}"
                       for figure, (ratio, _) in better.items() if ratio < 0.995]  # fmt: skip
    rows += [[name, reason] for name, reason in told["why"].items()]
    head = ["peer", *([headline] if headline else []), *COSTS.values(), *figures, "equal"]
    nearest, row = min(peers, default=(0.0, [link, "no peer ran", *[""] * 5]))
    return nearest, row, behind, f"\n## {file.stem}\n\n{title}\n\n{markdown(head, rows)}{rest}\n"


def page(files: dict[Path, Path]) -> str:
    """Of the comparisons and their results, as far as there are some."""
    found = {file: json.loads(each.read_text(encoding="utf-8")) for file, each in files.items() if each.exists()}
    told = {file: one for file, one in found.items() if one.get("of") == code_of(file)}  # not an older script's
    loads = [load for each in told.values() for load in each["loads"]] or [0.0]
    machine = f"The machine had {os.cpu_count()} cores and a load of {min(loads):.0f} to {max(loads):.0f}."
    sections = [section(*each) for each in told.items()]
    table = markdown(HEAD, [row for _, row, *_ in sorted(sections)])
    behind = [f"- {each}" for *_, every, _ in sections for each in every]
    table += "\n".join(["\n**Where ours is behind**:\n", *(behind or ["- nowhere"]), ""])
    missing = ", ".join(file.stem for file in files if file not in told)
    table += f"\nNot run yet: {missing}.\n" if missing else ""
    has = (HOME / "has.md").read_text(encoding="utf-8")
    return f"{PAGE}\n{machine}\n\n{table}\n{has}{''.join(own for *_, own in sections)}"


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
            failed = Told(pairs={}, equal={}, why={"ours": str(error)}, loads=[], of=code_of(file))
            (runs / f"{file.stem}.json").write_text(json.dumps(failed, indent=1), encoding="utf-8")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page({file: runs / f"{file.stem}.json" for file in dict.fromkeys([*every, *chosen])}))
    sys.stderr.write(f"wrote {out}\n")


if __name__ == "__main__":
    main()
