"""The version, below everything that writes it down."""

__version__ = "0.2.0"
