"""What an answer is worth: metrics, gold passages, gain, statistics."""
