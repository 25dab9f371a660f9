"""The report: one self-contained HTML page about one or more runs, and the same as data."""
