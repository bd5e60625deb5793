"""The agent's world for other people's trainers. Nothing of the product imports this room; commands name it."""
