"""Compiled programs on torch's tensors: memory, streams, CUDA graphs, and the way of a call."""
