"""The shared core of StepRAG: the agent, its records and its files.

The names in `__init__.pyi` are what a program that uses StepRAG as a library starts from; docs/tour.md shows them at
work. Each is imported on first use, so `import steprag` loads nothing, and none needs torch, faiss or transformers.
"""

import ast
import importlib
from collections.abc import Callable
from pathlib import Path

__version__ = "0.2.0"


def lazily(module: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a module whose names the stub beside it lists.

    Each name is imported on first use. In the core, stubs alone may name what stands above it.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text("utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    places = {name.name: "." * node.level + str(node.module) for node in imports for name in node.names}

    def get(name: str) -> object:
        if name not in places:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(importlib.import_module(places[name], module), name)

    return get, lambda: sorted(places), sorted(places)


__getattr__, __dir__, __all__ = lazily(__name__, __file__)
