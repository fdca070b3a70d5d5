"""Triton's language: kernels as Python functions, on the tile dialect or, one program at a time, in NumPy."""
