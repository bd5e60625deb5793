"""Episodes at 64 in flight: the share of the calls that an endpoint of 50 to 800 ms could have answered meanwhile.

Every side plays the same 256 questions of a fixed world, whose policy (`scripted.py`) answers alike whoever asks, in
Search-R1's tags. Equal: the number of calls and of right answers. The share counts from the first call to the last, the
processor also imports and scores. Ours searches over HTTP, the peers in their process. Why: FlashRAG's pipeline makes a
batch of 64 wait for its slowest call. Ours takes more of the processor a call, for its start and its files count.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from benchmarks.peers.encode import FLASHRAG
from benchmarks.peers.pairing import Peer, Told, measured, size
from benchmarks.peers.scripted import endpoint, found, told, write_questions

VERIFY, LOOK = Peer("verifiers==0.4.0"), Peer("inspect-ai==0.3.285 openai")
PEERS = {"flashrag": FLASHRAG, "verifiers": VERIFY, "inspect": LOOK}
UNIT, HEADLINE, COUNT = "episodes", "share of possible calls, %", size(256, 64)
OURS = (f"{sys.executable} -m steprag.cli infer --questions q.jsonl --index URL --out out --base_url URL/v1 --model"
        " double --policy.engine openai --policy.concurrency 64 --prompt.profile search-r1")  # fmt: skip
VERIFIERS = (f"{sys.prefix}/bin/vf-eval gadgets -m double -c 64 --no-push --no-rich --client.base-url URL/v1 -o"
             " out --client.api-key-var KEY --env.agent.harness.id gadgets"
             " --env.agent.runtime.type subprocess")  # fmt: skip
INSPECT = (f"{sys.prefix}/bin/inspect eval gadgets.py --model openai/double -M responses_api=false --max-samples 64"
           " --max-connections 64 --display none --log-format json --log-dir out")  # fmt: skip


def prepare(work: Path) -> None:
    write_questions(work / "q.jsonl", COUNT)
    for name in ("gadgets.py", "scripted.py"):
        shutil.copy(Path(__file__).with_name(name), work)


def variables(url: str, work: Path, peer: str) -> dict[str, str]:
    mine = {"GADGETS": str(COUNT), "PEER": peer, "KEY": "none", "OPENAI_API_KEY": "none"}
    return {**os.environ, **mine, "OPENAI_BASE_URL": f"{url}/v1", **({"PYTHONPATH": str(work)} if peer else {})}


def seen(run: Told, url: str, right: int) -> Told:
    calls = told(url)
    figures = {HEADLINE: 100 * calls["slots"] / 64, "ms of processor a call": 1000 * run["cpu"] / calls["calls"]}
    return {**run, "units": COUNT, "figures": figures, "calls": calls["calls"], "right": right}


def rightly(work: Path, files: str, marks: str) -> int:
    """How often `marks`, which a right answer leaves, stands in the newest of a run's files."""
    newest = max((work / "out").rglob(files), key=lambda file: file.stat().st_mtime)
    return len(re.findall(marks, newest.read_text()))


def command(peer: str, line: str, files: str, marks: str, work: Path) -> Told:
    shutil.rmtree(work / "out", ignore_errors=True)
    with endpoint(0.05, 0.8) as url:
        with measured() as run:
            subprocess.run(shlex.split(line.replace("URL", url)), cwd=work, env=variables(url, work, peer), check=True)
        return seen(run, url, rightly(work, files, marks))


OUR_RUN = OURS, "predictions.jsonl", r'"golden_answers":\["(.*?)"\],"prediction":"\1"'
VERIFIERS_RUN = VERIFIERS, "traces.jsonl", r'"right": ?{"score": ?1'
INSPECT_RUN = INSPECT, "*.json", r'"includes": {\s*"value": "C"'
ours, verifiers, inspect = (partial(command, name, *run) for name, run in
                            (("", OUR_RUN), ("verifiers", VERIFIERS_RUN), ("inspect", INSPECT_RUN)))  # fmt: skip


def flashrag(work: Path) -> Told:
    import tiktoken

    tiktoken.encoding_for_model = lambda _: None  # downloaded otherwise, and not used here
    from flashrag.config import Config
    from flashrag.dataset import Dataset
    from flashrag.generator import OpenaiGenerator
    from flashrag.pipeline import SearchR1Pipeline

    search = SimpleNamespace(batch_search=lambda queries: [[e["document"] for e in found(query)] for query in queries])
    # its own template writes a prompt twice for an endpoint of completions
    prompt = SimpleNamespace(get_string=lambda question: SearchR1Pipeline.user_prompt.format(question=question))
    with endpoint(0.05, 0.8) as url:
        config = Config(config_dict={
            "framework": "openai", "generator_model": "double", "generator_batch_size": 64, "metrics": ["em"],
            "openai_setting": {"api_key": "none", "base_url": f"{url}/v1"}, "save_metric_score": False,
            "save_intermediate_data": False, "disable_save": True, "save_dir": str(work),
            "generation_params": {"max_tokens": 256, "temperature": 0}})  # fmt: skip
        pipeline = SearchR1Pipeline(config, prompt, retriever=search, generator=OpenaiGenerator(config))
        with measured() as run:
            done = pipeline.run(Dataset(config, str(work / "q.jsonl")))
        return seen(run, url, sum(each == gold[0] for each, gold in zip(done.pred, done.golden_answers, strict=True)))


def equal(ours: Told, theirs: Told) -> str:
    for what in ("calls", "right"):
        assert ours[what] == theirs[what], f"{theirs[what]} {what}, ours {ours[what]}"
    return f"{ours['calls']} calls, {ours['right']} right answers"
