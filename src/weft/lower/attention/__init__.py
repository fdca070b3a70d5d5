"""Attention and its gradients → tile kernels."""
