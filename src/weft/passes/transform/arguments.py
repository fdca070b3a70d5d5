"""The ends of a function that transformations rearrange: its arguments, in another order or bound to values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.ir import SSAValue

from weft.ops.graph import FuncOp, GraphBuilder, module_of
from weft.passes.simplify.eliminate_dead import EliminateDead

_OF_ENDS = ("arg_strides", "result_strides", "mutated", "replaced", "donated", "constants")
"""Annotations that speak of arguments and results by their places."""


def forget_ends(function: FuncOp) -> FuncOp:
    """Drop what is stated of arguments and results by place: they are row-major, apart, and not written to."""
    for name in _OF_ENDS:
        function.attributes.pop(name, None)
    return function


def order_arguments(function: FuncOp, order: Sequence[int]) -> None:
    """Let a function take its arguments in another order: the n-th is then the one that was at `order[n]`."""
    block, old = function.block, list(function.block.args)
    names = [name.data for name in function.arg_names or ()]
    for place in order:
        new = block.insert_arg(old[place].type, len(block.args))
        new.name_hint = old[place].name_hint
        old[place].replace_all_uses_with(new)
    for value in reversed(old):
        block.erase_arg(value)
    if names:
        function.arg_names = ArrayAttr(StringAttr(names[place]) for place in order)


def bind_arguments(function: FuncOp, values: Mapping[int, Callable[[GraphBuilder, SSAValue], SSAValue]]) -> None:
    """Let ops at the function's begin make the arguments at these places, instead of the caller."""
    block = function.block
    b = GraphBuilder(block, before=block.first_op)
    names = [name.data for name in function.arg_names or ()]
    for place in sorted(values, reverse=True):
        old = block.args[place]
        old.replace_all_uses_with(values[place](b, old))
        block.erase_arg(old)
        if names:
            del names[place]
    if function.arg_names is not None:
        function.arg_names = ArrayAttr(StringAttr(name) for name in names)


def without_dead_ops(function: FuncOp) -> FuncOp:
    """The function, less the ops whose results nobody needs."""
    if function.parent is None:
        EliminateDead().apply(Context(), module_of(function))
        function.detach()
    return function
