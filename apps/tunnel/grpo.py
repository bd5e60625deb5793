"""Arms of the product's GRPO: what `steprag train --stage grpo` does, in this process and in the tunnel's world.

The product learns completions to their end, as they were sampled. So their start ends its steps with `</s>`, which the
tunnel's other arms do without, and their prompts show it.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from apps.tunnel.arms import GRPO_KEYS, LabelArm
from apps.tunnel.grow import environment_of
from apps.tunnel.model import IDS, LONGEST, SPLIT, START, WORDS, Weights, start_of
from apps.tunnel.policy import MOST_TOKENS
from apps.tunnel.world import FactWorld
from steprag.agent.environment import Environment
from steprag.records.jsonl import read_rows
from steprag.types import Question

LEVEL = "ended"
"""Their start."""
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'user' %}<s> {{ m['content'] }}{% else %} {{ m['content'] }} </s>"
    "{% endif %}{% endfor %}"
)
PASSES = 2
"""Over the questions: some 128 calls each, twice those of the other arms' trees."""


def environment_with_ends(world: FactWorld) -> Environment:
    """The agent's environment, whose prompts show the end of each step."""
    plain = environment_of(world)
    words = plain.profile.words.model_copy(update={"step": "{text} </s> "})
    return replace(plain, profile=replace(plain.profile, words=words))


def write_folder(weights: Weights, folder: Path) -> None:
    """Weights, tokenizer and template, as transformers reads them."""
    from safetensors.torch import save_file
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    for name in ("config.json", "generation_config.json"):
        shutil.copyfile(START / name, folder / name)
    save_file({name: one.contiguous() for name, one in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    tokenizer = Tokenizer(models.WordLevel(IDS, unk_token=WORDS[0]))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Replace(word, "") for word in ("Who is ", "'s")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(SPLIT.pattern), "removed", invert=True)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, chat_template=TEMPLATE, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    ).save_pretrained(folder)


def trained(arm: LabelArm, world: FactWorld, asked: Sequence[Question], seed: int) -> tuple[Weights, dict[str, Any]]:
    """The policy that an arm makes of its start, and the calls that it took."""
    from safetensors.torch import load_file

    from steprag.engines.models import resolve_model
    from steprag.engines.weights import load_tokenizer
    from steprag.runs.run import open_run
    from training.config import TrainConfig
    from training.job import Job
    from training.play.world import EPISODES, World
    from training.trl.common import quiet
    from training.trl.grpo import train

    if arm.keys == "start":
        return start_of(LEVEL), {"calls": 0}
    section = {"episodes": 7, "questions": 4, "max_tokens": MOST_TOKENS + 1, "rewards": {"f1": 1.0},
               **GRPO_KEYS[arm.keys]}  # fmt: skip
    recipe = {"stage": "grpo", "finetuning": "full", "grpo": section, "learning_rate": arm.rate, "warmup": 10,
              "scheduler": "linear", "max_length": LONGEST + MOST_TOKENS + 1, "batch_size": 32, "collapse": False,
              "save_steps": 10_000, "epochs": PASSES, "seed": seed}  # fmt: skip
    with TemporaryDirectory() as kept:
        start, out = Path(kept, "start"), Path(kept, "run")
        start.mkdir()
        write_folder(start_of(LEVEL), start)
        config, files = TrainConfig.model_validate(recipe | {"model": str(start)}), resolve_model(str(start), None)
        quiet()
        with open_run(out, "train", identity={}, config={}) as run:
            place = World(list(asked), environment_with_ends(world), {})
            train(Job(files, load_tokenizer(files, {}), [], [], config, run, place))
            unmoved = run.manifest.get("unmoved", False)
        saved, lines = load_file(out / "model.safetensors"), [line for _, line in read_rows(out / EPISODES)]
    calls = sum(len(line["steps"]) + (line["refused"] is not None) for line in lines)
    return {name: saved[name].float() for name in start_of(LEVEL)}, {"calls": calls, "unmoved": unmoved}
