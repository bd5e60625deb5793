"""Other people's agents seen by this program. Nothing of the product imports this room; commands name it."""
