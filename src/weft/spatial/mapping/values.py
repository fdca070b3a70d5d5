"""What a graph's values are while it is read: tensors in memory, and products and expressions on their way there."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from weft.spatial.mapping.layers import BlockProduct, Convolution, Operand, PixelSum, Placed


@dataclass(frozen=True)
class Wide:
    """A tensor whose elements are read as integers of 32 bits, perhaps with pixels around it."""

    tensor: Placed
    padding: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    value: int | None = None


@dataclass(frozen=True)
class RowSum:
    """The sum over the last dimension: it is made in as many lanes as what it is combined with has."""


@dataclass(frozen=True)
class Product:
    """A product that nothing was computed of yet."""

    source: Placed
    output: tuple[int, int, int]
    shape: tuple[int, ...]
    work: Convolution | PixelSum | BlockProduct | RowSum
    order: np.ndarray | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Expression:
    """What the vector unit computes, so far, of a product and of tensors."""

    node: Operand
    product: Product | None
    tensor: Placed | None
    shape: tuple[int, ...]
    steps: tuple[str, ...] = ()
    """What is left of a conversion to 8 bits: rounded, then at most 127, at least -128."""


@dataclass(frozen=True)
class Heads:
    """A matrix [S, H · d] seen by heads. `axes` names the dimensions: s, h, d; g and r where heads are repeated."""

    tensor: Placed
    heads: int
    width: int
    axes: str
    repeats: int = 1
