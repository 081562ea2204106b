"""Tools for authors of kernel templates: kernels alone, between guarded pages."""
