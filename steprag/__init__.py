"""The shared core of StepRAG: the agent, its records and its files.

The names in `__init__.pyi` are what a program that uses StepRAG as a library starts from; docs/tour.md shows them at
work. Each is imported on first use, so `import steprag` loads nothing, and none needs torch, faiss or transformers.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = "0.1.0"
