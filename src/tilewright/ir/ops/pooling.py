"""Pooling over windows and over the whole image."""
