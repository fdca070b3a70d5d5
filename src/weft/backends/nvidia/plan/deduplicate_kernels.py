"""Deduplication: kernels of a plan that are equal become one, which is compiled once.

    @dot_add_3560 … layer 0      @dot_add_3560 … all layers
    @dot_add_1024 … the others

Groups may differ in what leaves no trace in their tiles: where a layer's input comes from, ops that were folded.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from weft.lower.plan import Planned
from weft.lower.steps import with_functions
from weft.tile import dialect as tile

_NAME = "sym_name"


def deduplicate_kernels(planned: Planned) -> None:
    """Let steps share kernels, in place."""
    alike: dict[Hashable, list[str]] = {}
    instead: dict[str, str] = {}
    for name, kernel in planned.kernels.items():
        others = alike.setdefault(_outline(kernel), [])
        found = next((other for other in others if _are_equal(kernel, planned.kernels[other])), None)
        if found is None:
            others.append(name)
        else:
            instead[name] = found
    if not instead:
        return
    planned.plan = replace(planned.plan, steps=with_functions(planned.plan.steps, instead))
    for name, found in instead.items():
        del planned.kernels[name]
        planned.sources.setdefault(found, set()).update(planned.sources.pop(name, ()))


def _outline(kernel: tile.KernelOp) -> Hashable:
    """What is quickly compared: kernels that differ in it are not equal."""
    return kernel.grid, tuple(op.name for op in kernel.walk())


def _are_equal(one: tile.KernelOp, other: tile.KernelOp) -> bool:
    """Whether two kernels are the same but for their names."""
    first, second = ({key: value for key, value in each.attributes.items() if key != _NAME} for each in (one, other))
    return first == second and one.regions[0].is_structurally_equivalent(other.regions[0])
