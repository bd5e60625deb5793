"""What a pairs folder says of itself: the report, the data card, plots, leakage."""
