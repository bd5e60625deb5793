"""StepRAG in plain calls: an `Index` to search, an `Agent` that answers, searches trees and makes pairs of them.

A client of the stages, as the viewer is: everything goes through their own doors. Calls wait for their result, and may
be made where an event loop runs already, as in Jupyter.
"""
