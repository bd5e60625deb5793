"""Questions and an index in, trees out: Monte Carlo tree search over query, evidence and answer steps."""
