"""The agent inside other people's programs. Nothing of the product imports this room; commands name it."""
