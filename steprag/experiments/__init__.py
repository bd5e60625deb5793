"""The demo and the proof: clients of the command line, not part of the core."""
