"""NVIDIA GPUs: tile kernels → layouts → LLVM's NVPTX → PTX → the driver."""
