"""Benchmarks that a user can repeat: rounds on a CPU and on a GPU beside what one would write without a library."""
