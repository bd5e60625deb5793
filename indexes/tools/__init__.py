"""Named tools as one retriever: indexes, services, Python callables, MCP servers.

Reads a tools file (YAML), writes nothing.
"""
