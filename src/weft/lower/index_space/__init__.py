"""Iteration spaces of kernels, and graph ops evaluated at an index."""
