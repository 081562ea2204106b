"""Sums of products as implicit GEMM: convolutions, linear layers, batched products, by tiles of blocks."""

from tilewright.targets.cuda.products.generate import lower_product as lower_product
