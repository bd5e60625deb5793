"""The shared core of StepRAG: the agent, its records and its tools. Importable without torch, faiss or transformers."""

__version__ = "0.1.0"
