"""Trees to what training learns from.

`steprag pairs` (`preference.build`) reads `trees.jsonl` of one or more runs of `steprag generate`. It writes a pairs
folder: preference pairs, supervised steps, step labels and rankings, each split into train and validation, with
`questions.jsonl`, `report.json`, a data card and plots. `steprag pairs leakage`, `import` and `export` work on
such folders.
"""
