"""Search for the scales of re-parameterisable networks."""
