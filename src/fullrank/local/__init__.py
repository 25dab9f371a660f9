"""Local training: the plan of batches, the pure step, the training loop, and the client as a method sees it."""
