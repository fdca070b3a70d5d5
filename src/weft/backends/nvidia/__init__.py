"""NVIDIA GPUs: tile kernels → layouts → LLVM NVPTX → PTX → the driver."""
