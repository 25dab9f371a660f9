"""One experiment: the tables and their keys, and how they are read and written."""
