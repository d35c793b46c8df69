"""How operands of low-precision products are scaled: one recipe of Transformer Engine on one GPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ScalingRecipe:
    """A recipe as it runs on one architecture; bytes are per element of an operand."""

    name: str  # one of `jointopt.core.schema.FP8_RECIPES`
    dtype: str  # of the products: fp8 or fp4
    value_bytes: float
    scale_bytes: float = 0.0  # share of its block's scale: of activations and gradients
    weight_scale_bytes: float = 0.0  # and of weights
    scale_passes: float = 1.0  # times that scales are moved until products can read them
    copies: float = 2.0  # along rows and along columns; 1 where products read either layout
    reads: float = 1.0  # of the 16-bit operand by the cast, its amax included
    second_reads: float = 0.0  # more of them for the copy along columns
    launches: int = 1  # kernels of one cast
    product_time_factor: float = 1.0  # SM time of a product over one whose scales are per tensor
    gathers_16_bit: bool = False  # weights that live in 8 bit travel in 16

    @property
    def operand_bytes(self) -> float:
        """Bytes of an activation's or gradient's element in low precision, with its share of a scale."""
        return self.value_bytes + self.scale_bytes

    @property
    def weight_bytes(self) -> float:
        """Bytes of a weight in all copies that products read, with its share of the scales."""
        return self.copies * (self.value_bytes + self.weight_scale_bytes)

    def cast_bytes(self, wide_bytes: float, one_copy: bool = False) -> float:
        """Bytes that casting an element of ``wide_bytes`` moves: reads, and the copies written with their scales.

        ``one_copy``: no copy along columns, which products of frozen weights do not read.
        """
        copies, reads = (1.0, self.reads) if one_copy else (self.copies, self.reads + self.second_reads)
        return reads * wide_bytes + copies * (self.value_bytes + self.scale_passes * self.scale_bytes)
