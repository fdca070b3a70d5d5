"""Take what is the same in every call out of the program, into a function that runs once, when it is loaded.

Frozen weights are arguments marked as constant. What is computed from them (weights with batch norm folded in, tables
of sines) becomes an argument of the same kind, filled by the second function. Neither function depends on the values.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.ir import Operation, OpResult, SSAValue
from xdsl.passes import ModulePass

from weft.ir.attributes import to_attribute
from weft.ir.expr import Size, product
from weft.ir.types import tensor_of
from weft.ops.base import Elementwise, GraphOp
from weft.ops.control import ControlOp, LoopOp, functions_run, runner_of
from weft.ops.graph import FuncOp, OpaqueOp, ReturnOp
from weft.passes.choose_layouts import wanted_strides
from weft.passes.grouping.build_groups import is_free, strides_of
from weft.passes.outline_regions import REGION
from weft.passes.simplify.constant_values import constant_arguments, fixed_values

_CHEAP = frozenset(
    f"graph.{name}"
    for name in (
        *("add", "sub", "mul", "neg", "abs", "minimum", "maximum", "where", "cast"),
        *("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not"),
        *("bitwise_and", "bitwise_or", "bitwise_not"),
    )
)
RUNS_ONCE = "runs_once"
"""An attribute of functions that are called once, as what prepares another is where it is a program of its own."""
_FEW_OPS = 8
_SMALL, _LARGE = 1 << 20, 1 << 24
"""Elements of a value made of weights, and bytes of one that is made of nothing, which are not too many to keep."""


@dataclass(frozen=True)
class HoistConstants(ModulePass):
    """A value goes if it depends on constants only, unless computing it costs less than reading it.

    graph.func @f(%x, %w, %s) {                 graph.func @f(%x, %w, %s, %c) {
      %m = graph.mul %w, %s                       %y = graph.dot %x, %c
      %y = graph.dot %x, %m                       graph.return %y
      graph.return %y                     →     } {constants = [1, 2, 3]}
    } {constants = [1, 2]}                      graph.func @f_prepare(%w, %s) {
                                                  graph.return (graph.mul %w, %s)
                                                } {prepares = "f"}
    """

    name: ClassVar[str] = "hoist_constants"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        # Regions first, the inner ones before the outer: what leaves one may leave the next.
        for function in reversed(list(op.body.block.ops)):
            if not isinstance(function, FuncOp) or {"prepares", RUNS_ONCE} & function.attributes.keys():
                continue
            if REGION in function.attributes:
                _leave_region(function, op)
                continue
            prepare = _Hoisting(function, fixed_values(function)).run()
            if prepare is not None:
                op.body.block.add_op(prepare)
                _tell_regions(function)


def _leave_region(function: FuncOp, module: ModuleOp) -> None:
    """Compute before a loop what is the same in all of its turns, and before a branch what is the same in every call.

    The function around has it from there: it is a constant, or one more value that is captured.
    """
    runner = runner_of(function, module)
    if runner is None:
        return
    functions = functions_run(runner)
    captured = function.block.args[len(function.block.args) - len(runner.captures) :]
    kept = captured if isinstance(runner, LoopOp) else constant_arguments(function)
    hoisting = _Hoisting(function, _made_of_alone(function, kept), repeated=isinstance(runner, LoopOp))
    hoisting.find()
    if not hoisting.hoisted:
        return
    block = runner.parent
    assert block is not None, "in a function"
    values: dict[SSAValue, SSAValue] = dict(zip(captured, runner.captures, strict=True))
    needed = {op for value in hoisting.hoisted for op in _made_of(value, free=True)}
    for op in list(function.block.ops):
        if op in needed:
            copy = op.clone(value_mapper=values)
            block.insert_op_before(copy, runner)
            values.update(zip(op.results, copy.results, strict=True))
    constants = [value.index for value in constant_arguments(function)]
    same = _made_of_alone(function, constant_arguments(function))
    for value in hoisting.hoisted:
        arguments = [each.block.insert_arg(value.type, len(each.block.args)) for each in functions]
        argument = arguments[functions.index(function)]
        value.replace_all_uses_with(argument)
        if value in same:
            constants.append(argument.index)
        runner.operands = [*runner.operands, values[value]]
    if constants:
        function.attributes["constants"] = to_attribute(tuple(constants))


def _tell_regions(function: FuncOp) -> None:
    """Mark what regions capture of a function's constants as constants of theirs: it was made one after they had it."""
    constants = set(constant_arguments(function))
    for runner in function.block.ops:
        if not isinstance(runner, ControlOp) or constants.isdisjoint(runner.captures):
            continue
        for region in functions_run(runner):
            captured = region.block.args[len(region.block.args) - len(runner.captures) :]
            pairs = zip(captured, runner.captures, strict=True)
            places = {argument.index for argument, value in pairs if value in constants}
            places |= {argument.index for argument in constant_arguments(region)}
            region.attributes["constants"] = to_attribute(tuple(sorted(places)))
            _tell_regions(region)


def _made_of_alone(function: FuncOp, values: Iterable[SSAValue]) -> set[SSAValue]:
    """All values that depend on nothing but these."""
    found = set(values)
    for op in function.block.ops:
        if isinstance(op, GraphOp) and all(operand in found for operand in op.operands):
            found.update(op.results)
    return found


class _Hoisting:
    def __init__(self, function: FuncOp, fixed: set[SSAValue], *, repeated: bool = False) -> None:
        self.function, self.repeated = function, repeated
        self.arguments = constant_arguments(function)
        self.fixed = fixed
        self.hoisted: dict[SSAValue, None] = {}

    def find(self) -> None:
        """Find what goes: the values that the rest of the function reads."""
        for op in self.function.block.ops:
            if not op.results or not all(result in self.fixed for result in op.results):
                for operand in op.operands:
                    self._consider(operand)

    def run(self) -> FuncOp | None:
        self.find()
        if not self.hoisted:
            return None
        prepare = self._prepare()
        self._replace()
        return prepare

    def _consider(self, value: SSAValue) -> None:
        """Hoist a value that the program reads, or what it is made of."""
        if value not in self.fixed or value in self.hoisted or not isinstance(value, OpResult):
            return
        if not is_free(value.op) and self._is_worth(value):
            self.hoisted[value] = None
            return
        for operand in value.op.operands:
            self._consider(operand)

    def _is_worth(self, value: SSAValue) -> bool:
        ops = _made_of(value)
        # What it is made of lies in memory too while it is made.
        made = [value, *(result for op in ops for result in op.results)]
        leaves = [operand for op in _made_of(value, free=True) for operand in op.operands if operand in self.arguments]
        if leaves and not self.repeated:
            return max(map(_elements, made)) <= max(_SMALL, 2 * max(map(_elements, leaves)))
        cheap = len(ops) <= _FEW_OPS and all(isinstance(op, Elementwise) and op.name in _CHEAP for op in ops)
        if self.repeated:
            return not cheap  # the memory is there for the call alone
        return not cheap and max(map(_bytes, made)) <= _LARGE

    def _prepare(self) -> FuncOp:
        name = self.function.sym_name.data
        tensors = {f"constant{n}": tensor_of(value.type) for n, value in enumerate(self.arguments)}
        prepare = FuncOp.make(f"{name}_prepare", tensors)
        prepare.attributes["prepares"] = StringAttr(name)
        values: dict[SSAValue, SSAValue] = dict(zip(self.arguments, prepare.block.args, strict=True))
        needed = {op for value in self.hoisted for op in _made_of(value, free=True)}
        for op in self.function.block.ops:
            if op in needed:
                copy = op.clone(value_mapper=values)
                prepare.block.add_op(copy)
                values.update(zip(op.results, copy.results, strict=True))
        prepare.block.add_op(ReturnOp.make([values[value] for value in self.hoisted]))
        strides = tuple(_wanted_strides(value) for value in self.hoisted)
        if any(strides):
            prepare.attributes["result_strides"] = to_attribute(strides)
        return prepare

    def _replace(self) -> None:
        """Read the hoisted values from arguments."""
        function, block = self.function, self.function.block
        given = len(block.args)
        strides = [*strides_of(function, "arg_strides", given), *map(_wanted_strides, self.hoisted)]
        for value in self.hoisted:
            argument = block.insert_arg(value.type, len(block.args))
            value.replace_all_uses_with(argument)
        places = [value.index for value in self.arguments] + list(range(given, len(block.args)))
        function.attributes["constants"] = to_attribute(tuple(places))
        if any(strides):
            function.attributes["arg_strides"] = to_attribute(tuple(strides))
        if function.arg_names:
            names = [StringAttr(f"prepared{n}") for n in range(len(self.hoisted))]
            function.arg_names = ArrayAttr([*function.arg_names, *names])


def _elements(value: SSAValue) -> int:
    size: Size = product(tensor_of(value.type).shape)
    return size if isinstance(size, int) else 0


def _bytes(value: SSAValue) -> int:
    return _elements(value) * tensor_of(value.type).dtype.bytes


def _made_of(value: SSAValue, free: bool = False) -> set[Operation]:
    """The ops that a value is computed by; views and cheap constants count if `free`."""
    found: dict[Operation, None] = {}
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, OpResult) and each.op not in found:
            found[each.op] = None
            pending.extend(each.op.operands)
    return {op for op in found if free or not is_free(op)}


def _wanted_strides(value: SSAValue) -> tuple[Size, ...] | None:
    """The strides in which all calls that read the value want it; None where they want it row-major, or not all."""
    wanted: set[Any] = set()
    for use in value.uses:
        if not isinstance(use.operation, OpaqueOp):
            return None
        wanted.add(wanted_strides(use.operation).get(use.index))
    return wanted.pop() if len(wanted) == 1 else None
