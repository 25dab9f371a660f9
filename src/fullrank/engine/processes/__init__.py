"""The engine that trains clients in worker processes."""
