"""Metrics of predictions, and evaluation in batches."""
