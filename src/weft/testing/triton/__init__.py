"""Conformance with Triton: its language tests, its tutorials, and libraries of kernels."""
