"""Loads, stores, copies and atomics as LLVM code: global memory, shared memory, cp.async, TMA."""
