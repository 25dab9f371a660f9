"""Comparisons of several runs: planning the runs, running them in parallel, and the table of their results."""
