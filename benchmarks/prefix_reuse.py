"""Share of prompt tokens that the engine had cached: one growing prompt against a system prompt for each action.

    python benchmarks/prefix_reuse.py --index INDEX [--engine vllm] [--questions 6] [--children 3] [--calls 24]

The same search with the embedded model on the same Atlas questions, once with the `transcript` profile and once with
the same words where every action has a system prompt of its own (as the published prompts have). The two grow other
trees, for the model reads other words; compare the shares and what a call costs. A tree ends with the wave in which it
reaches `--calls`: its 24 iterations, each played to an answer, could make over a hundred. With `--children 1` a tree is
one episode, a completion a request: the way to measure vLLM, which reports of several completions the cached tokens
of the one that ends last, its siblings' prompt among them.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

import yaml

from data_generation.config import GenerateConfig
from data_generation.generate import generate
from steprag import atlas
from steprag.agent.profiles import PROFILES
from steprag.config import load_config
from steprag.files import write_records
from steprag.inputs import read_questions
from steprag.runs import read_manifest

TASKS = {
    "start": "Plan: decide what to search for first, or answer at once.",
    "query|answer": "Decide: search for what is still missing with <query>, or give the final answer in <answer>.",
    "evidence": "Read: keep what the passages say about the question in <evidence>, in a sentence.",
    "answer": "Conclude: give the final answer in <answer>.",
}


def by_action(transcript: Path) -> dict[str, object]:
    """The transcript profile's words, with a system prompt an action."""
    words = yaml.safe_load(transcript.read_text(encoding="utf-8"))
    tails = {"start": "Search or answer.", **words["tails"]}
    passages = "\n" + words["passages"]
    turns = {
        allowed: {
            "system": f"{words['system']}\n{task}",
            "user": words["question"]
            + ("" if allowed == "start" else "\n{steps}")
            + (passages if allowed == "evidence" else "")
            + f"\n{tails[allowed]}",
        }
        for allowed, task in TASKS.items()
    }
    return {"grammar": words["grammar"], "passage": words["passage"], "turns": turns}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", required=True, help="index of the Atlas corpus")
    parser.add_argument("--questions", type=int, default=6)
    parser.add_argument("--children", type=int, default=3)
    parser.add_argument("--calls", type=int, default=24, help="requests a tree, to the end of its wave")
    parser.add_argument("--engine", choices=("llamacpp", "vllm"), default="llamacpp")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        other = folder / "by_action.yaml"
        other.write_text(yaml.safe_dump(by_action(PROFILES / "transcript.yaml")), encoding="utf-8")
        write_records(folder / "questions.jsonl", read_questions(atlas.path("train"))[: given.questions])
        sys.stdout.write(f"{'profile':<16}{'calls':>8}{'prompt':>10}{'cached':>10}{'share':>8}{'seconds':>9}\n")
        for profile in ("transcript", str(other)):
            keys = {"policy.engine": given.engine, "policy.adapter": "atlas-warmstart", "policy.max_tokens": 96,
                    "policy.timeout": 1800, "seed": 1, "search.children": given.children, "tree.calls": given.calls,
                    "prompt.profile": profile, "prompt.unchecked": True}  # fmt: skip
            config, run = load_config(GenerateConfig, None, keys), folder / Path(profile).stem
            start = time.perf_counter()
            asyncio.run(generate(config, folder / "questions.jsonl", given.index, run))
            seconds, used = time.perf_counter() - start, read_manifest(run)["usage"]
            share = used["cached_tokens"] / used["prompt_tokens"]
            sys.stdout.write(
                f"{Path(profile).stem:<16}{used['calls']:>8,}{used['prompt_tokens']:>10,}{used['cached_tokens']:>10,}"
                f"{share:>8.1%}{seconds:>9.0f}\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
