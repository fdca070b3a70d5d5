"""A kernel at every level, for people to read."""
