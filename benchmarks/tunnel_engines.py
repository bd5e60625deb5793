"""Whether a policy of `steprag tunnel` is the same behind the commands of the product as in this process.

    python -m benchmarks.tunnel_engines --questions 300

Pairs of marked facts (label `gold`, one action) train the start twice: here, and by `steprag pairs` and `steprag train`
(TRL) from the same trees. Each policy is then asked by the same agent, greedily, here and as a GGUF file (float32)
behind llama.cpp's server, as `steprag generate` starts it.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from apps.tunnel import model
from apps.tunnel.arms import MAIN, LabelArm
from apps.tunnel.grow import Forest, environment_of, flat, grown, together
from apps.tunnel.labels import LABELS
from apps.tunnel.policy import MOST_TOKENS, BatchedPolicy
from apps.tunnel.train import LearntPair, LearntRow, Schedule, dpo
from apps.tunnel.unit import made_pairs, pair_rows
from apps.tunnel.world import FactWorld
from steprag.agent.rollout import episode_of, rollout
from steprag.policy.protocols import Policy
from steprag.records.jsonl import write_records
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


def write_folder(folder: Path) -> None:
    """The start with its tokenizer and template, as `steprag train` reads a model."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    shutil.copytree(model.START, folder)
    tokenizer = Tokenizer(models.WordLevel(model.IDS, unk_token=model.WORDS[model.PAD]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(model.SPLIT.pattern), "removed", invert=True)
    template = (
        "{% for m in messages %}{% if m['role'] == 'user' %}<s> {{ m['content'] }}"
        "{% else %} {{ m['content'] }} </s>{% endif %}{% endfor %}"
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, chat_template=template, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    ).save_pretrained(folder)


def ended(*rows: LearntRow) -> LearntPair:
    """A pair whose steps are followed by the token that ends a turn, as `steprag train` writes them."""
    one, other = (LearntRow([*row.ids, model.END], ((row.spans[0][0], len(row.ids) + 1),)) for row in rows)
    return one, other


def trained_by_commands(forest: Forest, schedule: Schedule, folder: Path) -> model.Weights:
    """What `steprag pairs` and `steprag train` make of the trees."""
    write_folder(folder / "start")
    write_records(folder / "trees.jsonl", forest.trees)
    pairs = (
        "pairs --label.name gold --pairs.cross_action false --validation 0 --leakage.encoder none --card.plots false"
    )
    train = "train --stage dpo --finetuning full --dpo.sft_weight 1 --warmup 10 --prompt.profile tunnel"
    steps = [f"--learning_rate={schedule.rate}", f"--batch_size={schedule.batch}", f"--max_steps={schedule.steps}"]
    for command in (
        [*pairs.split(), f"--trees={folder / 'trees.jsonl'}", f"--out={folder / 'pairs'}"],
        [
            *train.split(),
            f"--pairs={folder / 'pairs'}",
            f"--model={folder / 'start'}",
            f"--out={folder / 'policy'}",
            *steps,
        ],
    ):
        subprocess.run([sys.executable, "-m", "apps.commands", *command], check=True, stdout=subprocess.DEVNULL)
    weights = load_file(folder / "policy" / "model.safetensors")
    return {name: weights[name].float() for name in model.start_of("middle")}


def served(weights: model.Weights, play: Callable[[Policy], list[Episode]], folder: Path) -> list[Episode]:
    """The episodes of these weights behind llama.cpp's server."""
    write_gguf(weights, folder / "tunnel.gguf")
    command = [sys.executable, "-m", "steprag.engines.llamacpp", "--model", str(folder / "tunnel.gguf"),
               "--parallel", str(SLOTS), "--context", str(model.LONGEST), "--threads", "1"]  # fmt: skip
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin
        assert server.stdout
        try:
            return play(ServedTunnelPolicy(json.loads(server.stdout.readline())["url"].removeprefix("http://")))
        finally:
            server.stdin.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=300)
    given = parser.parse_args()
    torch.set_num_threads(1)
    start, world, test = model.start_of("middle"), FactWorld(5001), FactWorld(MAIN.test_world)
    asked, environment, schedule = test.questions(given.questions, name="test"), environment_of(test), Schedule()

    def play(policy: Policy) -> list[Episode]:
        states = [environment.start(question.question) for question in asked]
        return together(episode_of(rollout(environment, policy, state, seed=0)) for state in states)

    forest = Forest(world, grown(world, start, world.questions(MAIN.questions), MAIN.calls, 1, flat), start)
    pairs = made_pairs(LabelArm("marked facts", "marked facts"), LABELS["marked facts"], forest)
    print(f"{len(pairs)} pairs")  # noqa: T201
    with tempfile.TemporaryDirectory() as kept:
        folder = Path(kept)
        rng = np.random.default_rng
        policies = {
            "the start": start,
            "trained here": dpo(start, pair_rows(pairs), schedule, rng(1)),
            "trained here, with an end of turn": dpo(
                start, [ended(*rows) for rows in pair_rows(pairs)], schedule, rng(1)
            ),
            "trained by the commands": trained_by_commands(forest, schedule, folder),
        }
        for name, weights in policies.items():
            here, there = play(BatchedPolicy(weights, 0.0)), served(weights, play, folder)
            right = [100 * np.mean([exact_match(one.prediction, q.golden_answers) for one, q in
                                    zip(some, asked, strict=True)]) for some in (here, there)]  # fmt: skip
            same = sum(one.state.steps == other.state.steps for one, other in zip(here, there, strict=True))
            told = f"{name}: EM {right[0]:.1f} here, {right[1]:.1f} behind llama.cpp"
            print(f"{told}; {same} of {len(asked)} episodes are the same")  # noqa: T201


if __name__ == "__main__":
    main()
