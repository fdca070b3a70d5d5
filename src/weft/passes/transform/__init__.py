"""Transformations of graph functions, which compose: forward and reverse derivatives, batching, checkpoints, types."""
