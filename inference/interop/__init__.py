"""The agent inside other people's programs, and runs of theirs read. Nothing of the product imports this room.

Commands name its modules.
"""
