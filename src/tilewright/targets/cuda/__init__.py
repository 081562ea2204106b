"""GPUs: kernels as LLVM IR that becomes PTX, a model as one graph of kernel nodes."""
