"""Figures of runs, and inspection of models."""
