"""Files that run without fullrank, also inside another framework's environment; their folder goes onto its path."""
