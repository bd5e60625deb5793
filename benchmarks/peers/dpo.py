"""DPO of every weight, from files to a saved model

Inputs: 12 pairs of 400 and 40 tokens, three steps of 4 pairs, in one order, a random llama of 8
blocks (10 million weights; a fifth of them words, as in SmolLM2-135M), float32, one thread. Timed: loading, tokens,
training, saving. LLaMA-Factory runs in the environment of `scripts/setup_llamafactory.sh`. Equal: the losses of all
steps within 2e-3.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from benchmarks.peers.pairing import Peer, Told, measured

UNIT, STEPS, PAIRS = "pairs", 3, 12
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
    from training.rows import by_prompt, read_training, row_order, tokenised

    text = path("corpus").read_text(encoding="utf-8")
    tokenizer = make_tokenizer(work / "model", [text[:100_000]], TEMPLATE)
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(vocab_size=8192, hidden_size=256, intermediate_size=1024, num_hidden_layers=8,
        num_attention_heads=4, tie_word_embeddings=True)).save_pretrained(work / "model")  # fmt: skip
    ids, rows, plain = tokenizer(text[:200_000])["input_ids"], [], []
    for start in range(0, PAIRS * 480, 480):
        parts = [ids[start : start + 392], ids[start + 400 : start + 439], ids[start + 440 : start + 479]]
        prompt, *ends = (tokenizer.decode(part).strip() for part in parts)
        asked = Message(role="user", content=prompt)
        chosen, rejected = (Message(role="assistant", content=end) for end in ends)
        rows.append(Pair((asked,), (chosen,), (rejected,), f"q{start}", None, None, None, "answer", "answer", 1, None,
                         None, None, None, None, "made"))  # fmt: skip
        shown = tokenizer.apply_chat_template([asked], tokenize=False, add_generation_prompt=True)
        ends = [end + tokenizer.eos_token for end in ends]
        plain.append({"prompt": shown, "chosen": ends[0], "rejected": ends[1]})
    (work / "pairs").mkdir()
    write_records(file := work / "pairs" / "pairs.train.jsonl", rows)
    ours = [tokenised(row, tokenizer) for row in read_training(file, "dpo")]
    sides = [next(n for n, row in enumerate(ours) if row is each) for each in by_prompt(ours)]
    order = row_order([ours[n].length for n in sides], 4, 1.0, 0)
    (work / "plain.json").write_text(json.dumps([plain[sides[row]] for row in order]))  # as we train them


def told_of(told: Told, losses: list[float]) -> Told:
    return {**told, "units": PAIRS, "losses": losses}


def ours(work: Path) -> Told:
    import training.trl.dpo  # noqa: F401
    from steprag.cli import run

    keys = {"model": work / "model", "finetuning": "full", "threads": 1, "batch_size": 4,
            "learning_rate": 1e-3, "max_steps": STEPS, "scheduler": "constant_with_warmup", "warmup": 0}  # fmt: skip
    options = [word for key, value in keys.items() for word in (f"--{key}", str(value))]
    shutil.rmtree(work / "ckpt", ignore_errors=True)
    with measured() as told:
        run(["train", "--stage", "dpo", "--pairs", str(work / "pairs"), "--out", str(work / "ckpt"), *options])
    rows = [json.loads(line) for line in (work / "ckpt" / "metrics.jsonl").open()]
    return told_of(told, [row["loss"] for row in rows if "loss" in row])


def trl(work: Path) -> Told:
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    with measured() as told:
        rows = Dataset.from_list(json.loads((work / "plain.json").read_text()))
        args = DPOConfig(str(work / "trl"), **SAME, report_to=[], bf16=False, gradient_checkpointing=False,
                         train_sampling_strategy="sequential")  # fmt: skip
        trainer = DPOTrainer(str(work / "model"), args=args, train_dataset=rows)
        trainer.train()
        trainer.save_model()
    return told_of(told, [row["loss"] for row in trainer.state.log_history if "loss" in row])


def llamafactory(work: Path) -> Told:
    from llamafactory.train.tuner import run_exp

    rows = {"file_name": "plain.json", "ranking": True, "columns": {"prompt": "prompt", "chosen": "chosen",
                                                                    "rejected": "rejected"}}  # fmt: skip
    shutil.rmtree(work / "llamafactory", ignore_errors=True)  # it goes on from a checkpoint there
    (work / "dataset_info.json").write_text(json.dumps({"plain": rows}))
    with measured() as told:
        run_exp({**SAME, "stage": "dpo", "do_train": True, "model_name_or_path": str(work / "model"),
                 "dataset_dir": str(work), "dataset": "plain", "template": "empty", "finetuning_type": "full",
                 "output_dir": str(work / "llamafactory"), "cutoff_len": 1024, "report_to": "none",
                 "disable_gradient_checkpointing": True, "disable_shuffling": True})  # fmt: skip
    state = json.loads((work / "llamafactory" / "trainer_state.json").read_text())
    return told_of(told, [row["loss"] for row in state["log_history"] if "loss" in row])


def equal(ours: Told, theirs: Told) -> str:
    far = max(abs(a - b) for a, b in zip(ours["losses"], theirs["losses"], strict=True))
    assert far < 2e-3, f"losses {ours['losses']} and {theirs['losses']}"
    return f"losses within {far:.1g}"
