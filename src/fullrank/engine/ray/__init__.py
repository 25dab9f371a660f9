"""The engine that trains clients in Ray actors, and the connection to a Ray cluster."""
