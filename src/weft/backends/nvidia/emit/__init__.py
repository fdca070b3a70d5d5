"""Annotated kernels → LLVM IR for NVPTX, an op at a time."""
