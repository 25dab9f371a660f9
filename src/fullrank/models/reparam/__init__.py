"""Re-parameterisable networks: RepVGG, RepGhost, their modes and scales."""
