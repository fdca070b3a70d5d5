"""Transformations of torch functions: captured as one graph, transformed there, compiled and called on tensors."""
