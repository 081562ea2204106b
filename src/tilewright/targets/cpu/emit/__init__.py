"""Text of LLVM: values, expressions, functions of vectors; and the machine code that becomes of it."""
