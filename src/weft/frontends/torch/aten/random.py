"""Random numbers that kernels make themselves."""

from __future__ import annotations

from typing import Any

from xdsl.ir import SSAValue

from weft.frontends.torch.aten.table import aten
from weft.frontends.torch.builder import ImportBuilder


@aten("weft.uniform")
def uniform(b: ImportBuilder, seed: SSAValue, _size: Any) -> SSAValue:
    return b.emit("uniform", seed, shape=b.result.shape)
