"""Follows runs while they are active, from what their directories contain: in a terminal, and as a page."""
