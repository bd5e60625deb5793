"""Steps of GRPO over episodes with a search tool: what playing and learning cost beside the completions.

A llama of 4 blocks (256 wide); 4 questions of the fixed world of `scripted.py`, 4 episodes each, 4 steps. The
completions are given, so that both sides learn from the same: two searches and an answer, right in every second
episode. TRL: `environment_factory` with a method that searches. Equal: the mean reward. Why: TRL's template writes the
tool's schema into each prompt, so that more tokens go through the model.
"""

import json
import re
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.peers import dpo
from benchmarks.peers.pairing import Told, measured, size
from benchmarks.peers.scripted import endpoint, found, question, write_questions

PEERS, UNIT, STEPS = {"trl": dpo.PEERS["trl"]}, "episodes", size(4, 1)
OPTIONS = ("--stage grpo --config recipe.yaml --model model --questions q.jsonl --out out --threads 1 --prompt.profile"
           " search-r1 --grpo.questions 4 --grpo.episodes 4 --batch_size 16 --max_length 4096")  # fmt: skip


def prepare(work: Path) -> None:
    import trl
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.models import make_tokenizer

    words = (Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja").read_text()
    (work / "model").mkdir()
    tokenizer = make_tokenizer(work / "model", [question(0), json.dumps(found("maker of gadget 0"))], words)
    shape = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **shape)).save_pretrained(work / "model")
    write_questions(work / "q.jsonl", 4 * STEPS)
    (work / "recipe.yaml").write_text("grpo: {rewards: {f1: 1.0}}")


def said(shown: str, place: int, call: str, answer: str) -> str:
    """What the `place`-th episode of a batch says where it stands."""
    number = re.findall(r"maker of gadget (\d+)\?", shown)[-1]
    if f"by Maker{number}." not in shown:
        return call % f"maker of gadget {number}"
    if f"in Town{number}." not in shown:
        return call % f"home of Maker{number}"
    return answer % (f"Town{number}" if place % 2 else "Elsewhere1")


def watched(trainer: type, told: Told, stack: ExitStack) -> None:
    """From now on, a training of that kind tells what it took, and how many tokens went through the model."""
    from transformers import LlamaModel

    train, forward = trainer.train, LlamaModel.forward

    def counted(self: Any, input_ids: Any = None, **more: Any) -> Any:
        told["tokens"] += input_ids.numel()
        return forward(self, input_ids=input_ids, **more)

    def timed(self: Any, *given: Any, **more: Any) -> Any:
        with measured() as run:
            done = train(self, *given, **more)
        rewards = [row["reward"] for row in self.state.log_history if "reward" in row]
        told.update(run, units=16 * STEPS, reward=round(sum(rewards) / len(rewards), 6))
        told["figures"] = {"tokens through the model an episode": told["tokens"] / told["units"]}
        return done

    told["tokens"] = 0
    stack.enter_context(mock.patch.object(LlamaModel, "forward", counted))
    stack.enter_context(mock.patch.object(trainer, "train", timed))


def ours(work: Path) -> Told:
    from training.train import main
    from training.trl.grpo import EpisodeGRPOTrainer

    told = Told()
    shutil.rmtree(work / "out", ignore_errors=True)

    def sample(self: Any, prompts: list[list[int]], seed: int) -> list[list[int]]:
        words = self.processing_class
        texts = [said(words.decode(ids), place, "<think> Hm. </think> <search> %s </search>", "<think> Ah. </think>"
                      " <answer> %s </answer>") for place, ids in enumerate(prompts)]  # fmt: skip
        return [words.encode(text) + [words.eos_token_id] for text in texts]

    with endpoint(0, 0) as url, ExitStack() as stack:
        watched(EpisodeGRPOTrainer, told, stack)
        stack.enter_context(mock.patch.object(EpisodeGRPOTrainer, "sample", sample))
        main(["--index", url, "--max_steps", str(STEPS), *OPTIONS.split()])
    return told


def trl(work: Path) -> Told:
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
            return "\n".join(each["document"]["contents"] for each in found(query))

    words, told = AutoTokenizer.from_pretrained(work / "model"), Told()
    call = '<tool_call>\n{"name": "search", "arguments": {"query": "%s"}}\n</tool_call>'

    def turn(self: Any, prompt_ids: list[list[int]], *_: Any, **__: Any) -> Any:
        texts = [said(words.decode(ids), place, call, "%s") for place, ids in enumerate(prompt_ids)]
        return [words.encode(text) + [words.eos_token_id] for text in texts], None

    def reward(completions: list[Any], number: list[int], **_: Any) -> list[float]:
        return [float(one[-1]["content"] == f"Town{n}") for one, n in zip(completions, number, strict=True)]

    rows = [{"prompt": [{"role": "user", "content": question(i)}], "number": i} for i in range(4 * STEPS)]
    arguments = GRPOConfig(output_dir="trl", num_generations=4, per_device_train_batch_size=16, use_cpu=True,
                           max_steps=STEPS, max_completion_length=2048, report_to="none", save_strategy="no",
                           logging_steps=1, bf16=False, gradient_checkpointing=False)  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(work / "model")
    with ExitStack() as stack:
        watched(GRPOTrainer, told, stack)
        stack.enter_context(mock.patch.object(GRPOTrainer, "_generate_single_turn", turn))
        GRPOTrainer(model=model, processing_class=words, args=arguments, reward_funcs=reward,
                    environment_factory=GadgetSearch, train_dataset=Dataset.from_list(rows)).train()  # fmt: skip
    return told


def equal(ours: Told, theirs: Told) -> str:
    assert ours["reward"] == theirs["reward"], f"mean reward {theirs['reward']}, ours {ours['reward']}"
    return f"mean reward {ours['reward']}"
