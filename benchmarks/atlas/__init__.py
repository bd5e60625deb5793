"""Makes the embedded world's files anew: `python -m benchmarks.atlas.build`."""
