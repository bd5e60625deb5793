"""the same with 50,000 passages, in whole processes

Inputs: Atlas nineteen times, the sentences of a passage in another order each time; else as above.
"""

from functools import partial

from benchmarks.peers import encode
from benchmarks.peers.pairing import size

PEERS, LIMIT = {"sentence_transformers": encode.PEERS["sentence_transformers"]}, 4000
prepare, equal = partial(encode.prepare, copies=size(19, 2)), encode.equal
ours, sentence_transformers = encode.ours, encode.sentence_transformers
