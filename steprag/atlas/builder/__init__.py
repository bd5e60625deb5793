"""Makes the embedded world's files anew: `python -m steprag.atlas.builder.build`."""
