"""Trees of other people's agents. Nothing of the product imports this room; commands name it."""
