"""Sums of products as implicit GEMM: convolutions, linear layers, batched products, by tiles of blocks."""

from tilewright.targets.cuda.products.generate import lower_made_product as lower_made_product
from tilewright.targets.cuda.products.generate import lower_product as lower_product
from tilewright.targets.cuda.products.generate import made_choice as made_choice
