"""Vector files, FAISS index types, and how their recall is measured."""
