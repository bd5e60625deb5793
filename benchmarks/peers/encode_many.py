"""the same with 50,000 passages, in whole processes

Inputs: Atlas nineteen times, the sentences of a passage in another order each time; else as above. FlashRAG's builder
ran once, sentence-transformers three times on two days. The machine's speed changes within minutes: ours took 258 to
426 s for the same work. So sentence-transformers is about as fast.
"""

from functools import partial

from benchmarks.peers import encode
from benchmarks.peers.pairing import size

PEERS, LIMIT = {name: encode.PEERS[name] for name in ("flashrag", "sentence_transformers")}, 4000
prepare, equal = partial(encode.prepare, copies=size(19, 2)), encode.equal
ours, flashrag, sentence_transformers = encode.ours, encode.flashrag, encode.sentence_transformers
