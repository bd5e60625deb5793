"""Episodes at 64 in flight: the share of the calls that an endpoint of 50 to 800 ms could have answered meanwhile.

Every side plays the same 256 questions of a fixed world, whose policy (`scripted.py`) answers alike whoever asks, in
Search-R1's tags. Equal: the number of calls and of right answers. The share counts from the first call to the last, the
processor from a tool's start to its end. Ours searches over HTTP, the peers in their process; FlashRAG keeps no files
of its episodes. Why: its pipeline makes a batch of 64 wait for its slowest call. The goal of
2 by wall clock is missed beside inspect: with every possible call, ours would take four fifths of its time.
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
from benchmarks.peers.pairing import OURS, Peer, Told, measured, size
from benchmarks.peers.scripted import endpoint, found, told, write_questions

PEERS = {"flashrag": FLASHRAG, "verifiers": Peer("verifiers==0.4.0"), "inspect": Peer("inspect-ai==0.3.285 openai")}
HEADLINE, MORE, COUNT = "share of possible calls, %", True, size(256, 64)
INFER = (f"{OURS} infer --questions q.jsonl --index URL --out out --base_url URL/v1 --model double --policy.engine"
         " openai --policy.concurrency 64 --prompt.profile search-r1")  # fmt: skip
EVALUATE = (f"{sys.prefix}/bin/vf-eval gadgets -m double -c 64 --no-push --no-rich --client.base-url URL/v1 -o out"
            " --client.api-key-var OPENAI_API_KEY --env.agent.harness.id gadgets"
            " --env.agent.runtime.type subprocess")  # fmt: skip
INSPECT = (f"{sys.prefix}/bin/inspect eval gadgets.py --model openai/double -M responses_api=false --max-samples 64"
           " --max-connections 64 --display none --log-dir out")  # fmt: skip
TOOLS = (  # a run, the files of its results, what a right answer leaves there; which file is taken up again, and how
    (INFER, "predictions.jsonl", r'"golden_answers":\["(.*?)"\],"prediction":"\1"', "-", INFER),
    (EVALUATE, "traces.jsonl", r'"right": ?{"score": ?1', "eval.json",
     f"{sys.prefix}/bin/vf-eval @ KEPT --resume --no-rich"),
    (INSPECT, "*.eval", r'"includes": {\s*"value": "C"', "*.eval",
     f"{sys.prefix}/bin/inspect eval-retry KEPT --display none --log-dir out"),
)  # fmt: skip


def prepare(work: Path) -> None:
    write_questions(work / "q.jsonl", COUNT)
    for name in ("gadgets.py", "scripted.py"):
        shutil.copy(Path(__file__).with_name(name), work)


def command(line: str, url: str) -> list[str]:
    """Its words; variables that the peers need are set for what this process starts. They import from this folder."""
    os.environ.update(OPENAI_API_KEY="none", OPENAI_BASE_URL=f"{url}/v1", PYTHONPATH=f"{os.environ['PYTHONPATH']}:.")
    return shlex.split(line.replace("URL", url))


def right(files: str, mark: str) -> int:
    """How often the mark of a right answer stands in the newest of a run's files."""
    newest = max(Path("out").rglob(files), key=lambda file: file.stat().st_mtime)
    read = f"{sys.prefix}/bin/inspect log dump" if newest.suffix == ".eval" else "cat"
    return len(re.findall(mark, subprocess.check_output([*read.split(), newest], text=True)))


def seen(run: Told, url: str, right: int) -> Told:
    calls = told(url)
    figures = {HEADLINE: 100 * calls["slots"] / 64, "ms of processor a call": 1000 * run["cpu"] / calls["calls"]}
    return {**run, "figures": figures, "same": {"calls": calls["calls"], "right answers": right}}


def played(line: str, files: str, mark: str, _kept: str, _again: str, work: Path) -> Told:
    shutil.rmtree("out", ignore_errors=True)
    with endpoint(0.05, 0.8) as url:
        with measured() as run:
            subprocess.run(command(line, url), check=True)
        return seen(run, url, right(files, mark))


ours, verifiers, inspect = (partial(played, *tool) for tool in TOOLS)


def flashrag(work: Path) -> Told:
    with endpoint(0.05, 0.8) as url:
        with measured() as run:
            import tiktoken

            tiktoken.encoding_for_model = lambda _: None  # downloaded otherwise, and not used here
            from flashrag.config import Config
            from flashrag.dataset import Dataset
            from flashrag.generator import OpenaiGenerator
            from flashrag.pipeline import SearchR1Pipeline

            search = SimpleNamespace(batch_search=lambda all: [[e["document"] for e in found(each)] for each in all])
            # its own template writes a prompt twice for an endpoint of completions
            prompt = SimpleNamespace(get_string=lambda question: SearchR1Pipeline.user_prompt.format(question=question))
            config = Config(config_dict={
                "framework": "openai", "generator_model": "double", "generator_batch_size": 64, "metrics": ["em"],
                "openai_setting": {"api_key": "none", "base_url": f"{url}/v1"}, "save_intermediate_data": False,
                "save_dir": "out", "generation_params": {"max_tokens": 256, "temperature": 0}})  # fmt: skip
            pipeline = SearchR1Pipeline(config, prompt, retriever=search, generator=OpenaiGenerator(config))
            done = pipeline.run(Dataset(config, "q.jsonl"))
        return seen(run, url, sum(each == gold[0] for each, gold in zip(done.pred, done.golden_answers, strict=True)))
