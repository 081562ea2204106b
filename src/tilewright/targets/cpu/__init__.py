"""The CPU target: kernels written as LLVM IR text and compiled in-process."""
