"""Lowering: from a partition to kernels in an order, with layouts, views and places."""
