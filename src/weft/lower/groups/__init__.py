"""Groups of elementwise ops, movements and reductions → tile kernels."""
