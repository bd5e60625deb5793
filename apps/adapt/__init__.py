"""From a folder of documents to a trained agent with a proof. `adapt.py` runs all; `questions.py` makes questions.

Reads documents and a policy's replies; writes questions with their paths, an agent, and `report.html`.
"""
