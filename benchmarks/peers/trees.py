"""Search trees of a policy of known skill: what a right pair of steps costs.

20 questions of the fixed world of `scripted.py` behind an endpoint of 100 ms, each method with its published numbers
(ReasonRAG: 64 rollouts, 2 children, a judge; ProRAG: 200 simulations, 5 children, 16 questions at once), ours with its
defaults at 64 requests at once. A pair is what each method's own code takes (`steprag pairs`,
`preference_data_generatoin.py`); ProRAG asks a judge, here it is of a node's children the best and the worst by their
value, 0.01 apart. It is right where the world calls the chosen step right and the rejected wrong. Equal: questions
and world. ReasonRAG's missing imports and lost helper are given back. Left out: Tree-GRPO, which speaks verl's tensors
and not text, and rStar, which has no retriever.
"""

import asyncio
import json
import re
import shutil
import subprocess
import sys
from collections import Counter, deque
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.peers import rollouts
from benchmarks.peers.encode import FLASHRAG
from benchmarks.peers.pairing import OURS, Peer, Told, measured, size
from benchmarks.peers.scripted import endpoint, found, passages, question, right, told, write_questions

PEERS = {
    "reasonrag": FLASHRAG._replace(source="wlzhang2020/ReasonRAG@225e249a26fa0d1d2fd3c9bf60855d725b7cd435"),
    "prorag": Peer("openai aiohttp numpy tqdm tenacity requests",
                   "lilinwz/ProRAG@c7a64110d0c900561fde4292f234b97dfe633e94:prorag"),
}  # fmt: skip
HEADLINE, COUNT = "calls a right pair", size(20, 10)


def prepare(work: Path) -> None:
    write_questions(work / "q.jsonl", COUNT)


def seen(run: Told, url: str, pairs: list[tuple[str, str]]) -> Told:
    calls, good = told(url), sum(right(chosen) and not right(rejected) for chosen, rejected in pairs)
    figures = {HEADLINE: calls["calls"] / max(good, 1), "completions a right pair": calls["completions"] / max(good, 1),
               "pairs": len(pairs), "right pairs, %": 100 * good / max(len(pairs), 1),
               "calls of a prompt sent before, %": 100 * calls["again"] / calls["calls"],
               "share of possible calls, %": 100 * calls["slots"] / 64}  # fmt: skip
    return {**run, "figures": figures, "same": {"questions, one world": COUNT}}


def ours(work: Path) -> Told:
    shutil.rmtree("out", ignore_errors=True)
    with endpoint(0.1, 0.1) as url:
        line = rollouts.INFER.replace(" infer ", " generate ").partition(" --prompt")[0]
        with measured() as run:
            subprocess.run(rollouts.command(line, url), check=True)
            subprocess.run([*OURS.split(), "pairs", "--trees", "out", "--validation", "0"], check=True)
        rows = map(json.loads, Path("out/pairs/pairs.train.jsonl").read_text().splitlines())
        return seen(run, url, [(row["chosen"][0]["content"], row["rejected"][0]["content"]) for row in rows])


def reasonrag(work: Path) -> Told:
    sys.modules["trees"] = SimpleNamespace(one_tree=one_tree)  # this file is no module of its processes' else
    with endpoint(0.1, 0.1) as url:
        pipeline_of(url)  # its modules, once for all processes
        with measured() as run, ProcessPoolExecutor(10) as pool:  # as its data_generation.py
            trees = list(pool.map(one_tree, [url] * COUNT, range(COUNT)))
        return seen(run, url, [(pair["chosen"], pair["rejected"]) for tree in trees for pair in tree])


def pipeline_of(url: str) -> Any:
    import tiktoken

    tokens = SimpleNamespace(encode=lambda text, **_: list(text), decode="".join)
    tiktoken.encoding_for_model = tiktoken.get_encoding = lambda _: tokens
    import flashrag.dataset
    from flashrag.config import Config
    from flashrag.dataset import utils
    from flashrag.prompt import PromptTemplate

    flashrag.dataset.get_batch_dataset = flashrag.dataset.merge_batch_dataset = utils.get_batch_dataset
    PromptTemplate.check_prompt_length = lambda *_: False
    from pipeline.reasonrag_pipeline import ReasonRAGPipeline

    search = SimpleNamespace(search=lambda query, **_: ([e["document"] for e in found(query)], [3, 2, 1]))
    config = Config(config_dict={
        "framework": "openai", "generator_model": "double", "metrics": [], "disable_save": True, "save_dir": "out",
        "generator_max_input_len": 10**6, "generation_params": {"max_tokens": 256, "temperature": 1.0},
        "openai_setting": {"api_key": "none", "base_url": f"{url}/v1"}})  # fmt: skip
    return ReasonRAGPipeline(config, retriever=search, max_iter=7, max_children=2, max_rollouts=64)


def one_tree(url: str, number: int) -> list[dict[str, Any]]:
    golden, nodes, pairs = [f"Town{number}"], {}, []
    item = SimpleNamespace(question=question(number), golden_answers=golden, update_output=nodes.__setitem__)
    pipeline_of(url).search(item)
    import preference_data_generatoin as own

    own.deque, own.Counter = deque, Counter
    own.process_node(own.calculate_mcts_reward_bottom_up(nodes, golden), 0, pairs, Counter())
    return pairs


def prorag(work: Path) -> Told:
    from openai import AsyncOpenAI
    from prorag.prm import mcts

    async def search(queries: list[str]) -> list[str]:
        return [*map(passages, queries)]

    given = SimpleNamespace(num_simulations=200, expansion_width=5, max_depth=10, c_puct=2.5, gamma=0.99,
                            server="double", max_completion_length=1024, output_path="prorag.jsonl")  # fmt: skip

    async def every(url: str) -> list[Any]:
        one, gate, client = asyncio.Lock(), asyncio.Semaphore(16), AsyncOpenAI(base_url=f"{url}/v1", api_key="none")
        retriever = SimpleNamespace(batch_search=search)
        items = ({"id": i, "question": question(i), "answer": f"Town{i}"} for i in range(COUNT))
        return await asyncio.gather(*(mcts.process_single_item(gate, [client], retriever, item, one, given)
                                      for item in items))  # fmt: skip

    with endpoint(0.1, 0.1) as url:
        with measured() as run:
            nodes, pairs = [each["mcts_tree"] for each in asyncio.run(every(url))], []
        for node in nodes:
            nodes += node["children"]
            said = sorted((child["q"] / child["n"], re.sub("<retrieval>.*", "", child["action"], flags=re.S))
                          for child in node["children"] if child["n"])  # fmt: skip
            if said and said[-1][0] - said[0][0] >= 0.01 and said[0][1] != said[-1][1]:
                pairs.append((said[-1][1], said[0][1]))
        return seen(run, url, pairs)
