"""What an imported function states: the names and strides of arguments, the strides of results, the ranges of sizes."""

# Torch's values and sympy have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from xdsl.dialects.builtin import DictionaryAttr

from weft.frontends.torch.importer.sizes import multiple
from weft.frontends.torch.importer.strides import unusual_strides
from weft.ir.attributes import to_attribute
from weft.ir.expr import Size, symbols_of
from weft.ops.graph import FuncOp


def annotate(
    function: FuncOp,
    arguments: Sequence[fx.Node],
    results: Sequence[fx.Node],
    own: tuple[int, int],
    mutated: tuple[tuple[int, int], ...],
    replaced: tuple[tuple[int, int], ...],
    symbols: set[str],
) -> set[str]:
    """State on the function what tracing recorded of its arguments and results; gives the symbols in their strides.

    `own` counts the arguments and results that the function has beyond those: constants, and what it checks. Results
    that replace arguments, and are nothing else, lie as these do: they may be made there.
    """
    constants, more = own
    names = [node.name for node in arguments] + [f"constant{position}" for position in range(constants)]
    function.attributes["arg_names"] = to_attribute(tuple(names))
    arg_strides = tuple(map(_argument_strides, arguments)) + (None,) * constants
    wanted = [unusual_strides(node.meta["val"], exact=True) for node in results]
    for argument, result in replaced:
        wanted[result] = arg_strides[argument]
    result_strides = (*wanted, *(None,) * more)
    if any(arg_strides):
        function.attributes["arg_strides"] = to_attribute(arg_strides)
    if any(result_strides):
        function.attributes["result_strides"] = to_attribute(result_strides)
    if mutated:
        function.attributes["mutated"] = to_attribute(mutated)
    if replaced:
        function.attributes["replaced"] = to_attribute(replaced)
    found = {name for strides in (*arg_strides, *result_strides) for s in strides or () for name in symbols_of(s)}
    ranges = _ranges(arguments, symbols | found)
    if ranges:
        function.attributes["symbols"] = DictionaryAttr({k: to_attribute(v) for k, v in ranges.items()})
    return found


def _argument_strides(node: fx.Node) -> tuple[Size, ...] | None:
    """The strides of an argument; of one that nothing reads, tracing may name strides that no argument tells."""
    strides = unusual_strides(node.meta["val"])
    return None if strides and not node.users and any(map(symbols_of, strides)) else strides


def _ranges(nodes: Sequence[fx.Node], names: set[str]) -> dict[str, tuple[int, int | None]]:
    """The least and the greatest value of each symbol; None where there is no greatest."""
    sizes = (size for node in nodes for size in node.meta["val"].shape)
    first = next((size for size in sizes if isinstance(size, torch.SymInt)), None)
    if first is None:
        return {}
    environment: Any = first.node.shape_env
    ranges: dict[str, tuple[int, int | None]] = {}
    for symbol, bounds in environment.var_to_range.items():
        name, factor = multiple(symbol, environment)
        if name in names:
            upper = int(bounds.upper) // factor if bounds.upper.is_Integer else None
            ranges[name] = (-(-int(bounds.lower) // factor) if bounds.lower.is_Integer else 0, upper)
    return ranges
