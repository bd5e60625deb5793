"""Text to vectors: encoders, and the shards in which a corpus is encoded."""
