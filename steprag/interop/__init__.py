"""StepRAG inside other people's tools, and their agents seen by it. Nothing of ours imports this room.

Commands name its modules.
"""
