"""Warp-specialized kernels as LLVM code: roles, ring buffers, mbarriers, tile schedulers, PDL."""
