"""The reward of an episode in verl: the F1 of its answer, with our own metric. Loaded by verl, from this path.

Needs this checkout's core in verl's environment: pip install --no-deps -e .
"""

import re
from typing import Any

from steprag.scores.metrics import f1

ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def compute_score(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, **_: Any) -> float:
    """F1 of the last `<answer>` against the golden answers; 0 without one."""
    del data_source, extra_info
    found = ANSWER.findall(solution_str)
    return f1(found[-1].strip(), tuple(ground_truth["target"])) if found else 0.0
