"""Measured choices: products, loops, forms, stages, recipes; rates of the processor."""
