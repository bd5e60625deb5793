"""Other runtimes for an encoder on a CPU: its transformer exported to ONNX, run by ONNX Runtime or by OpenVINO.

sentence-transformers has both as back ends, but by way of `optimum`, whose releases cannot be installed beside
transformers 5. So PyTorch's own exporter writes the file, when the encoder is loaded; pooling stays where it was.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np

from steprag.errors import ConfigError, quoted

Backend = Literal["torch", "onnx", "openvino"]
PACKAGES = {"onnx": ("onnxscript", "onnxruntime"), "openvino": ("onnxscript", "openvino")}
Run = Callable[[dict[str, np.ndarray]], np.ndarray]
"""Token ids and attention mask (texts, tokens) to vectors of the tokens (texts, tokens, dimension)."""


def check_backend(name: Backend) -> None:
    """Raises ConfigError where the packages of a runtime are not installed."""
    missing = [package for package in PACKAGES.get(name, ()) if importlib.util.find_spec(package) is None]
    if missing:
        raise ConfigError(f"--backend {name} needs {' and '.join(missing)}; pip install -e '.[{name}]'")


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


def give_over(transformer: Any, name: Backend, threads: int) -> None:
    """Has a loaded sentence-transformers Transformer module compute in another runtime from now on."""
    check_backend(name)
    with TemporaryDirectory(prefix="steprag-onnx-") as folder:
        path = Path(folder) / "model.onnx"
        _export(transformer.model, path)
        run = {"onnx": _onnx_runtime, "openvino": _openvino}[name](path, threads)
    transformer.model.forward = _forward(run)


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


def _onnx_runtime(path: Path, threads: int) -> Run:
    runtime: Any = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    session = runtime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
    return lambda given: session.run(None, given)[0]


def _openvino(path: Path, threads: int) -> Run:
    openvino: Any = importlib.import_module("openvino")
    # Its default on some processors is bfloat16, which would be another encoder's vectors.
    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    compiled = openvino.Core().compile_model(os.fspath(path), "CPU", settings)
    return lambda given: compiled(given)[0]


def _forward(run: Run) -> Callable[..., Any]:
    import torch

    def forward(input_ids: Any, attention_mask: Any, **_: Any) -> Any:
        found = run({"input_ids": input_ids.numpy(), "attention_mask": attention_mask.numpy()})
        return SimpleNamespace(last_hidden_state=torch.from_numpy(np.asarray(found)))

    return forward
