"""Questions to predictions and scores.

`steprag infer` (`inference.inference`) reads a question file and an index, runs the agent, and writes a run folder:
`predictions.jsonl` and `metrics.json`. `steprag score evaluate` scores such a run again, `steprag score judge` asks a
model which answers are right, `steprag compare` puts runs side by side, and `steprag ask` plays one question. The
folder `chat` is the service that people talk to (`steprag serve`).
"""
