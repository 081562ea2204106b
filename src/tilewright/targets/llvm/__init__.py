"""Kernels as LLVM's text, of every target that it compiles for: modules, lane arithmetic, addresses."""
