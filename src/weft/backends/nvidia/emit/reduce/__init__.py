"""Reductions, scans and sorting as LLVM code: in registers, by shuffles, across warps and clusters."""
