"""Where shardings stand in the IR: attributes of functions and ops, which have a dot in their names.

A function has `sharding.mesh`, and `sharding.args` and `sharding.results`, a sharding or `none` each; an op has
`sharding.out`. `sharding.late` names, for each argument, the axes of its hint that are heard after all else.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ArrayAttr, NoneType, StringAttr
from xdsl.ir import Attribute, Operation

from weft.errors import ShardingError
from weft.ir.attributes import from_attribute, to_attribute
from weft.ir.sharding import Mesh, MeshAttr, Sharding, ShardingAttr
from weft.ops.graph import FuncOp

MESH, ARGS, RESULTS, LATE, OUT = (
    f"sharding.{name}" for name in ("mesh", "args", "results", "late", "out")
)


def mesh_of(function: FuncOp) -> Mesh | None:
    attribute = function.attributes.get(MESH)
    return attribute.mesh if isinstance(attribute, MeshAttr) else None


def required_mesh(function: FuncOp) -> Mesh:
    mesh = mesh_of(function)
    if mesh is None:
        raise ShardingError(
            f"function {function.sym_name.data} has no mesh", hint='give it: sharding.mesh = #graph.mesh<"dp=2, tp=4">'
        )
    return mesh


def set_mesh(function: FuncOp, mesh: Mesh) -> None:
    function.attributes[MESH] = MeshAttr(StringAttr(str(mesh)))


def shardings_at(op: Operation, key: str, count: int) -> list[Sharding | None]:
    """The shardings that an attribute holds, one for each value."""
    attribute = op.attributes.get(key)
    if attribute is None:
        return [None] * count
    items: list[Attribute] = list(attribute.data) if isinstance(attribute, ArrayAttr) else [attribute]
    if len(items) != count:
        raise ShardingError(f"{op.name}: {key} has {len(items)} shardings for {count} values")
    return [item.sharding if isinstance(item, ShardingAttr) else None for item in items]


def set_shardings(op: Operation, key: str, shardings: Sequence[Sharding | None]) -> None:
    op.attributes[key] = ArrayAttr(
        NoneType() if each is None else ShardingAttr(StringAttr(str(each))) for each in shardings
    )


def late_axes(function: FuncOp) -> list[frozenset[str]]:
    """Of each argument the axes that are heard last."""
    attribute = function.attributes.get(LATE)
    count = len(function.block.args)
    if attribute is None:
        return [frozenset()] * count
    found = from_attribute(attribute)
    if not isinstance(found, tuple) or len(found) != count or not all(isinstance(each, tuple) for each in found):
        raise ShardingError(f"{LATE} is not a list of axes for each of {count} arguments")
    return [frozenset(str(axis) for axis in each) for each in found if isinstance(each, tuple)]


def set_late_axes(function: FuncOp, axes: Sequence[Sequence[str]]) -> None:
    function.attributes[LATE] = to_attribute(tuple(tuple(each) for each in axes))
