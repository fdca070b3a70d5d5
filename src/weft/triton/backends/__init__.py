"""Triton's names for what kernels are compiled for: here, the processor."""

backends: dict[str, object] = {}
"""Triton's plugins: there are none."""
