"""Runs the programs of many ranks in one process on NumPy arrays: the meaning of collectives, and their oracle.

Every rank runs until it needs the others; a collective is carried out once all ranks of its group have come to it, a
message once it has been sent. Ranks may run one program, or each its own. What waits for ever is an error.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from weft.backends.reference.graph import run_op
from weft.errors import ShardingError
from weft.ir.sharding import Mesh, Sharding
from weft.ir.types import tensor_of
from weft.ops.base import GraphOp
from weft.ops.collectives import Collective, Recv, Send, Shard, ShardIndex, combined
from weft.ops.graph import FuncOp, ReturnOp

Arrays = list[np.ndarray]


@dataclass(frozen=True)
class _Need:
    """What a rank cannot go on without."""

    op: GraphOp
    operands: Arrays


def run_ranks(
    functions: FuncOp | Sequence[FuncOp], mesh: Mesh, arguments: Callable[[int], Sequence[np.ndarray]]
) -> list[Arrays]:
    """The results of each rank, whose arguments are `arguments(rank)`. With one function, all run the same."""
    programs = [functions] * mesh.ranks if isinstance(functions, FuncOp) else list(functions)
    runs = [_run(program, mesh, rank, list(arguments(rank))) for rank, program in enumerate(programs)]
    results: list[Arrays | None] = [None] * mesh.ranks
    needs: dict[int, _Need] = {}
    sent: dict[tuple[Any, ...], deque[np.ndarray]] = defaultdict(deque)

    def go_on(rank: int, answer: Sequence[np.ndarray] | None) -> None:
        try:
            needs[rank] = runs[rank].send(answer)
        except StopIteration as done:
            needs.pop(rank, None)
            results[rank] = done.value

    for rank in range(mesh.ranks):
        go_on(rank, None)
    while needs:
        before = dict(needs)
        for rank in list(needs):
            if rank in needs:
                _serve(rank, needs, mesh, sent, go_on)
        if needs == before:
            told = "; ".join(f"rank {rank} at {need.op.name}" for rank, need in needs.items())
            raise ShardingError(f"the ranks wait for each other: {told}", hint="all ranks of a group must take part")
    return [result for result in results if result is not None]


def _serve(
    rank: int,
    needs: dict[int, _Need],
    mesh: Mesh,
    sent: dict[tuple[Any, ...], deque[np.ndarray]],
    go_on: Callable[[int, Sequence[np.ndarray] | None], None],
) -> None:
    need = needs[rank]
    params = need.op.params
    if isinstance(need.op, Send):
        peer = mesh.rank(mesh.coordinates(rank) | {params["axis"]: params["to"]})
        sent[rank, peer, params["channel"]].append(need.operands[0])
        go_on(rank, [])
    elif isinstance(need.op, Recv):
        peer = mesh.rank(mesh.coordinates(rank) | {params["axis"]: params["source"]})
        if sent[peer, rank, params["channel"]]:
            go_on(rank, [sent[peer, rank, params["channel"]].popleft()])
    else:
        group = next(group for group in mesh.groups(params["axes"]) if rank in group)
        if all(other in needs and _meet(needs[other].op, need.op) for other in group):
            assert isinstance(need.op, Collective)
            answers = type(need.op).exchange([needs[other].operands for other in group], **params)
            for other, answer in zip(group, answers, strict=True):
                go_on(other, answer)


def _meet(left: GraphOp, right: GraphOp) -> bool:
    """Whether two ranks have come to the same collective, in one program or in two."""
    if left is right:
        return True
    apart = left.parent is not right.parent
    return apart and left.name == right.name and left.attributes == right.attributes


def _run(function: FuncOp, mesh: Mesh, rank: int, arguments: Arrays) -> Generator[_Need, Any, Arrays]:
    values: dict[SSAValue, np.ndarray] = dict(zip(function.block.args, arguments, strict=True))
    for op in function.block.ops:
        operands = [values[operand] for operand in op.operands]
        match op:
            case ReturnOp():
                return operands
            case Collective() | Send() | Recv():
                results = yield _Need(op, operands)
            case Shard():
                parts = np.split(operands[0], op.params["ranks"], op.params["dim"])
                results = [parts[mesh.index(rank, op.params["axes"])]]
            case ShardIndex():
                results = [np.asarray(mesh.index(rank, op.params["axes"]), np.int64)]
            case _:
                with np.errstate(all="ignore"):
                    results = run_op(op, operands, {}, None)
        for value, result in zip(op.results, results, strict=True):
            expected = tensor_of(value.type).shape
            if result.shape != expected:
                raise ShardingError(f"{op.name} gives {result.shape} on rank {rank}, its type says {expected}")
            values[value] = result
    raise ShardingError("a function has no return at its end")


def part_of(array: np.ndarray, sharding: Sharding, mesh: Mesh, rank: int) -> np.ndarray:
    """What a rank holds of an array; of summands the first rank holds all, and the others zeros."""
    here = mesh.coordinates(rank)
    for dim, splits in enumerate(sharding.dims):
        for split in splits:
            count = mesh.size([split.axis])
            shape = array.shape
            blocks = array.reshape(*shape[:dim], split.blocks, -1, *shape[dim + 1 :])
            own = np.split(blocks, count, dim + 1)[here[split.axis]]
            array = own.reshape(*shape[:dim], shape[dim] // count, *shape[dim + 1 :])
    if any(here[axis] for axis, _ in sharding.partial):
        return np.zeros_like(array)
    return array


def whole_of(parts: Sequence[np.ndarray], sharding: Sharding, mesh: Mesh) -> np.ndarray:
    """The array that all ranks' parts are: `part_of` undone."""
    held = list(parts)
    for dim, splits in enumerate(sharding.dims):
        for split in reversed(splits):
            for group in mesh.groups([split.axis]):
                shape = held[group[0]].shape
                blocks = [held[r].reshape(*shape[:dim], split.blocks, -1, *shape[dim + 1 :]) for r in group]
                joined = np.concatenate(blocks, dim + 1)
                joined = joined.reshape(*shape[:dim], shape[dim] * len(group), *shape[dim + 1 :])
                for r in group:
                    held[r] = joined
    for axis, kind in sharding.partial:
        for group in mesh.groups([axis]):
            total = combined("sum" if kind == "owner" else kind, [held[r] for r in group])
            for r in group:
                held[r] = total
    return held[0]
