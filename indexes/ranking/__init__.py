"""Which rows answer a query: dense, fused, reranked."""
