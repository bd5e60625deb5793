"""Shards encoded by processes of a Ray cluster (extra `ray`), anywhere in it.

A process gets texts and gives vectors. It opens no file of the build, so the nodes need no common file system: only the
building process writes, because two hosts that map one file overwrite each other's pages. They need the encoder at the
same path. Ray replaces a process that dies, and gives its shards to the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from indexes.encoding.embed import Encoder
from indexes.encoding.work import Work
from steprag.batch.ray_cluster import check_ray, cluster, own_error
from steprag.errors import ConfigError, StepragError

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

    def encode(self, shard: int, texts: list[str]) -> tuple[int, np.ndarray]:
        """The shard, and (len(texts), dimension) float16 of its texts, in their order. Raises ConfigError where this
        node lacks the encoder.
        """
        encoder = self._encoder = self._encoder or self._loaded()
        tokens = encoder.tokenise(texts)
        found = encoder.encode_tokens(texts, tokens, batch_tokens=self._work.batch_tokens)
        return shard, found.astype(np.float16)

    def _loaded(self) -> Encoder:
        work = self._work
        if not work.encoder_folder.is_dir():
            raise ConfigError(f"a node of the cluster has no encoder at {work.encoder_folder}; put it there, as here")
        threads = None if self._device == "cuda" else 1
        how: dict[str, Any] = {"device": self._device, "dtype": work.dtype, "backend": work.backend, "threads": threads}
        return Encoder(work.encoder_folder, work.spec, **how)


def on_ray(
    work: Work, shards: list[int], devices: list[str], slots: int, texts: Texts
) -> Iterator[tuple[int, np.ndarray]]:
    """The vectors of each shard (rows, dimension) in float16, as they come.

    Raises ConfigError where Ray is missing, no cluster is there or more than one device is named; StepragError where a
    shard's processes die.
    """
    check_ray()
    import ray  # pyright: ignore[reportMissingImports]
    from ray.exceptions import RayActorError, RayTaskError  # pyright: ignore[reportMissingImports]
    from ray.util import ActorPool  # pyright: ignore[reportMissingImports]

    with cluster(slots):
        device = _device(devices, ray.cluster_resources())
        options: dict[str, Any] = {"num_cpus": 1, "num_gpus": int(device == "cuda"), "scheduling_strategy": "SPREAD",
                                   "max_restarts": -1, "max_task_retries": DEATHS - 1}  # fmt: skip
        kind: Any = ray.remote(EncodingSlot)
        actors = [kind.options(**options).remote(work, device) for _ in range(min(slots, len(shards)))]
        try:
            pool: Any = ActorPool(actors * AHEAD)
            yield from pool.map_unordered(lambda actor, shard: actor.encode.remote(shard, texts(shard)), shards)
        except RayActorError:
            raise StepragError(f"an encoding process died {DEATHS} times over the same passages (out of memory? Ray's"
                               " logs say why); run the same command again to go on behind the finished shards"
                               ) from None  # fmt: skip
        except RayTaskError as error:
            raise own_error(error) from None


def _device(devices: list[str], resources: Mapping[str, Any]) -> str:
    """cpu or cuda: what each process computes on."""
    device = ",".join(devices)
    if device == "auto":
        return "cuda" if resources.get("GPU") else "cpu"
    if device not in ("cpu", "cuda"):
        raise ConfigError(f"--device {device} with --ray: give cpu, cuda or auto; Ray gives each process a GPU")
    return device
