"""What checks kernels without a GPU: the thread simulator and the checker of barrier protocols."""
