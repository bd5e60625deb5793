"""DPO with prompts encoded once against TRL as it comes: pairs a second, side by side in one run.

    OMP_NUM_THREADS=1 python benchmarks/dpo_speed.py                       every variant, the same batch, in turn
    OMP_NUM_THREADS=1 python benchmarks/dpo_speed.py --memory              peak memory too, a process a variant

A random model of SmolLM2-135M's shape, cut to --layers of its 30 blocks and, in proportion, to fewer words, so that
blocks and LM head keep their shares of the work. Prompts of 400 tokens, answers of 40, float32. What is timed is the
loss and its gradients on one batch, the reference scored beforehand, in processor seconds of this one thread, which a
busy machine harms least; reported are the median over --rounds and the ratio to TRL within each round.
"""

from __future__ import annotations

import argparse
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from typing import Any

VARIANTS = {
    "trl": "TRL as it comes, no checkpointing",
    "head": "the same, LM head on learnt tokens alone",
    "shared": "prompts encoded once",
}


def main() -> None:
    given = _arguments()
    if given.only:
        _step(_trainer(given), given.only, given)
        sys.stdout.write(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f}\n")
        return
    trainer = _trainer(given)
    seconds: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for number in range(given.rounds + 1):
        for name in VARIANTS:
            took = _step(trainer, name, given)
            if number:  # the first round warms up
                seconds[name].append(took)
    base = seconds["trl"]
    for name, label in VARIANTS.items():
        ratios = [slow / fast for slow, fast in zip(base, seconds[name], strict=True)]
        median = statistics.median(seconds[name])
        line = f"{label:<45}{given.pairs / median:8.3f} pairs/s{1000 * median / given.pairs / 60:8.1f} min/1,000 pairs"
        line += f"{statistics.median(ratios):7.2f}x ({min(ratios):.2f} to {max(ratios):.2f})"
        sys.stdout.write(line + (f"{_peak(name):8} MiB" if given.memory else "") + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=4, help="pairs in a batch")
    parser.add_argument("--siblings", type=int, default=1, help="pairs that share one prompt")
    parser.add_argument("--prompt", type=int, default=400)
    parser.add_argument("--answer", type=int, default=40)
    parser.add_argument("--row_tokens", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--full", action="store_true", help="every weight, not LoRA")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--only", choices=VARIANTS, help=argparse.SUPPRESS)
    return parser.parse_args()


def _peak(name: str) -> str:
    arguments = [argument for argument in sys.argv[1:] if argument != "--memory"]
    command = [sys.executable, __file__, *arguments, "--only", name]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _trainer(given: argparse.Namespace) -> Any:
    import torch
    from peft import LoraConfig, get_peft_model
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl.trainer.dpo_config import DPOConfig

    from training.trl.common import quiet
    from training.trl.dpo import StepDPOTrainer, as_dataset

    quiet()
    torch.manual_seed(0)
    words = 49152 * given.layers // 30
    shape = {"hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3}
    config = LlamaConfig(vocab_size=words, num_hidden_layers=given.layers, **shape, tie_word_embeddings=True)
    model: Any = LlamaForCausalLM(config)
    if not given.full:
        model = get_peft_model(model, LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, "a")), pad_token="a")
    options: dict[str, Any] = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "report_to": "none"}
    options |= {"precompute_ref_log_probs": True, "max_length": None}
    return StepDPOTrainer(
        model=model,
        args=DPOConfig(tempfile.mkdtemp(), per_device_train_batch_size=given.pairs, **options),
        train_dataset=as_dataset(_rows(given, words)),
        processing_class=tokenizer,
    )


def _rows(given: argparse.Namespace, words: int) -> list[Any]:
    """Pairs whose lengths spread by a tenth around the means, as a batch sorted by length has them."""
    from training.rows import TokenRow

    draw = random.Random(0)

    def ids(mean: int) -> list[int]:
        return [draw.randrange(words) for _ in range(round(mean * draw.uniform(0.95, 1.05)))]

    rows = []
    while len(rows) < given.pairs:
        prompt = ids(given.prompt)
        rows += [TokenRow(prompt, (ids(given.answer), ids(given.answer))) for _ in range(given.siblings)]
    return rows[: given.pairs]


def _step(trainer: Any, name: str, given: argparse.Namespace) -> float:
    """Seconds for the loss of one batch and its gradients."""
    from training.trl.common import completion_only_head
    from training.trl.shared_prefix import sharing

    batch = trainer.data_collator([trainer.train_dataset[i] for i in range(given.pairs)])
    trainer.model.train()
    trainer.model.zero_grad()
    with ExitStack() as stack:
        if name != "trl":
            stack.enter_context(completion_only_head())
        if name == "shared":
            stack.enter_context(sharing(trainer.model, given.row_tokens))
        start = time.process_time()
        trainer.compute_loss(trainer.model, batch).backward()
        return time.process_time() - start


if __name__ == "__main__":
    main()
