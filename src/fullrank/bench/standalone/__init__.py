"""Files that run without fullrank, also in another framework's environment with their folder on its path."""
