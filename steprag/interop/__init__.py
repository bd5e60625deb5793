"""StepRAG inside other people's tools. Nothing of ours imports this room."""
