"""The commands of `steprag index`, `plan index` and `tools list`."""
