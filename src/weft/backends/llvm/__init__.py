"""The LLVM pieces that the CPU and NVIDIA backends share: the text builder, vector math, code generation."""
