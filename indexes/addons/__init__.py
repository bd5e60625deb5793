"""What a finished index folder can be given: BM25, learned token weights, title links."""
