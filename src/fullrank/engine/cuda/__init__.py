"""Clients on GPUs: local steps captured as CUDA graphs and replayed."""
