"""The chat service: an agent that people talk to. Command: `steprag serve`."""
