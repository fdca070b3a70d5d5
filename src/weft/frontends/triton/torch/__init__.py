"""Kernels in graphs that `torch.compile` captures."""
