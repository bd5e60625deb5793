"""StepRAG inside other people's tools. Each file needs the tool that it is named after; nothing of ours imports it."""
