"""Searching: an index folder, a service's URL, ranking, fusion, caches."""
