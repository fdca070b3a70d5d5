"""Transformations of graph functions, which compose: forward derivatives and batches, of control flow too."""
