"""Predictions to scores: figures, comparison, judges, tables."""
