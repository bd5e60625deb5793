"""Search trees of a policy of known skill: what a right pair of steps costs.

20 questions of the fixed world of `scripted.py` behind an endpoint of 100 ms, each method with its published numbers
(ReasonRAG: 64 rollouts, 2 children, a judge; ProRAG: 200 simulations, 5 children, 16 questions at once), ours with its
defaults at 64 requests at once. A pair: of a node's children the best and the worst by the method's own value, 0.01
apart, what they say unlike; ours: what `steprag pairs` takes. It is right where the world calls the chosen step right
and the rejected wrong. Equal: the questions and the world; the trees are each method's own. ReasonRAG's missing
imports and lost helper are given back; its code is not changed. Left out: Tree-GRPO, whose manager speaks verl's
tensors and not text, and rStar, which solves sums without a retriever.
"""

import asyncio
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.peers import rollouts
from benchmarks.peers.pairing import Peer, Told, measured, size, source
from benchmarks.peers.scripted import endpoint, found, question, right, told, write_questions

PEERS = {
    "reasonrag": rollouts.FLASHRAG._replace(source="wlzhang2020/ReasonRAG@225e249a26fa0d1d2fd3c9bf60855d725b7cd435"),
    "prorag": Peer("openai aiohttp numpy tqdm tenacity requests",
                   "lilinwz/ProRAG@c7a64110d0c900561fde4292f234b97dfe633e94:prorag"),
}  # fmt: skip
UNIT, HEADLINE, LESS, COUNT = "questions", "calls a right pair", True, size(20, 10)
GENERATE = rollouts.OURS.replace("infer", "generate").partition(" --prompt")[0]
Scored = list[tuple[float, str]]


def prepare(work: Path) -> None:
    write_questions(work / "q.jsonl", COUNT)


def seen(run: Told, url: str, pairs: Iterable[tuple[str, str]]) -> Told:
    calls, made = told(url), list(pairs)
    good = sum(right(chosen) and not right(rejected) for chosen, rejected in made)
    figures = {HEADLINE: calls["calls"] / max(good, 1), "completions a right pair": calls["completions"] / max(good, 1),
               "pairs": len(made), "right pairs, %": 100 * good / max(len(made), 1),
               "calls of a prompt sent before, %": 100 * calls["again"] / calls["calls"],
               "share of possible calls, %": 100 * calls["slots"] / 64}  # fmt: skip
    return {**run, "units": COUNT, "figures": figures}


def best_and_worst(families: Iterable[Scored]) -> Iterable[tuple[str, str]]:
    for family in (sorted(each) for each in families if len(each) > 1):
        (low, rejected), (high, chosen) = family[0], family[-1]
        if high - low >= 0.01 and chosen != rejected:
            yield chosen, rejected


def ours(work: Path) -> Told:
    shutil.rmtree(work / "out", ignore_errors=True)
    with endpoint(0.1, 0.1) as url:
        with measured() as run:
            subprocess.run(GENERATE.replace("URL", url).split(), cwd=work, check=True)
        subprocess.run([sys.executable, "-m", "steprag.cli", "pairs", "--trees", "out"], cwd=work, check=True)
        rows = map(json.loads, (work / "out" / "pairs" / "pairs.train.jsonl").read_text().splitlines())
        return seen(run, url, [(row["chosen"][0]["content"], row["rejected"][0]["content"]) for row in rows])


def reasonrag(work: Path) -> Told:
    sys.modules["trees"] = SimpleNamespace(one_tree=one_tree)  # this file is no module of its processes' else
    with endpoint(0.1, 0.1) as url:
        pipeline_of(url)  # its modules, once for all processes
        with measured() as run, ProcessPoolExecutor(10) as pool:  # as its data_generation.py
            trees = list(pool.map(one_tree, [url] * COUNT, range(COUNT)))
        return seen(run, url, best_and_worst(family for tree in trees for family in tree))


def pipeline_of(url: str) -> Any:
    import tiktoken

    tiktoken.encoding_for_model = lambda _: SimpleNamespace(encode=lambda text, **_: list(text), decode="".join)
    import flashrag.dataset
    from flashrag.config import Config
    from flashrag.dataset import utils
    from flashrag.prompt import PromptTemplate

    flashrag.dataset.get_batch_dataset = flashrag.dataset.merge_batch_dataset = utils.get_batch_dataset
    PromptTemplate.check_prompt_length = lambda *_: False
    sys.path.insert(0, str(source()))
    from pipeline.reasonrag_pipeline import ReasonRAGPipeline

    search = SimpleNamespace(search=lambda query, **_: ([e["document"] for e in found(query)], [3, 2, 1]))
    config = Config(config_dict={
        "framework": "openai", "generator_model": "double", "metrics": [], "disable_save": True, "save_dir": "out",
        "generator_max_input_len": 10**6, "generation_params": {"max_tokens": 256, "temperature": 1.0},
        "openai_setting": {"api_key": "none", "base_url": f"{url}/v1"}})  # fmt: skip
    return ReasonRAGPipeline(config, retriever=search, max_iter=7, max_children=2, max_rollouts=64)


def one_tree(url: str, number: int) -> list[Scored]:
    item = SimpleNamespace(question=question(number), golden_answers=[f"Town{number}"], update_output=lambda *_: None)
    rows, families = [pipeline_of(url).search(item)], []
    for node in rows:
        rows += node.children
        families.append([(each.node_dict["reward"], each.node_dict["response"]) for each in node.children
                         if "reward" in each.node_dict])  # fmt: skip
    return families


def prorag(work: Path) -> Told:
    sys.path.insert(0, str(source()))
    from openai import AsyncOpenAI
    from prorag.prm import mcts

    async def search(queries: list[str]) -> list[str]:
        return ["\n".join(each["document"]["contents"] for each in found(query)) for query in queries]

    given = SimpleNamespace(num_simulations=200, expansion_width=5, max_depth=10, c_puct=2.5, gamma=0.99,
                            server="double", max_completion_length=1024, output_path="prorag.jsonl")  # fmt: skip
    items = [{"id": i, "question": question(i), "answer": f"Town{i}"} for i in range(COUNT)]

    async def every(url: str) -> list[Any]:
        one, gate, client = asyncio.Lock(), asyncio.Semaphore(16), AsyncOpenAI(base_url=f"{url}/v1", api_key="none")
        retriever = SimpleNamespace(batch_search=search)
        return await asyncio.gather(*(mcts.process_single_item(gate, [client], retriever, item, one, given)
                                      for item in items))  # fmt: skip

    with endpoint(0.1, 0.1) as url:
        with measured() as run:
            nodes = [each["mcts_tree"] for each in asyncio.run(every(url))]
        for node in nodes:
            nodes += node["children"]
        families = [[(child["q"] / child["n"], re.sub("<retrieval>.*", "", child["action"], flags=re.S))
                     for child in node["children"] if child["n"]] for node in nodes]  # fmt: skip
        return seen(run, url, best_and_worst(families))


def equal(ours: Told, theirs: Told) -> str:
    assert ours["units"] == theirs["units"]
    return f"{ours['units']} questions, one world"
