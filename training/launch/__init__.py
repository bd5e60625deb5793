"""Several processes, their devices, and LLaMA-Factory."""
