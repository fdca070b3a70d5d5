"""Matmuls → tile kernels: GEMM, split-K, grouped and skinny GEMM, convolution, quantised weights."""
