"""Whether a policy of `steprag tunnel` answers through llama.cpp's server as it does in this process.

    python -m benchmarks.tunnel_engines                           # marked facts, seed 1: trained here, then served
    python -m benchmarks.tunnel_engines --arm start --questions 60

The weights are written as a GGUF file of whole numbers' precision (float32) and served by
`steprag.engines.llamacpp`, as `steprag generate` starts it. The same agent asks both, greedily, the same questions.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from steprag.agent.rollout import episode_of, rollout
from steprag.experiments.tunnel import model
from steprag.experiments.tunnel.arms import ARMS, MAIN
from steprag.experiments.tunnel.grow import SEARCHES, environment_of
from steprag.experiments.tunnel.labels import LABELS
from steprag.experiments.tunnel.policy import MOST_TOKENS, BatchedPolicy
from steprag.experiments.tunnel.unit import Seed
from steprag.experiments.tunnel.world import FactWorld
from steprag.scores.metrics import exact_match
from steprag.types import Completion, Episode, Message, Sample, Usage

SLOTS = 4
NAMES = {
    **{f"self_attn.{name}_proj": f"attn_{to}" for name, to in zip("qkvo", ("q", "k", "v", "output"), strict=True)},
    **{f"mlp.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")},
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
"""Of transformers' weights, llama.cpp's name."""


def write_gguf(weights: model.Weights, path: Path) -> None:
    """The weights as llama.cpp reads them; every word is one token of the user's."""
    import gguf

    writer, heads = gguf.GGUFWriter(path, "llama"), model.TURNING
    writer.add_context_length(model.LONGEST)
    writer.add_embedding_length(model.WIDTH)
    writer.add_block_count(model.LAYERS)
    writer.add_feed_forward_length(model.INNER)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(model.WIDTH // heads)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(model.WORDS))
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f" {word}" for word in model.WORDS])
    writer.add_token_scores([0.0] * len(model.WORDS))
    writer.add_token_types([3, 3, 3] + [4] * (len(model.WORDS) - 3))
    writer.add_bos_token_id(model.BEGIN)
    writer.add_eos_token_id(model.END)
    writer.add_pad_token_id(model.PAD)
    writer.add_add_bos_token(False)
    for name, weight in weights.items():
        values = weight.detach().numpy()
        if name == "model.embed_tokens.weight":
            to = "token_embd"
        elif name == "model.norm.weight":
            to = "output_norm"
        else:
            _, _, layer, rest = name.removesuffix(".weight").split(".", 3)
            to = f"blk.{layer}.{NAMES[rest]}"
            if rest in ("self_attn.q_proj", "self_attn.k_proj"):  # llama.cpp turns neighbours, transformers halves
                values = values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        writer.add_tensor(f"{to}.weight", np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class ServedTunnelPolicy:
    """Asks llama.cpp's server, which is told the tokens of the prompt."""

    def __init__(self, address: str) -> None:
        self._address, self._free = address, asyncio.Semaphore(SLOTS)

    async def sample(self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, n: int, seed: int) -> Sample:
        """One completion, greedy."""
        del allowed, n, seed
        ids = model.prompt_ids(messages)
        async with self._free:
            told = await asyncio.to_thread(self._post, {"prompt": ids, "n_predict": MOST_TOKENS, "temperature": 0})
        said = model.encode(told["content"])
        end = next((place for place, one in enumerate(said) if one in model.CLOSING), len(said)) + 1
        return Sample((Completion(model.decode(said[:end]), "stop"),), Usage(1, len(ids), end))

    def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        connection = http.client.HTTPConnection(self._address)
        connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        told = json.loads(connection.getresponse().read())
        connection.close()
        return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arm", default="marked facts")
    parser.add_argument("--questions", type=int, default=120)
    given = parser.parse_args()
    torch.set_num_threads(1)
    arm = next(arm for arm in ARMS if arm.name == given.arm)
    weights = Seed(MAIN, 1, LABELS, SEARCHES).policy_of(arm)
    world = FactWorld(MAIN.test_world)
    asked = world.questions(given.questions, name="test")
    environment = environment_of(world)

    async def played(policy: Any) -> list[Episode]:
        states = [environment.start(question.question) for question in asked]
        return list(await asyncio.gather(*(episode_of(rollout(environment, policy, one, seed=0)) for one in states)))

    here = asyncio.run(played(BatchedPolicy(weights, 0.0)))
    with tempfile.TemporaryDirectory() as folder:
        write_gguf(weights, file := Path(folder) / "tunnel.gguf")
        command = [sys.executable, "-m", "steprag.engines.llamacpp", "--model", str(file), "--parallel", str(SLOTS),
                   "--context", str(model.LONGEST), "--threads", "1"]  # fmt: skip
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdin
            assert server.stdout
            address = json.loads(server.stdout.readline())["url"].removeprefix("http://")
            there = asyncio.run(played(ServedTunnelPolicy(address)))
            server.stdin.close()
    for name, some in (("in this process", here), ("llama.cpp", there)):
        right = [exact_match(one.prediction, q.golden_answers) for one, q in zip(some, asked, strict=True)]
        print(f"{name}: {100 * np.mean(right):.1f} % of {len(asked)} questions right")  # noqa: T201
    same = [one.state.steps == other.state.steps for one, other in zip(here, there, strict=True)]
    steps = sum(len(one.state.steps) for one in here)
    print(f"the same episode, step by step: {sum(same)} of {len(same)} ({steps} steps)")  # noqa: T201


if __name__ == "__main__":
    main()
