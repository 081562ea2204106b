"""Scaled dot-product attention and rotary embedding."""
