"""the same with sampling

As above, but that each side first samples every turn in its own way, of at most 48 tokens, and then says what is given.
Why: sampling takes both some 34 s, by the difference to `grpo`.
"""

from functools import partial

from benchmarks.peers import grpo

PEERS, prepare = grpo.PEERS, grpo.prepare
ours, trl = partial(grpo.ours, sampled=True), partial(grpo.trl, sampled=True)
