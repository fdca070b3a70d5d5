"""Processes beside this one that make PTX of kernels: writing a kernel as LLVM IR is Python, which one lock guards."""
