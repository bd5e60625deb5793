"""How many tokens supervised training computes for the same rows, with and without `share_prefix` and `side_by_side`.

    python benchmarks/sft_sharing.py PAIRS...           folders that hold an sft.train.jsonl

Counts tokens with padding, over one pass in batches of eight, in the order of training: the first figure of each line
is what a trainer computes that puts every row beside the others, the rest are shares of it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from steprag.engines.models import EMBEDDED, resolve_model
from steprag.engines.tokens import load_tokenizer
from training.config import TrainConfig
from training.rows import TokenRow, data_files, order_for, read_training, tokenise
from training.trl.shared_prefix import pack

BATCH = 8
WAYS = (("prompt", 1024), ("question", 1024), ("question", 2048))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="+", type=Path)
    tokenizer = load_tokenizer(resolve_model(EMBEDDED))
    for folder in parser.parse_args().pairs:
        rows = tokenise(read_training(data_files(folder, "sft")[0], "sft"), tokenizer)
        apart = computed(rows, "prompt", None)
        shares = [f"{side}, {budget}: {computed(rows, side, budget) / apart:.2f}" for side, budget in WAYS]
        sys.stdout.write(f"{folder.name}: {len(rows)} rows, {apart:,} tokens; " + "; ".join(shares) + "\n")


def computed(rows: list[TokenRow], side_by_side: str, budget: int | None) -> int:
    """Tokens of a pass, with padding; `budget` is `row_tokens`, None where nothing is shared."""
    config = TrainConfig.model_validate({"stage": "sft", "batch_size": BATCH, "side_by_side": side_by_side})
    order, total = order_for(config, rows), 0
    for start in range(0, len(order), BATCH):
        batch = [rows[place].prompt + rows[place].completions[0] for place in order[start : start + BATCH]]
        lengths = [len(row.tokens) for row in pack(batch, budget)] if budget else [len(ids) for ids in batch]
        total += len(lengths) * max(lengths)
    return total


if __name__ == "__main__":
    main()
