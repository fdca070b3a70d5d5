"""A function that computes results and gradients as two: the forward, which keeps what the backward needs."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from weft.ir.types import tensor_of
from weft.ops.base import View
from weft.ops.collectives import AllGather, Shard, Wait
from weft.ops.graph import FuncOp, ReturnOp
from weft.ops.host_copies import Offload


@dataclass(frozen=True)
class SplitFunctions:
    """`forward` gives the results and then what it keeps; `backward` takes arguments, what was kept and gradients.

    `arguments` are the joint function's arguments that the backward takes again, before what was kept.
    """

    forward: FuncOp
    backward: FuncOp
    arguments: tuple[int, ...]
    kept: int


def split_joint(joint: FuncOp, results: int, seeds: int) -> SplitFunctions:
    """Cut a joint function, whose first `results` are the forward's and whose last `seeds` arguments are gradients.

    What the forward's results need is the forward; all else is the backward, and parameters that the forward gathers
    are gathered again.
    """
    block, returned = joint.block, joint.returned
    forward = _needed(list(returned.operands)[:results])
    forward |= {op for op in block.ops if isinstance(op, Offload) and op.operands[0].owner in forward}
    later = [op for op in block.ops if op not in forward and op is not returned]
    gradients = list(returned.operands)[results:]
    taken = _taken(later, gradients)
    primal, given = list(block.args)[: len(block.args) - seeds], list(block.args)[len(block.args) - seeds :]
    gathered = _gathers([value for value in taken if isinstance(value.owner, Operation)])
    later = [*gathered, *later]
    taken = _taken(later, gradients)
    kept = [value for value in taken if isinstance(value.owner, Operation)]
    again = [number for number, value in enumerate(primal) if value in taken]
    name = joint.sym_name.data.removesuffix("_joint")
    names = [each.data for each in joint.arg_names] if joint.arg_names else [f"arg{n}" for n in range(len(block.args))]
    first = [op for op in block.ops if op in forward]
    made = _function(
        f"{name}_forward", dict(zip(names, primal, strict=False)), first, [*returned.operands[:results], *kept]
    )
    inputs = {names[number]: primal[number] for number in again}
    inputs |= {f"kept{number}": value for number, value in enumerate(kept)}
    inputs |= {f"grad{number}": value for number, value in enumerate(given)}
    back = _function(f"{name}_backward", inputs, later, gradients)
    for function in (made, back):
        function.attributes |= {key: value for key, value in joint.attributes.items() if key == "sharding.mesh"}
    return SplitFunctions(made, back, tuple(again), len(kept))


def _taken(ops: list[Operation], results: list[SSAValue]) -> dict[SSAValue, None]:
    """What ops and results need of what these ops do not make, in order."""
    made = {value for op in ops for value in op.results}
    needed = [*(value for op in ops for value in op.operands), *results]
    return dict.fromkeys(value for value in needed if value not in made)


def _gathers(values: list[SSAValue]) -> list[Operation]:
    """What makes values of arguments by gathering and looking at them alone, in order: it is done again in the
    backward, for which whole parameters would have to be kept otherwise."""
    found: dict[Operation, None] = {}
    for value in values:
        chain = _gathered(value)
        if any(isinstance(op, AllGather) for op in chain):
            found |= dict.fromkeys(chain)
    return list(found)


def _gathered(value: SSAValue) -> list[Operation]:
    chain: list[Operation] = []
    while isinstance(op := value.owner, View | AllGather | Wait | Shard) and len(op.operands) == 1:
        chain.insert(0, op)
        value = op.operands[0]
    return [] if isinstance(value.owner, Operation) else chain


def _needed(values: list[SSAValue]) -> set[Operation]:
    found: set[Operation] = set()
    left = [value.owner for value in values]
    while left:
        op = left.pop()
        if isinstance(op, Operation) and op not in found:
            found.add(op)
            left += [value.owner for value in op.operands]
    return found


def _function(name: str, inputs: dict[str, SSAValue], ops: list[Operation], results: list[SSAValue]) -> FuncOp:
    made = FuncOp.make(name, {key: tensor_of(value.type) for key, value in inputs.items()})
    mapped: dict[SSAValue, SSAValue] = dict(zip(inputs.values(), made.block.args, strict=True))
    for op in ops:
        copy = op.clone(mapped)
        made.block.add_op(copy)
        mapped.update(zip(op.results, copy.results, strict=True))
    made.block.add_op(ReturnOp.make([mapped[value] for value in results]))
    return made
