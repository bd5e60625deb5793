"""What benchmarks/gpu_day.yaml names as {made}: python -m tests.gpu_inputs FOLDER cpu|cuda; small on the processor."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, BertConfig, BertModel

from steprag import atlas
from steprag.console.progress import say
from steprag.engines.cache import made_once
from steprag.engines.models import embedded_encoder, resolve_model
from steprag.engines.weights import load_tokenizer
from steprag.records.jsonl import read_json, read_rows, write_records
from tests.test_gpu import Bench, Device

SHAPES = Path(__file__).parents[1] / "configs/training/models.json"
TINY = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
BGE_BASE = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}


def fill(folder: Path) -> None:
    tokenizer = load_tokenizer(resolve_model("smollm2-135m-instruct"))
    tiny = {**TINY, "num_key_value_heads": 2, "vocab_size": len(tokenizer) + 128} if small else {}
    shape = {**read_json(SHAPES)["Qwen/Qwen2.5-7B-Instruct"], **tiny, "eos_token_id": tokenizer.eos_token_id}
    with torch.device(device):  # in bfloat16 where it is made: no 28 GB of float32
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**shape), dtype=torch.bfloat16)
    for part in (model, tokenizer):
        part.save_pretrained(folder / "model")
    words = AutoTokenizer.from_pretrained(embedded_encoder(), trust_remote_code=False)
    for part in (BertModel(BertConfig.from_dict({**(TINY if small else BGE_BASE), "vocab_size": len(words)})), words):
        part.save_pretrained(folder / "encode/model")
    text = " ".join(row["contents"] for _, row in read_rows(atlas.path("corpus"))).split()
    starts = ((n, n * 37 % (len(text) - 100)) for n in range(64 if small else 200_000))
    rows = ({"id": str(n), "contents": f"{n}\n{' '.join(text[at : at + 100])}"} for n, at in starts)
    write_records(folder / "encode/corpus.jsonl", rows)
    bench = Bench(folder, device)
    say(f"{bench.index}, {bench.long_pairs}")  # each is made when it is first asked for


if __name__ == "__main__":
    device: Device = "cpu" if sys.argv[2] == "cpu" else "cuda"
    small = device == "cpu"
    made_once(Path(sys.argv[1]), fill, current=Path.exists)
