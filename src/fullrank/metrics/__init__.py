"""Measures of predictions, and evaluation in batches."""
