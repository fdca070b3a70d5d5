"""Sampling of images at given places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.ir import SSAValue

from weft.frontends.torch.aten.table import aten
from weft.frontends.torch.importer.builder import ImportBuilder
from weft.ops.windows.grid_sample import GridSample

_MODES = ("linear", "nearest", "cubic")
_PADDINGS = ("zeros", "border", "reflection")


def _params(mode: int, padding: int, align_corners: bool) -> dict[str, Any]:
    """Torch numbers the modes."""
    return {"mode": _MODES[mode], "padding": _PADDINGS[padding], "align_corners": align_corners}


@aten("grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(
    b: ImportBuilder, x: SSAValue, grid: SSAValue, mode: int, padding: int, align_corners: bool
) -> SSAValue:
    return b.emit("grid_sample", x, grid, **_params(mode, padding, align_corners))


@aten("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def grid_sampler_backward(
    b: ImportBuilder,
    grad: SSAValue,
    x: SSAValue,
    grid: SSAValue,
    mode: int,
    padding: int,
    align_corners: bool,
    wanted: Sequence[bool],
) -> tuple[SSAValue | None, ...]:
    on_x, on_grid = GridSample.vjp(b, (grad,), (x, grid), (), **_params(mode, padding, align_corners))
    return on_x if wanted[0] else None, on_grid if wanted[1] else None
