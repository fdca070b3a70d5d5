"""Control flow: `graph.if` and `graph.loop`, ops with regions, and the functions by which front ends build them.

A region is isolated: what it reads from outside comes as operands behind the others, its captures. `if_else` and `loop`
find them, so that the functions which build bodies may use any value around them.

There is one op for all loops, a scan with a condition, because every front end's loop is one: torch's `while_loop` has
no bound and no slices, `scan` and ONNX's Scan have slices and no condition, ONNX's Loop and StableHLO's while have
parts of both. All slices are taken along the first dimension, where they lie from end to end: other axes are a permute
around the loop, which front ends know how to say. The number of turns is a size, not a tensor, so that the shapes of
what is stacked are known: a count that only data tell is a condition (`index < count`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self, cast

from xdsl.dialects.builtin import ArrayAttr, LocationAttr, ModuleOp, StringAttr, TensorType
from xdsl.ir import Block, BlockArgument, OpResult, Region, SSAValue
from xdsl.irdl import irdl_op_definition, opt_attr_def, traits_def, var_operand_def, var_region_def, var_result_def
from xdsl.traits import IsolatedFromAbove
from xdsl.utils.exceptions import VerifyException

from weft.errors import ShapeError
from weft.ir.attributes import from_attribute, to_attribute
from weft.ir.expr import Size
from weft.ir.operations import WeftOp
from weft.ir.types import Tensor, boolean, i64, tensor_of, tensor_type
from weft.ops.graph import FuncOp, GraphBuilder, YieldOp

UNBOUNDED = -1
"""The `trip_count` of a loop that only its condition ends."""


class ControlOp(WeftOp):
    """An op that runs regions: as its own, or, once these are outlined, as `functions` of its module, by name."""

    args = var_operand_def(TensorType)
    outs = var_result_def(TensorType)
    bodies = var_region_def("single_block")
    functions = opt_attr_def(ArrayAttr[StringAttr])
    traits = traits_def(IsolatedFromAbove())

    @property
    def names(self) -> tuple[str, ...]:
        """The functions that the regions have become."""
        return () if self.functions is None else tuple(each.data for each in self.functions)

    @property
    def captures(self) -> Sequence[SSAValue]:
        """The operands that every region gets as they are, last among its arguments."""
        raise NotImplementedError

    def _check_regions(self, count: int, taken: Sequence[Tensor], given: Sequence[Tensor]) -> None:
        if len(self.bodies) + len(self.names) != count or (self.bodies and self.names):
            raise VerifyException(f"{self.name} has {count} regions, or as many functions")
        for region in self.bodies:
            arguments = [tensor_of(value.type) for value in region.block.args]
            if arguments != list(taken):
                raise VerifyException(f"{self.name}: a region takes {_listed(arguments)}, it is given {_listed(taken)}")
            last = region.block.last_op
            if not isinstance(last, YieldOp):
                raise VerifyException(f"{self.name}: a region ends with graph.yield")
            yielded = [tensor_of(value.type) for value in last.operands]
            if yielded != list(given):
                raise VerifyException(f"{self.name}: a region yields {_listed(yielded)}, expected {_listed(given)}")


@irdl_op_definition
class IfOp(ControlOp):
    """One of two regions, as a boolean says. Both take the captures, and yield the op's results."""

    name = "graph.if"

    @property
    def captures(self) -> Sequence[SSAValue]:
        return self.operands[1:]

    def verify_(self) -> None:
        if not self.operands or tensor_of(self.operands[0].type) != Tensor(boolean, ()):
            raise VerifyException("graph.if takes a condition first, a boolean without dimensions")
        self._check_regions(2, _tensors(self.captures), _tensors(self.results))


@irdl_op_definition
class LoopOp(ControlOp):
    """Turns of one region, which carries values from turn to turn, reads slices and stacks slices.

    Operands: whether the first turn runs (if `conditional`), the first values of what is carried, the tensors that are
    cut into slices, and captures. The region takes the number of the turn, what is carried, a slice of each, and the
    captures; it yields whether there is another turn (if `conditional`), what is carried on, and slices to stack.
    Results: what is carried after the last turn, and the stacks. There are `trip_count` turns, unless the condition
    ends the loop before: what is left of a stack then is 0. `scanned` and `stacked` have a direction for each: 1, or -1
    where the first turn has the last slice.
    """

    name = "graph.loop"

    @classmethod
    def make(
        cls,
        operands: Sequence[SSAValue],
        results: Sequence[Tensor],
        region: Region,
        *,
        trip_count: Size,
        carried: int,
        scanned: Sequence[int] = (),
        stacked: Sequence[int] = (),
        conditional: bool = False,
        location: LocationAttr | None = None,
    ) -> Self:
        params = {
            "trip_count": trip_count,
            "carried": carried,
            "scanned": tuple(scanned),
            "stacked": tuple(stacked),
            "conditional": conditional,
        }
        return cls.create(
            operands=operands,
            result_types=[tensor_type(result) for result in results],
            attributes={key: to_attribute(value) for key, value in params.items()},
            regions=[region],
            location=location,
        )

    def _param(self, name: str) -> Any:
        if name not in self.attributes:
            raise VerifyException(f"graph.loop has no attribute {name!r}")
        return from_attribute(self.attributes[name])

    @property
    def trip_count(self) -> Size:
        """The most turns, `UNBOUNDED` where only the condition ends the loop."""
        return self._param("trip_count")

    @property
    def conditional(self) -> bool:
        return bool(self._param("conditional"))

    @property
    def scanned(self) -> tuple[int, ...]:
        """The direction in which each of the tensors is cut into slices."""
        return self._param("scanned")

    @property
    def stacked(self) -> tuple[int, ...]:
        """The direction in which each of the results is stacked."""
        return self._param("stacked")

    @property
    def condition(self) -> SSAValue | None:
        """Whether the first turn runs; None where it does if there is one."""
        return self.operands[0] if self.conditional else None

    @property
    def starts(self) -> Sequence[SSAValue]:
        """The first values of what is carried."""
        first = int(self.conditional)
        return self.operands[first : first + self._param("carried")]

    @property
    def wholes(self) -> Sequence[SSAValue]:
        """The tensors that are cut into slices."""
        first = int(self.conditional) + len(self.starts)
        return self.operands[first : first + len(self.scanned)]

    @property
    def captures(self) -> Sequence[SSAValue]:
        return self.operands[int(self.conditional) + len(self.starts) + len(self.scanned) :]

    @property
    def finals(self) -> Sequence[OpResult]:
        """What is carried, after the last turn."""
        return self.results[: len(self.starts)]

    @property
    def stacks(self) -> Sequence[OpResult]:
        return self.results[len(self.starts) :]

    def verify_(self) -> None:
        carried, trip_count = _tensors(self.starts), self.trip_count
        if self.conditional and tensor_of(self.operands[0].type) != Tensor(boolean, ()):
            raise VerifyException("graph.loop takes its condition first, a boolean without dimensions")
        if len(self.operands) < int(self.conditional) + len(carried) + len(self.scanned):
            raise VerifyException("graph.loop has fewer operands than it says")
        if trip_count == UNBOUNDED and (not self.conditional or self.scanned or self.stacked):
            raise VerifyException("graph.loop without a number of turns has a condition, and neither reads nor stacks")
        if any(direction not in (1, -1) for direction in (*self.scanned, *self.stacked)):
            raise VerifyException("graph.loop: directions are 1 and -1")
        wholes, stacks = _tensors(self.wholes), _tensors(self.stacks)
        if any(not each.rank or each.shape[0] != trip_count for each in (*wholes, *stacks)):
            raise VerifyException(
                f"graph.loop: what is cut and stacked has {trip_count} slices along its first dimension"
            )
        if len(stacks) != len(self.stacked) or _tensors(self.finals) != carried:
            raise VerifyException("graph.loop gives what it carries, as it was at first, and what it stacks")
        slices, made = map(_slices, (wholes, stacks))
        going = [Tensor(boolean, ())] if self.conditional else []
        taken = [Tensor(i64, ()), *carried, *slices, *_tensors(self.captures)]
        self._check_regions(1, taken, [*going, *carried, *made])


def _tensors(values: Sequence[SSAValue]) -> list[Tensor]:
    return [tensor_of(value.type) for value in values]


def _slices(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [Tensor(each.dtype, each.shape[1:]) for each in tensors]


def _listed(tensors: Sequence[Tensor]) -> str:
    return ", ".join(map(str, tensors)) or "nothing"


def functions_run(op: ControlOp) -> list[FuncOp]:
    """The functions that the regions of an op have become."""
    function = op.parent_op()
    module = function.parent_op() if op.names and function is not None else None
    # Functions stand side by side: a walk into all of them, for each op that runs some, takes as long as the passes.
    blocks = [block for region in module.regions for block in region.blocks] if module is not None else []
    known = {each.sym_name.data: each for block in blocks for each in block.ops if isinstance(each, FuncOp)}
    return [known[name] for name in op.names]


def runner_of(function: FuncOp, module: ModuleOp) -> ControlOp | None:
    """The op that runs a function which was a region; None where there is none."""
    name = function.sym_name.data
    ops = (op for each in module.body.block.ops if isinstance(each, FuncOp) for op in each.block.ops)
    return next((op for op in ops if isinstance(op, ControlOp) and name in op.names), None)


# -- building ----------------------------------------------------------------------------------------------------------

Branch = Callable[[GraphBuilder], Sequence[SSAValue]]
"""Builds a branch: its results."""
Turn = Callable[
    [GraphBuilder, SSAValue, Sequence[SSAValue], Sequence[SSAValue]],
    tuple[Sequence[SSAValue], Sequence[SSAValue]] | tuple[Sequence[SSAValue], Sequence[SSAValue], SSAValue],
]
"""Builds a turn from its number, what is carried and the slices: what is carried on, what is stacked, and, where the
loop has a condition, whether there is another turn."""


def if_else(b: GraphBuilder, condition: SSAValue, then: Branch, otherwise: Branch) -> tuple[SSAValue, ...]:
    """Append `graph.if`. Both branches give results of the same types; they may use any value of the block around."""
    blocks = (Block(), Block())
    results = [list(build(_inside(b, block))) for build, block in zip((then, otherwise), blocks, strict=True)]
    types = [_tensors(each) for each in results]
    if types[0] != types[1]:
        raise ShapeError(
            f"the branches of an `if` give {_listed(types[0])} and {_listed(types[1])}",
            hint="both give as many results, of the same types and shapes",
        )
    return close_if(b, condition, blocks, results)


def loop(
    b: GraphBuilder,
    turn: Turn,
    carried: Sequence[SSAValue],
    scanned: Sequence[SSAValue] = (),
    *,
    trip_count: Size = UNBOUNDED,
    directions: Sequence[int] | None = None,
    stack_directions: Sequence[int] | None = None,
    reverse: bool = False,
    condition: SSAValue | None = None,
) -> tuple[tuple[SSAValue, ...], tuple[SSAValue, ...]]:
    """Append `graph.loop`: the last values of what is carried, and the stacks.

    `turn` may use any value of the block around. `directions` are those of `scanned`, `stack_directions` those of what
    `turn` stacks; all go forward by default, or backward with `reverse`. One turn is no loop: it stands in the block.
    """
    if trip_count == 1 and condition is None:
        return _one_turn(b, turn, carried, scanned)
    block = Block(arg_types=[tensor_type(Tensor(i64, ())), *(value.type for value in carried)])
    slices = [block.insert_arg(tensor_type(each), len(block.args)) for each in _slices(_tensors(scanned))]
    index, *states = block.args[: 1 + len(carried)]
    made = turn(_inside(b, block), index, states, slices)
    next_states, stacked, *going = cast("tuple[Sequence[SSAValue], Sequence[SSAValue], *tuple[SSAValue, ...]]", made)
    _check_carried(carried, next_states)
    usual = -1 if reverse else 1
    if len(going) != int(condition is not None):
        raise ShapeError("a loop has a condition for its first turn and for the others, or for none")
    return close_loop(
        b,
        block,
        [*going, *next_states, *stacked],
        [*([] if condition is None else [condition]), *carried, *scanned],
        trip_count=trip_count,
        carried=len(carried),
        scanned=tuple(directions or (usual for _ in scanned)),
        stacked=tuple(stack_directions or (usual for _ in stacked)),
    )


def _one_turn(
    b: GraphBuilder, turn: Turn, carried: Sequence[SSAValue], scanned: Sequence[SSAValue]
) -> tuple[tuple[SSAValue, ...], tuple[SSAValue, ...]]:
    index = b.emit("full", value=0, shape=(), dtype=i64)
    parts = _slices(_tensors(scanned))
    slices = [b.reshape(value, shape=part.shape) for value, part in zip(scanned, parts, strict=True)]
    finals, made = cast("tuple[Sequence[SSAValue], Sequence[SSAValue]]", turn(b, index, carried, slices))
    _check_carried(carried, finals)
    return tuple(finals), tuple(b.reshape(each, shape=(1, *b.tensor(each).shape)) for each in made)


def _check_carried(carried: Sequence[SSAValue], finals: Sequence[SSAValue]) -> None:
    if _tensors(finals) != _tensors(carried):
        raise ShapeError(
            f"a loop carries {_listed(_tensors(carried))}, and a turn makes {_listed(_tensors(finals))} of it",
            hint="what is carried keeps its type and shape",
        )


def close_if(
    b: GraphBuilder, condition: SSAValue, blocks: Sequence[Block], results: Sequence[Sequence[SSAValue]]
) -> tuple[SSAValue, ...]:
    """Append `graph.if` of two blocks without arguments, which may read values from outside."""
    sides = [outside_values(block, found) for block, found in zip(blocks, results, strict=True)]
    captures = list(dict.fromkeys(value for side in sides for value in side))
    for block, found in zip(blocks, results, strict=True):
        isolate(block, captures, found)
    made = IfOp.create(
        operands=[condition, *captures],
        result_types=[value.type for value in results[0]],
        regions=[Region(block) for block in blocks],
        location=b.location,
    )
    return tuple(b.insert(made).results)


def close_loop(
    b: GraphBuilder,
    block: Block,
    yielded: Sequence[SSAValue],
    operands: Sequence[SSAValue],
    *,
    trip_count: Size,
    carried: int,
    scanned: tuple[int, ...],
    stacked: tuple[int, ...],
) -> tuple[tuple[SSAValue, ...], tuple[SSAValue, ...]]:
    """Append `graph.loop` of a block whose arguments are all but captures; it may read values from outside."""
    conditional = len(yielded) > carried + len(stacked)
    captures = list(outside_values(block, yielded))
    isolate(block, captures, yielded)
    values = yielded[int(conditional) :]
    results = _tensors(values[:carried])
    results += [Tensor(each.dtype, (trip_count, *each.shape)) for each in _tensors(values[carried:])]
    made = LoopOp.make(
        [*operands, *captures],
        results,
        Region(block),
        trip_count=trip_count,
        carried=carried,
        scanned=scanned,
        stacked=stacked,
        conditional=conditional,
        location=b.location,
    )
    b.insert(made)
    return tuple(made.finals), tuple(made.stacks)


def outside_values(block: Block, yielded: Sequence[SSAValue]) -> dict[SSAValue, None]:
    """The values from outside that the ops of a block read, or that it yields."""
    found: dict[SSAValue, None] = {}
    for value in (*(operand for op in block.ops for operand in op.operands), *yielded):
        if (value.block if isinstance(value, BlockArgument) else cast("OpResult", value).op.parent) is not block:
            found[value] = None
    return found


def isolate(block: Block, captures: Sequence[SSAValue], yielded: Sequence[SSAValue]) -> None:
    """Let a block read captures from new arguments, and end it."""
    inner = {value: block.insert_arg(value.type, len(block.args)) for value in captures}
    for op in list(block.ops):
        for place, operand in enumerate(op.operands):
            if operand in inner:
                op.operands[place] = inner[operand]
    block.add_op(YieldOp.create(operands=[inner.get(value, value) for value in yielded]))


def _inside(b: GraphBuilder, block: Block) -> GraphBuilder:
    """The builder for a region's block."""
    return GraphBuilder(block, b.location)
