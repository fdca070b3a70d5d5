"""A program as stages of a pipeline: where parameters live, a function for each stage, and what stages send each other.

    graph.func @f(%x, %w0, %w1) {          graph.func @f_stage0(%x, %w0) {        graph.func @f_stage1(%w1) {
      %a = graph.dot %x, %w0                 %a = graph.dot %x, %w0                 %a = graph.recv {source = 0}
      %b = graph.dot %a, %w1        →        graph.send %a {to = 1}                 %b = graph.dot %a, %w1
      graph.return %b                        graph.return                           graph.return %b
    }                                      }                                      }

A parameter belongs to the stages that use it. An op runs on the first stage that has what it needs; what needs no
parameter (masks, tables of angles) is computed anew on every stage that reads it, and what a stage only hands on goes
through it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod

from xdsl.ir import BlockArgument, Operation, SSAValue

from weft.errors import ShardingError
from weft.ir.types import Tensor, tensor_of
from weft.ops.base import GraphOp, View
from weft.ops.collectives import Recv, Send
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp
from weft.passes.sharding.counts import flops_of
from weft.passes.sharding.pipeline import cut_stages

_FLOPS_PER_BYTE = 64.0
"""Operations that take as long as moving a byte: what ops are weighed by against each other."""
_SENT = 2.0
"""What a byte from rank to rank weighs against one from memory: it takes far longer, mostly beside other work."""
_MOST_CUTS = 400
"""Places where a program may be cut: the time to choose among them grows with their square."""
_CARRIED = ("graph.cast",)
"""Ops of a single parameter, views apart, that every stage does for itself."""


@dataclass(frozen=True)
class Stage:
    """A stage's function: `arguments` of the program, then what it `received`; it gives what it `sent`, and then, on
    the last stage, the program's results. Messages are numbered over the whole program."""

    function: FuncOp
    arguments: tuple[int, ...]
    received: tuple[int, ...]
    sent: tuple[int, ...]
    results: int


@dataclass
class _Roots:
    """What ops need: nothing but inputs and single parameters (`free`), or results of others."""

    parameters: frozenset[int]
    of: dict[SSAValue, frozenset[int]] = field(default_factory=dict[SSAValue, frozenset[int]])

    def is_free(self, op: Operation) -> bool:
        """Whether every stage computes the op for itself; the parameters that its result is made of are noted."""
        if any(operand not in self.of for operand in op.operands) or not isinstance(op, GraphOp):
            return False
        below = frozenset[int]().union(*(self.of[operand] for operand in op.operands))
        carried = len(op.operands) == 1 and (isinstance(op, View) or op.name in _CARRIED)
        if op.EFFECTS or op.name == "graph.uniform" or (below and not carried):
            return False
        self.of |= dict.fromkeys(op.results, below)
        return True


def _roots(function: FuncOp, parameters: Sequence[int]) -> _Roots:
    found = _Roots(frozenset(parameters))
    for number, value in enumerate(function.block.args):
        found.of[value] = frozenset({number}) & found.parameters
    return found


def place_parameters(function: FuncOp, parameters: Sequence[int], stages: int) -> dict[int, tuple[int, ...]]:
    """The stages of each parameter, so that the slowest stage is as fast as it can be; unused ones are on the first."""
    roots = _roots(function, parameters)
    ops = [op for op in function.block.ops if not isinstance(op, ReturnOp) and not roots.is_free(op)]
    if len(ops) < stages:
        raise ShardingError(f"{len(ops)} ops are not {stages} stages", hint="use fewer stages")
    places = {op: place for place, op in enumerate(ops)}
    sent = [0.0] * (len(ops) + 1)
    for op in ops:
        for value in op.results:
            last = max((places.get(use.operation, 0) for use in value.uses), default=0)
            for place in range(places[op] + 1, last + 1):
                sent[place] += _bytes(value)
    cuts = _cuts(sent)
    costs = [sum(map(_cost, ops[start:end])) for start, end in pairwise(cuts)]
    chosen = cut_stages(costs, [sent[cut] * _SENT for cut in cuts], stages)
    starts = [cuts[start] for start in chosen.starts]
    found: dict[int, set[int]] = {number: set() for number in parameters}
    for op, place in places.items():
        stage = sum(place >= start for start in starts) - 1
        for number in frozenset[int]().union(*(roots.of.get(value, frozenset()) for value in op.operands)):
            found[number].add(stage)
    return {number: tuple(sorted(stages)) or (0,) for number, stages in found.items()}


def _cuts(sent: Sequence[float]) -> list[int]:
    """Where a program may be cut: the places where the least is to be sent."""
    inside = sorted(range(1, len(sent) - 1), key=lambda place: sent[place])[:_MOST_CUTS]
    return [0, *sorted(inside), len(sent) - 1]


def _cost(op: Operation) -> float:
    if isinstance(op, View):
        return 0.0
    moved = sum(map(_bytes, (*op.operands, *op.results)))
    return moved + flops_of(op) / _FLOPS_PER_BYTE


def _bytes(value: SSAValue) -> float:
    tensor = tensor_of(value.type)
    return float(prod(size for size in tensor.shape if isinstance(size, int)) * tensor.dtype.bytes)


def cut_into_stages(function: FuncOp, placed: Mapping[int, Sequence[int]], stages: int) -> list[Stage]:
    """The functions of all stages of a program whose parameters are `placed`."""
    roots = _roots(function, list(placed))
    names = [name.data for name in function.arg_names or ()]
    of: dict[Operation, int] = {}
    for op in function.block.ops:
        if not isinstance(op, ReturnOp) and not roots.is_free(op):
            of[op] = _stage(op, of, roots, placed, names)
    returned = function.returned
    readers: dict[SSAValue, int] = {}
    for op in (*of, returned):
        stage = stages - 1 if op is returned else of[op]
        for value in op.operands:
            readers[value] = max(readers.get(value, 0), stage)
    messages = [value for op in of for value in op.results if readers.get(value, 0) > of[op]]
    made: list[Stage] = []
    for stage in range(stages):
        received = [n for n, value in enumerate(messages) if of[_owner(value)] < stage <= readers[value]]
        sent = [n for n, value in enumerate(messages) if of[_owner(value)] <= stage < readers[value]]
        results = list(returned.operands) if stage == stages - 1 else []
        ops = [op for op in of if of[op] == stage]
        outputs = [*(messages[n] for n in sent), *results]
        inside = _with_free(function, ops, outputs, of)
        taken = {value for op in inside for value in op.operands} | set(outputs)
        arguments = [number for number, value in enumerate(function.block.args) if value in taken]
        inputs = {(names[number] if names else f"arg{number}"): function.block.args[number] for number in arguments} | {
            f"received{n}": messages[n] for n in received
        }
        name = f"{function.sym_name.data}_stage{stage}"
        made.append(
            Stage(
                _function(name, inputs, inside, outputs), tuple(arguments), tuple(received), tuple(sent), len(results)
            )
        )
    return made


def _stage(
    op: Operation, of: Mapping[Operation, int], roots: _Roots, placed: Mapping[int, Sequence[int]], names: Sequence[str]
) -> int:
    makers = (operand.owner for operand in op.operands)
    stage = max((of[maker] for maker in makers if isinstance(maker, Operation) and maker in of), default=0)
    for operand in op.operands:
        for number in sorted(roots.of.get(operand, ())):
            later = [each for each in placed[number] if each >= stage]
            if not later:
                name = names[number] if names else f"argument {number}"
                raise ShardingError(
                    f"{name} is on stage {max(placed[number])}, and is used behind stage {stage}",
                    hint="give the pipeline an example that runs the model as it is trained",
                )
            stage = later[0]
    return stage


def _owner(value: SSAValue) -> Operation:
    assert isinstance(value.owner, Operation), "made by an op"
    return value.owner


def _with_free(
    function: FuncOp, ops: Sequence[Operation], outputs: Sequence[SSAValue], of: Mapping[Operation, int]
) -> list[Operation]:
    """The ops of a stage with those that it computes for itself, in order."""
    needed = set(ops)
    left = [*(value for op in ops for value in op.operands), *outputs]
    while left:
        value = left.pop()
        if isinstance(value, BlockArgument) or _owner(value) in of or _owner(value) in needed:
            continue
        needed.add(_owner(value))
        left += _owner(value).operands
    return [op for op in function.block.ops if op in needed]


def _function(
    name: str, inputs: Mapping[str, SSAValue], ops: Sequence[Operation], results: Sequence[SSAValue]
) -> FuncOp:
    made = FuncOp.make(name, {key: tensor_of(value.type) for key, value in inputs.items()})
    mapped: dict[SSAValue, SSAValue] = dict(zip(inputs.values(), made.block.args, strict=True))
    for op in ops:
        copy = op.clone(mapped)
        made.block.add_op(copy)
        mapped.update(zip(op.results, copy.results, strict=True))
    made.block.add_op(ReturnOp.make([mapped[value] for value in results]))
    return made


@dataclass(frozen=True)
class Message:
    """A tensor that comes from, or goes to, the rank at `peer` on an axis of the mesh."""

    axis: str
    peer: int
    channel: int


def with_transfers(
    function: FuncOp, received: Mapping[int, Message], sent: Mapping[int, Message], kept: Sequence[int] = ()
) -> FuncOp:
    """A function whose arguments at `received` come, and whose results at `sent` go, as messages.

    Its results are the others, and then the arguments at `kept`, which somebody else still needs.
    """
    arguments, returned = list(function.block.args), function.returned
    names = [name.data for name in function.arg_names or ()] or [f"arg{n}" for n in range(len(arguments))]
    types: dict[str, Tensor] = {
        name: tensor_of(value.type)
        for number, (name, value) in enumerate(zip(names, arguments, strict=True))
        if number not in received
    }
    made = FuncOp.make(function.sym_name.data, types)
    made.attributes |= {key: value for key, value in function.attributes.items() if key == "sharding.mesh"}
    b, taken = GraphBuilder(made.block), iter(made.block.args)
    mapped: dict[SSAValue, SSAValue] = {}
    for number, value in enumerate(arguments):
        if (message := received.get(number)) is None:
            mapped[value] = next(taken)
            continue
        tensor = tensor_of(value.type)
        axis, source, channel = message.axis, message.peer, message.channel
        op = Recv.make(shape=tensor.shape, dtype=tensor.dtype, axis=axis, source=source, channel=channel)
        mapped[value] = b.insert(op).results[0]
    for op in function.block.ops:
        if isinstance(op, ReturnOp):
            break
        copy = op.clone(mapped)
        made.block.add_op(copy)
        mapped.update(zip(op.results, copy.results, strict=True))
    for number, message in sent.items():
        value = mapped[returned.operands[number]]
        b.insert(Send.make(value, axis=message.axis, to=message.peer, channel=message.channel))
    others = [mapped[value] for number, value in enumerate(returned.operands) if number not in sent]
    made.block.add_op(ReturnOp.make([*others, *(mapped[arguments[number]] for number in kept)]))
    return made
