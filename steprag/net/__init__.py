"""Sockets that need not mean well."""
