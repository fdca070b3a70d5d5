"""The CPU backend: tile → LLVM → machine code in this process."""
