"""Dots as LLVM code: mma.sync, wgmma, FMA, and weights of few bits that are widened in registers."""
