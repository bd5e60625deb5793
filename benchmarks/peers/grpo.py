"""steps of GRPO over episodes with a search tool: what playing and learning cost beside the completions

Every weight of a llama of 4 blocks (256 wide); 4 questions of the fixed world of `scripted.py`, 4 episodes each, 8
steps, a thread a core. Timed: the training, without loading. The completions are given, so that both sides learn from
the same: two searches and an answer, right in every second episode. TRL: `environment_factory` with a method that
searches. Equal: the mean reward. Why: ours computes what an episode's rows share once; TRL's template writes the tool's
schema into each prompt. Ours also sends a third of the rows, through the weights that training began with, for the
divergence in its log; TRL does not.
"""

import json
import re
import shutil
from functools import wraps
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.peers import dpo
from benchmarks.peers.pairing import Told, measured, size
from benchmarks.peers.scripted import endpoint, found, passages, question, write_questions

PEERS, STEPS = {"trl": dpo.PEERS["trl"]}, size(8, 1)
OPTIONS = ("--stage grpo --finetuning full --config recipe.yaml --model model --questions q.jsonl --out out"
           " --prompt.profile search-r1 --grpo.questions 4 --grpo.episodes 4 --batch_size 16 --max_length 4096"
           " --grpo.max_tokens 48 --max_steps")  # fmt: skip


def prepare(work: Path) -> None:
    import trl
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.models import make_tokenizer

    words = (Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja").read_text()
    shape = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4}
    LlamaForCausalLM(LlamaConfig(vocab_size=400, **shape)).save_pretrained(work / "model")
    make_tokenizer(work / "model", [question(0), json.dumps(found("maker of gadget 0"))], words)
    write_questions(work / "q.jsonl", 4 * STEPS)
    (work / "recipe.yaml").write_text("grpo: {rewards: {f1: 1.0}}")


def said(words: Any, prompts: list[list[int]], call: str, answer: str) -> list[list[int]]:
    """What each episode of a batch says where it stands."""
    texts = []
    for place, shown in enumerate(map(words.decode, prompts)):
        number = re.findall(r"maker of gadget (\d+)\?", shown)[-1]
        if f"by Maker{number}." not in shown:
            texts.append(call % f"maker of gadget {number}")
        elif f"in Town{number}." not in shown:
            texts.append(call % f"home of Maker{number}")
        else:
            texts.append(answer % (f"Town{number}" if place % 2 else "Elsewhere1"))
    return [words.encode(text) + [words.eos_token_id] for text in texts]


def watched(trainer: type, **methods: Any) -> Told:
    """What a training of that kind will take, and how many tokens will go through the model; `methods` are the
    trainer's from now on.
    """
    from transformers import LlamaModel

    train, forward, told = trainer.train, LlamaModel.forward, Told(tokens=0)

    @wraps(forward)
    def counted(self: Any, input_ids: Any = None, **more: Any) -> Any:
        told["tokens"] += input_ids.numel()
        return forward(self, input_ids=input_ids, **more)

    def timed(self: Any, *given: Any, **more: Any) -> Any:
        with measured() as run:
            done = train(self, *given, **more)
        rewards = [row["reward"] for row in self.state.log_history if "reward" in row]
        told.update(run, same={"mean reward": round(sum(rewards) / len(rewards), 6)})
        told["figures"] = {"tokens through the model an episode": told["tokens"] / 16 / STEPS}
        return done

    mock.patch.object(LlamaModel, "forward", counted).start()
    mock.patch.multiple(trainer, train=timed, **methods).start()
    return told


def ours(work: Path, sampled: bool = False) -> Told:
    from training.train import main
    from training.trl.grpo import EpisodeGRPOTrainer

    own = EpisodeGRPOTrainer.sample

    def sample(self: Any, prompts: list[list[int]], seed: int) -> list[list[int]]:
        if sampled:
            own(self, prompts, seed)
        return said(self.processing_class, prompts, "<think> Hm. </think> <search> %s </search>",
                    "<think> Ah. </think> <answer> %s </answer>")  # fmt: skip

    shutil.rmtree("out", ignore_errors=True)
    told = watched(EpisodeGRPOTrainer, sample=sample)
    with endpoint(0, 0) as url:
        main(["--index", url, *OPTIONS.split(), str(STEPS)])
    return told


def trl(work: Path, sampled: bool = False) -> Told:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    class GadgetSearch:
        def reset(self, **_: Any) -> None:
            pass

        def search(self, query: str) -> str:
            """Searches, and returns passages.

            Args:
                query: What is looked for.
            """
            return passages(query)

    call = '<tool_call>\n{"name": "search", "arguments": {"query": "%s"}}\n</tool_call>'

    own = GRPOTrainer._generate_single_turn

    def turn(self: Any, prompt_ids: list[list[int]], *more: Any, **named: Any) -> Any:
        if sampled:
            self.generation_config.max_new_tokens = 48
            own(self, prompt_ids, *more, **named)
        return said(self.processing_class, prompt_ids, call, "%s"), None

    def reward(completions: list[Any], number: list[int], **_: Any) -> list[float]:
        return [float(one[-1]["content"] == f"Town{n}") for one, n in zip(completions, number, strict=True)]

    rows = [{"prompt": [{"role": "user", "content": question(i)}], "number": i} for i in range(4 * STEPS)]
    arguments = GRPOConfig("trl", num_generations=4, per_device_train_batch_size=16, use_cpu=True, max_steps=STEPS,
                           max_completion_length=2048, report_to="none", logging_steps=1, bf16=False,
                           gradient_checkpointing=False)  # fmt: skip
    told, words = watched(GRPOTrainer, _generate_single_turn=turn), AutoTokenizer.from_pretrained("model")
    model = AutoModelForCausalLM.from_pretrained("model")
    GRPOTrainer(model, reward, arguments, Dataset.from_list(rows), processing_class=words,
                environment_factory=GadgetSearch).train()  # fmt: skip
    return told
