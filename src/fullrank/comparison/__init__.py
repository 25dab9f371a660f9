"""Several runs: which, how many at a time, and what they say together."""
