"""The agent inside other people's programs, and runs of theirs read.

Commands name its modules; compare reads FlashRAG's folders.
"""
