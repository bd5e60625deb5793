"""What a person sees: progress, terminals, plots."""
