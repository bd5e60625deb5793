"""Runs of other people's tools: their files read, ours written as theirs."""
