"""Shards encoded by processes of a Ray cluster (extra `ray`), anywhere in it.

A process gets texts and gives vectors. It opens no file of the build, so the nodes need no common file system: the one
that builds alone writes, as two hosts that map one file would overwrite each other's pages. They need the encoder at
the same path. A process that dies is replaced and its shards are encoded again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from indexes.encoding.embed import Encoder
from indexes.encoding.work import Work
from steprag.batch.ray_cluster import check_ray, cluster, own_error
from steprag.errors import ConfigError, StepragError
from steprag.progress import say

DEATHS = 4
"""A shard whose process dies so often ends the build."""
Texts = Callable[[int], list[str]]
"""Reads the texts of a shard."""
AHEAD = 2
"""Shards that a process has at once: one in the model, one waiting."""


class EncodingSlot:
    """One such process, as an actor: an encoder, loaded at the first shard. One thread, unless it has a GPU."""

    def __init__(self, work: Work, device: str) -> None:
        self._work, self._device = work, device
        self._encoder: Encoder | None = None

    def encode(self, texts: list[str]) -> np.ndarray:
        """(len(texts), dimension) float16, in their order. Raises ConfigError where this node lacks the encoder."""
        encoder = self._encoder = self._encoder or self._loaded()
        tokens = encoder.tokenise(texts)
        return encoder.encode_tokens(texts, tokens, batch_tokens=self._work.batch_tokens).astype(np.float16)

    def _loaded(self) -> Encoder:
        work = self._work
        if not work.encoder_folder.is_dir():
            raise ConfigError(f"a node of the cluster has no encoder at {work.encoder_folder}; put it there, as here")
        threads = None if self._device == "cuda" else 1
        how: dict[str, Any] = {"device": self._device, "dtype": work.dtype, "backend": work.backend, "threads": threads}
        return Encoder(work.encoder_folder, work.spec, **how)


class _Encoders:
    """The processes, and what each has under work: the reply that is awaited, and the shard that it is of."""

    def __init__(self, start: Callable[[], Any], count: int, shards: list[int], texts: Texts) -> None:
        self._start, self._texts, self._left = start, texts, list(reversed(shards))
        self._actors = [start() for _ in range(count)]
        self._deaths = Counter[int]()
        self.running: dict[Any, tuple[int, int]] = {}
        for place in list(range(count)) * AHEAD:
            self.feed(place)

    def feed(self, place: int) -> None:
        """Gives a process the next shard, where one is left."""
        if self._left:
            self._give(place, self._left.pop())

    def _give(self, place: int, shard: int) -> None:
        self.running[self._actors[place].encode.remote(self._texts(shard))] = place, shard

    def bury(self, place: int) -> None:
        """Puts another process in a dead one's place, with its shards. Raises StepragError where one kills them all."""
        lost = {reply: shard for reply, (owner, shard) in self.running.items() if owner == place}
        for reply in lost:
            del self.running[reply]
        self._deaths.update(lost.values())
        if any(self._deaths[shard] >= DEATHS for shard in lost.values()):
            raise StepragError(f"an encoding process died {DEATHS} times over the same passages (out of memory? Ray's"
                               " logs say why); run the same command again to go on behind the finished shards"
                               )  # fmt: skip
        say(f"ray: encoding process {place} died; another one takes its place")
        self._actors[place] = self._start()
        for shard in lost.values():
            self._give(place, shard)


def on_ray(
    work: Work, shards: list[int], devices: list[str], slots: int, texts: Texts
) -> Iterator[tuple[int, np.ndarray]]:
    """The vectors of each shard (rows, dimension) in float16, as they come.

    Raises ConfigError where Ray is missing, no cluster is there or more than one device is named.
    """
    check_ray()
    import ray  # pyright: ignore[reportMissingImports]
    from ray.exceptions import RayActorError, RayTaskError  # pyright: ignore[reportMissingImports]

    with cluster(slots):
        device = _device(devices, ray.cluster_resources())
        options: dict[str, Any] = {"num_cpus": 1, "num_gpus": int(device == "cuda"), "scheduling_strategy": "SPREAD"}
        kind: Any = ray.remote(EncodingSlot)
        pool = _Encoders(lambda: kind.options(**options).remote(work, device), min(slots, len(shards)), shards, texts)
        while pool.running:
            (reply,), _ = ray.wait(list(pool.running))
            place, shard = pool.running[reply]
            try:
                found = ray.get(reply)
            except RayActorError:
                pool.bury(place)
                continue
            except RayTaskError as error:
                raise own_error(error) from None
            del pool.running[reply]
            pool.feed(place)
            yield shard, found


def _device(devices: list[str], resources: Mapping[str, Any]) -> str:
    """cpu or cuda: what each process computes on."""
    device = ",".join(devices)
    if device == "auto":
        return "cuda" if resources.get("GPU") else "cpu"
    if device not in ("cpu", "cuda"):
        raise ConfigError(f"--device {device} with --ray: give cpu, cuda or auto; Ray gives each process a GPU")
    return device
