"""The converters of ONNX's operators, by family; importing this fills their table."""

from weft.frontends.onnx.operators import (
    casting,
    control,
    elementwise,
    indexing,
    matmul,
    movement,
    neural,
    normalization,
    pooling,
    quantized,
    reductions,
    resizing,
    sequences,
    shapes,
    text,
)

__all__ = [
    "casting", "control", "elementwise", "indexing", "matmul", "movement", "neural", "normalization", "pooling",
    "quantized", "reductions", "resizing", "sequences", "shapes", "text",
]  # fmt: skip
