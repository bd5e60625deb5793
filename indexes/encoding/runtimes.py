"""Other runtimes for an encoder on a CPU: its transformer exported to ONNX, run by ONNX Runtime or by OpenVINO.

sentence-transformers has both as back ends, but by way of `optimum`, whose releases cannot be installed beside
transformers 5. So PyTorch's own exporter writes the file; pooling stays where it was. The export of an encoder takes a
minute or two and is kept in the cache.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np

from steprag.console.progress import say
from steprag.engines.cache import cache_dir, made_once
from steprag.errors import ConfigError, quoted
from steprag.extras import remedy

Backend = Literal["torch", "onnx", "openvino"]
QueryBackend = Literal["auto", Backend]
"""auto: OpenVINO, else ONNX Runtime, whichever is installed, if it gives the vectors of torch."""
AGREE = 0.9999
"""Least cosine of a text's vectors by two runtimes that count as one encoder; float32 rounding leaves 0.999999."""
PROBE = ("Tirana", "Which river flows through the town in which Kepler was born?", "The lek is money. " * 99)
"""The last is longer than the windows of attention that some models have."""
PACKAGES = {"onnx": ("onnxscript", "onnxruntime"), "openvino": ("onnxscript", "openvino")}
Run = Callable[["dict[str, np.ndarray]"], "np.ndarray"]
"""Token ids and attention mask (texts, tokens) to vectors of the tokens (texts, tokens, dimension)."""


def lacking(name: QueryBackend) -> list[str]:
    """The packages of a runtime that are not installed."""
    return [package for package in PACKAGES.get(name, ()) if importlib.util.find_spec(package) is None]


def check_backend(name: QueryBackend) -> None:
    """Raises ConfigError where the packages of a runtime are not installed."""
    if missing := lacking(name):
        raise ConfigError(f"--backend {name} needs {' and '.join(missing)}; {remedy(name)}")


def device_here(name: str, dtype: str = "float32") -> str:
    """A device of PyTorch by its name, such as `cuda:1`; `auto` is a CUDA GPU where there is one, else `cpu`.

    Raises ConfigError for one that is not here.
    """
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return name
    try:
        asked = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"--device {quoted(name)}: give cpu, cuda, cuda:0,cuda:1 or auto") from None
    here = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if here is None or asked.type != here.type:
        remedy = "--device cpu" if dtype == "float32" else "--device cpu --dtype float32"
        raise ConfigError(f"--device {name}: no GPU here of that kind; give {remedy}")
    if (asked.index or 0) >= (there := torch.accelerator.device_count()):
        raise ConfigError(f"--device {name}: {there} GPUs are here, {here.type}:0 to {here.type}:{there - 1}")
    return name


def give_over(transformer: Any, name: Backend, threads: int, weight_hash: str) -> None:
    """Has a loaded sentence-transformers Transformer module compute in another runtime from now on."""
    check_backend(name)
    file = _exported(transformer.model, weight_hash)
    transformer.model.forward = _forward({"onnx": _onnx_runtime, "openvino": _openvino}[name](file, threads))


def drop_weights(transformer: Any) -> None:
    """Lets go of PyTorch's weights of a module that another runtime computes for good."""
    import torch

    for weight in transformer.model.parameters():
        weight.data = torch.empty(0, dtype=weight.dtype)


def cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """(n,) of each row of one and the same row of the other; 0 where a row has no length."""
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return (one * other).sum(axis=1) / np.maximum(lengths, 1e-12)


def give_over_if_alike(
    transformer: Any, encode: Callable[[tuple[str, ...]], np.ndarray], threads: int, weight_hash: str
) -> None:
    """Likewise in OpenVINO, else ONNX Runtime, if `PROBE` then has torch's vectors; says which it is."""
    name: Backend | None = next((one for one in ("openvino", "onnx") if not lacking(one)), None)
    if name is None:
        return
    before, own = encode(PROBE), transformer.model.forward
    try:
        give_over(transformer, name, threads, weight_hash)
        least = float(cosines(before, encode(PROBE)).min())
        told = f"cosine to torch's vectors {least:.6f}"
    except (RuntimeError, ValueError, ImportError, OSError, ConfigError) as error:  # not exported, run, or kept
        least, told = -1.0, f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    alike = least >= AGREE  # not so where it is no number
    if alike:
        drop_weights(transformer)
    else:
        transformer.model.forward = own
    say(f"index: queries are encoded by {name if alike else f'torch, not by {name}'} ({told})")


def _exported(model: Any, weight_hash: str) -> Path:
    """The model's ONNX file in the cache, written where it is missing."""
    import torch

    def fill(folder: Path) -> None:
        say("index: converting the encoder for another runtime, once; this takes a minute or two")
        _export(model, folder / "model.onnx")

    how = f"{weight_hash} {torch.__version__} {model.config.to_json_string()}"
    target = cache_dir() / "onnx" / hashlib.sha256(how.encode()).hexdigest()[:24]
    return made_once(target, fill, current=Path.is_dir) / "model.onnx"


def _export(model: Any, path: Path) -> None:
    import torch

    class Core(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    ids = torch.ones((2, 9), dtype=torch.long)
    axes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    torch.onnx.export(
        Core().eval(),
        (ids, torch.ones_like(ids)),
        os.fspath(path),
        input_names=["input_ids", "attention_mask"],
        output_names=["token_embeddings"],
        dynamic_shapes=(axes, axes),
        dynamo=True,
        verbose=False,
    )


@contextmanager
def _said(path: Path, *kinds: type[Exception]) -> Iterator[None]:
    try:
        yield
    except kinds as error:
        why = " ".join(str(error).split())[:200]
        raise ConfigError(f"{path} cannot be run: {why}; remove its folder, or give --backend torch") from None


def _onnx_runtime(path: Path, threads: int) -> Run:
    runtime: Any = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    state: Any = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")  # its errors have no base
    own = tuple(each for each in vars(state).values() if isinstance(each, type) and issubclass(each, Exception))

    def run(given: dict[str, np.ndarray]) -> np.ndarray:
        with _said(path, *own):
            return session.run(None, given)[0]

    with _said(path, *own):
        session = runtime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
    return run


def _openvino(path: Path, threads: int) -> Run:
    openvino: Any = importlib.import_module("openvino")
    # Its default on some processors is bfloat16, which would be another encoder's vectors.
    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    with _said(path, RuntimeError):
        compiled = openvino.Core().compile_model(os.fspath(path), "CPU", settings)

    def run(given: dict[str, np.ndarray]) -> np.ndarray:
        found = compiled(given)[0]
        compiled.release_memory()  # it keeps tensors of every shape that it ever had, 2 MB each
        return found

    return run


def _forward(run: Run) -> Callable[..., Any]:
    import torch

    def forward(input_ids: Any, attention_mask: Any, **_: Any) -> Any:
        found = run({"input_ids": input_ids.numpy(), "attention_mask": attention_mask.numpy()})
        return SimpleNamespace(last_hidden_state=torch.from_numpy(np.asarray(found)))

    return forward
