"""tilewright: a hardware-aware compiler and scheduler for neural networks."""

__version__ = "0.1.0"
