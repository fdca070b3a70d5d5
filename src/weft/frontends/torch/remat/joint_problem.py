"""A joint graph, forward and backward in one, as a `RecomputeProblem`: what values take, and what it takes to make
them.

Work is counted in bytes that are moved; arithmetic of products, convolutions and attention is worth the bytes that the
device moves in the same time.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportMissingTypeStubs=false

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import CheckpointPolicy
from torch.utils.flop_counter import flop_registry

from weft.frontends.torch.capture.checkpoint_marks import policy_of
from weft.frontends.torch.remat.checkpointed_draws import is_tagged_random
from weft.passes.remat.recompute_problem import RecomputeProblem, Value

_FLOPS_A_BYTE: Mapping[str, int] = {"cpu": 8, "cuda": 150}
"""How many operations a device does while it moves a byte."""
_COLLECTIVES = ("c10d", "_c10d_functional", "c10d_functional", "_dtensor", "fsdp")


@dataclass(frozen=True)
class JointProblem:
    """The problem of a joint graph, and the names of the nodes that are its values."""

    problem: RecomputeProblem
    names: tuple[str, ...]

    def bytes_of(self, names: Sequence[str]) -> int:
        """What it takes to keep these nodes."""
        numbers = {name: number for number, name in enumerate(self.names)}
        return sum(self.problem.values[numbers[name]].bytes for name in names if name in numbers)


def joint_problem(
    graph: fx.Graph, forward: Callable[[fx.Node], bool], backward: Callable[[fx.Node], bool]
) -> JointProblem:
    """The problem of a joint graph, some of whose nodes its results need, and some of which are the backward's own."""
    nodes = [node for node in graph.nodes if node.op != "output" and not backward(node)]
    numbers = {node: number for number, node in enumerate(nodes)}
    returned = _gradients(graph, backward)
    values: list[Value] = []
    there: list[bool] = []
    for node in nodes:
        is_read = node in returned or any(backward(user) for user in node.users)
        operands = tuple(numbers[each] for each in node.all_input_nodes if each in numbers)
        value = _value(node, operands, is_read)
        there.append(value.can_be_kept or (value.can_be_computed_again and all(there[n] for n in operands)))
        if not there[-1] and _is_single(node):  # what is asked to be computed again, and cannot be
            value, there[-1] = replace(value, can_be_kept=True), True
        values.append(value)
    reads = [
        tuple(numbers[each] for each in node.all_input_nodes if each in numbers)
        for node in graph.nodes
        if node.op != "output" and backward(node)
    ]
    reads.append(tuple(numbers[node] for node in nodes if node in returned))
    length = max((number + 1 for number, node in enumerate(nodes) if forward(node)), default=0)
    problem = RecomputeProblem(tuple(values), tuple(filter(None, reads)), length)
    return JointProblem(problem, tuple(node.name for node in nodes))


def _gradients(graph: fx.Graph, backward: Callable[[fx.Node], bool]) -> set[fx.Node]:
    """Values of the forward that the backward returns as they are: those after the last output that is its own."""
    (output,) = graph.find_nodes(op="output")
    results = [each for each in tree_leaves(output.args) if isinstance(each, fx.Node) or each is None]
    first = next((n for n, each in enumerate(results) if isinstance(each, fx.Node) and backward(each)), len(results))
    return {each for each in results[first:] if isinstance(each, fx.Node) and not backward(each)}


def _value(node: fx.Node, operands: tuple[int, ...], is_read: bool) -> Value:
    held = node.meta.get("val")
    if node.op == "placeholder":
        is_there = is_read or not _is_written(node)
        return Value(0, 0, (), is_read, can_be_kept=is_there, can_be_computed_again=False)
    if node.op == "get_attr":
        return Value(0, 0, (), is_read, can_be_kept=False)
    policy = policy_of(node)
    in_checkpoint = policy in (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)
    # Torch lets what a checkpoint has drawn be drawn again from the same state.
    again = (_is_pure(node) or (in_checkpoint and is_tagged_random(node))) and policy is not CheckpointPolicy.MUST_SAVE
    # A number made of sizes is as quickly computed again, and graphs hand on sizes alone.
    kept = _is_single(node) and not in_checkpoint and not (again and isinstance(held, torch.SymFloat | torch.SymBool))
    return Value(bytes_of_value(held), work_of(node), operands, is_read, kept, again)


def _is_single(node: fx.Node) -> bool:
    """Whether a node's value is one that can be kept, and not several of which each is taken."""
    kinds = torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool
    return isinstance(node.meta.get("val"), kinds)


def _is_written(node: fx.Node) -> bool:
    """Whether an argument is overwritten: the backward finds another value there."""
    return any(user.target is torch.ops.aten.copy_.default and user.args[0] is node for user in node.users)


def _is_pure(node: fx.Node) -> bool:
    """Whether computing a node again gives the same, and does nothing else."""
    if node.target is operator.getitem:
        return True
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return not isinstance(target, torch._ops.HigherOrderOperator) and not node.is_impure()
    if target.namespace in _COLLECTIVES or target._schema.is_mutable:
        return False
    return not is_tagged_random(node) and not node.is_impure()


def work_of(node: fx.Node) -> int:
    """Bytes that are moved to compute a node, or what its arithmetic is worth, whichever is more."""
    target, held = node.target, node.meta.get("val")
    if not isinstance(target, torch._ops.OpOverload) or target.is_view:
        return 0
    moved = bytes_of_value(held)
    if torch.Tag.pointwise not in target.tags:
        moved += sum(bytes_of_value(each.meta.get("val")) for each in node.all_input_nodes)
    count = flop_registry.get(target.overloadpacket)
    if count is None:
        return moved
    given = tree_map(_shown, (node.args, node.kwargs))
    try:
        operations = int(count(*given[0], **given[1], out_val=tree_map(_shown, held)))
    except Exception:  # a count of arguments that it does not know: what is moved has to do
        return moved
    device = next((each.device.type for each in tree_leaves(held) if isinstance(each, torch.Tensor)), "cpu")
    return max(moved, operations // _FLOPS_A_BYTE.get(device, _FLOPS_A_BYTE["cuda"]))


def _shown(value: Any) -> Any:
    """A node's value as a tensor of known sizes, on no device."""
    held = value.meta.get("val") if isinstance(value, fx.Node) else value
    if isinstance(held, torch.Tensor):
        return torch.empty([_number(size) for size in held.shape], dtype=held.dtype, device="meta")
    return _number(held) if isinstance(held, torch.SymInt) else held


def bytes_of_value(held: Any) -> int:
    return sum(_number(each.numel()) * each.dtype.itemsize for each in _tensors(held))


def _tensors(held: Any) -> Iterator[torch.Tensor]:
    return (each for each in tree_leaves(held) if isinstance(each, torch.Tensor))


def _number(size: Any) -> int:
    """A size, or what it was when the graph was traced; sizes that only data tells count as one."""
    if isinstance(size, torch.SymInt):
        return size.node.hint if size.node.has_hint() else 1
    return int(size)
