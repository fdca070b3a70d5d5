"""What the backend knows of each op that a kernel can hold: its entry in every op interface, in one table.

`docs/nvidia-ops.md` is made of it, and a test looks for what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from xdsl.ir import Operation

from weft.backends.nvidia.emit.codegen import EMITTERS
from weft.backends.nvidia.ir.op_costs import COSTS
from weft.backends.nvidia.ir.op_interfaces import OpInterface
from weft.backends.nvidia.ir.registry import Nvidia
from weft.backends.nvidia.ir.shared_bytes import SHARED_BYTES
from weft.backends.nvidia.layout.assign_layouts import LAYOUT_RULES
from weft.tile import dialect as tile
from weft.tile.registry import Tile

INTERFACES: dict[str, OpInterface[Any]] = {
    "layout rule": LAYOUT_RULES,
    "shared bytes": SHARED_BYTES,
    "emitter": EMITTERS,
    "cost": COSTS,
}
"""What is to be written for an op."""


def kernel_ops() -> Iterator[type[Operation]]:
    """The ops that stand in kernels for GPUs."""
    for dialect in (Tile, Nvidia):
        yield from (op for op in dialect.operations if op is not tile.KernelOp)


def missing_entries() -> list[str]:
    """The entries that are neither a rule nor a reason why there is none, as `nvidia.convert: emitter`."""
    pairs = ((op, name) for op in kernel_ops() for name in INTERFACES)
    return [f"{op.name}: {name}" for op, name in pairs if op not in INTERFACES[name]]
