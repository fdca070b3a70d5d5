"""Puts an expression on the mesh of ALUs: each operation next to those that take its result.

An ALU hands its result to a neighbour without a stream, and in exactly one cycle. So operations are as far from the
last one in time as they are in the expression, and copies of an expression that is small enough work side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from weft.errors import UnsupportedError
from weft.spatial.machine import Vector
from weft.spatial.mapping.layers import Node


@dataclass(frozen=True)
class Stage:
    """An operation on an ALU. `depth` counts from the last operation, which is 1."""

    node: Node
    alu: int
    depth: int
    makers: tuple[int | None, ...]
    """For each operand, the ALU that hands it over; None where it comes on a stream."""


@dataclass(frozen=True)
class Chains:
    """Equal copies of an expression, each on rows of the mesh of its own; the last stage of each is the result's."""

    copies: tuple[tuple[Stage, ...], ...]

    @property
    def depth(self) -> int:
        return max(stage.depth for stage in self.copies[0])


def place_expression(root: Node, mesh: Vector, most: int) -> Chains:
    """As many copies as fit, up to `most`; a power of two."""
    nodes = list(_nodes(root, 1))
    copies = 1 << most.bit_length() - 1
    while copies:
        rows = mesh.mesh_rows // copies
        found = _embed(nodes, rows, mesh.mesh_columns) if rows else None
        if found is not None:
            shift = rows * mesh.mesh_columns
            return Chains(tuple(_stages(nodes, found, copy * shift) for copy in range(copies)))
        copies //= 2
    raise UnsupportedError(
        f"an expression of {len(nodes)} operations does not fit on {mesh.mesh_rows} × {mesh.mesh_columns} ALUs",
        hint="convert to 8 bits in between, so that it becomes several layers",
    )


def _nodes(node: Node, depth: int) -> Iterator[tuple[Node, int, int]]:
    """Nodes from the last operation up, each with its depth and the place of its user in the order."""
    pending: list[tuple[Node, int, int]] = [(node, depth, -1)]
    count = 0
    while pending:
        made, level, user = pending.pop(0)
        yield made, level, user
        pending += [(operand, level + 1, count) for operand in made.operands if isinstance(operand, Node)]
        count += 1


def _embed(nodes: list[tuple[Node, int, int]], rows: int, columns: int) -> list[int] | None:
    """An ALU for each node, next to its user's; the first that is found."""
    if len(nodes) > rows * columns:
        return None
    taken: list[int] = []

    def near(alu: int) -> list[int]:
        row, column = divmod(alu, columns)
        steps = ((row, column - 1), (row, column + 1), (row - 1, column), (row + 1, column))
        return [r * columns + c for r, c in steps if 0 <= r < rows and 0 <= c < columns]

    def place(number: int) -> bool:
        if number == len(nodes):
            return True
        user = nodes[number][2]
        for alu in range(rows * columns) if user < 0 else near(taken[user]):
            if alu not in taken:
                taken.append(alu)
                if place(number + 1):
                    return True
                taken.pop()
        return False

    return taken if place(0) else None


def _stages(nodes: list[tuple[Node, int, int]], alus: list[int], shift: int) -> tuple[Stage, ...]:
    stages: list[Stage] = []
    for number, (node, depth, _) in enumerate(nodes):
        makers: list[int | None] = []
        feeding = (alu for (_, _, user), alu in zip(nodes, alus, strict=True) if user == number)
        for operand in node.operands:
            makers.append(next(feeding) + shift if isinstance(operand, Node) else None)
        stages.append(Stage(node, alus[number] + shift, depth, tuple(makers)))
    return tuple(stages)
