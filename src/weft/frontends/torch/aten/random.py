"""Random numbers that kernels make themselves, and probabilities."""

from __future__ import annotations

import math
from typing import Any

from xdsl.ir import SSAValue

from weft.frontends.torch.aten.table import aten
from weft.frontends.torch.importer.builder import ImportBuilder
from weft.frontends.torch.importer.checks import check_that


@aten("weft.uniform")
def uniform(b: ImportBuilder, seed: SSAValue, _size: Any) -> SSAValue:
    return b.emit("uniform", seed, shape=b.result.shape)


@aten("weft.probabilities")
def probabilities(b: ImportBuilder, x: SSAValue) -> SSAValue:
    """The operand, which must have no element below 0 and no row without any above."""
    zero, last = b.number(0, b.dtype(x)), b.rank(x) - 1
    regular = b.emit("logical_and", b.emit("ge", x, zero), b.emit("lt", x, b.number(math.inf, b.dtype(x))))
    total = b.emit("sum", x, dims=(last,), keep=False)
    check_that(b, "data", "probabilities sum up to 0", b.emit("eq", total, zero))
    check_that(b, "data", "probabilities are negative, infinite or not numbers", b.emit("logical_not", regular))
    return x
