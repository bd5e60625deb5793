"""DPO of every weight, from files to a saved model

Inputs: 64 pairs of 400 and 40 tokens, 16 steps of 4 pairs, in one order, a random llama of 8 blocks (10 million
weights; a fifth of them words, as in SmolLM2-135M), float32, a thread a core. Timed: whole processes. Equal: the losses
of all steps within 2e-3. Why: ours computes a prompt once for both answers, 480 tokens a pair where others take 880:
without padding that is at most 1.83 times as fast. Small products of matrices share two cores less well than large
ones: ours keeps 1.6 busy, others 1.8. The goal of 2 is missed.
"""

import json
import shutil
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peers.pairing import Peer, Told, size

STEPS = size(16, 3)
PAIRS = 4 * STEPS
PEERS = {
    "trl": Peer("trl==1.16.0 transformers==5.23.0 datasets==5.2.0 jmespath"),
    "llamafactory": Peer(script="scripts/setup_llamafactory.sh"),
}
SAME = {"learning_rate": 1e-3, "weight_decay": 0.0, "max_grad_norm": 1.0, "per_device_train_batch_size": 4,
        "max_steps": STEPS, "lr_scheduler_type": "constant", "logging_steps": 1, "use_cpu": True}  # fmt: skip


def prepare(work: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from steprag.atlas import path
    from steprag.records.jsonl import write_records
    from steprag.records.training_rows import Pair
    from steprag.types import Message
    from tests.models import TEMPLATE, make_tokenizer
    from training.order import by_prompt, row_order
    from training.rows import read_training, tokenised

    text, rows, said = path("corpus").read_text(encoding="utf-8"), [], partial(Message, role="assistant")
    tokenizer = make_tokenizer(work / "model", [text[:100_000]], TEMPLATE)
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(vocab_size=8192, hidden_size=256, intermediate_size=1024, num_hidden_layers=8,
        num_attention_heads=4, tie_word_embeddings=True)).save_pretrained(work / "model")  # fmt: skip
    ids = tokenizer(text[: PAIRS * 4000])["input_ids"]
    for start in range(0, PAIRS * 480, 480):
        parts = [ids[start : start + 392], ids[start + 400 : start + 439], ids[start + 440 : start + 479]]
        prompt, chosen, rejected = (tokenizer.decode(part).strip() for part in parts)
        rows.append(Pair((Message(role="user", content=prompt),), (said(content=chosen),), (said(content=rejected),),
                         f"q{start}", None, None, None, "answer", "answer", 1, *[None] * 5, "made"))  # fmt: skip
    (work / "pairs").mkdir()
    write_records(file := work / "pairs" / "pairs.train.jsonl", rows)
    tokens = by_prompt([tokenised(row, tokenizer) for row in read_training(file, "dpo")])
    order = row_order([row.length for row in tokens], 4, 1.0, 0)
    texts = ([tokenizer.decode(part) for part in (tokens[n].prompt, *tokens[n].completions)] for n in order)
    plain = [dict(zip(("prompt", "chosen", "rejected"), row, strict=True)) for row in texts]
    (work / "plain.json").write_text(json.dumps(plain))  # as we train them


def told_of(log: Iterable[dict[str, Any]]) -> Told:
    return {"losses": [row["loss"] for row in log if "loss" in row]}


def ours(work: Path) -> Told:
    from apps.commands import run

    shutil.rmtree("ckpt", ignore_errors=True)
    line = ("train --stage dpo --pairs pairs --out ckpt --model model --finetuning full --batch_size 4"
            f" --learning_rate 1e-3 --max_steps {STEPS} --scheduler constant_with_warmup --warmup 0")  # fmt: skip
    run(line.split())
    return told_of(map(json.loads, (work / "ckpt" / "metrics.jsonl").open()))


def trl(work: Path) -> Told:
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    rows = Dataset.from_list(json.loads((work / "plain.json").read_text()))
    args = DPOConfig("trl", **SAME, report_to=[], bf16=False, gradient_checkpointing=False,
                     train_sampling_strategy="sequential")  # fmt: skip
    trainer = DPOTrainer("model", args=args, train_dataset=rows)
    trainer.train()
    trainer.save_model()
    return told_of(trainer.state.log_history)


def llamafactory(work: Path) -> Told:
    from llamafactory.train.tuner import run_exp

    shutil.rmtree("llamafactory", ignore_errors=True)  # it goes on from a checkpoint there
    columns = {each: each for each in ("prompt", "chosen", "rejected")}
    rows = {"plain": {"file_name": "plain.json", "ranking": True, "columns": columns}}
    (work / "dataset_info.json").write_text(json.dumps(rows))
    run_exp({**SAME, "stage": "dpo", "do_train": True, "model_name_or_path": "model", "dataset_dir": ".",
             "dataset": "plain", "template": "empty", "finetuning_type": "full", "output_dir": "llamafactory",
             "cutoff_len": 1024, "report_to": "none", "disable_gradient_checkpointing": True,
             "disable_shuffling": True})  # fmt: skip
    return told_of(json.loads((work / "llamafactory" / "trainer_state.json").read_text())["log_history"])


def equal(ours: Told, theirs: Told) -> str:
    far = max(abs(a - b) for a, b in zip(ours["losses"], theirs["losses"], strict=True))
    assert far < 2e-3, f"losses {ours['losses']} and {theirs['losses']}"
    return f"losses within {far:.1g}"
