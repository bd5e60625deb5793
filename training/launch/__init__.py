"""Several processes, and LLaMA-Factory."""
