"""Tools for authors of operators, templates and targets: guarded pages, kernels alone, other processors."""
