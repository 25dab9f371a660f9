"""Benchmarks that a user can repeat: rounds on a CPU and on a GPU compared with code without a library."""
