"""Weft: a deep-learning compiler from PyTorch, ONNX, StableHLO and Triton's language to machine code."""

__version__ = "0.1.0"
