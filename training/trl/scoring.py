"""Log-probabilities of given texts by a model in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from trl.trainer.utils import pad

from training.turn_gains import Scored


def score_texts(model: Any, texts: Sequence[Scored], size: int, fill: int) -> list[float]:
    """The sum of the log-probabilities of each text's tokens behind its prompt, in batches of `size` sequences.

    `fill`: the id that pads.
    """
    told: list[float] = []
    with torch.no_grad():
        for start in range(0, len(texts), size):
            told += _batch(model, texts[start : start + size], fill)
    return told


def _batch(model: Any, texts: Sequence[Scored], fill: int) -> list[float]:
    """One forward; sequences end in the same column, so that only the texts' places need logits."""
    whole, device = [torch.tensor(prompt + text) for prompt, text in texts], model.device
    ids = pad(whole, fill, "left").to(device)
    mask = pad([torch.ones_like(each) for each in whole], 0, "left").to(device)
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    longest = max(len(text) for _, text in texts)
    logits = model(input_ids=ids, attention_mask=mask, position_ids=places, logits_to_keep=longest + 1,
                   use_cache=False).logits  # fmt: skip
    logps = torch.log_softmax(logits[:, :-1].float(), dim=-1)
    each = logps.gather(-1, ids[:, -longest:, None])[..., 0]
    return [float(row[longest - len(text) :].sum()) for row, (_, text) in zip(each, texts, strict=True)]
