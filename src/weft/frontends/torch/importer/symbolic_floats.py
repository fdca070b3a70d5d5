"""Floats that are computed from sizes, such as one over the number of elements, as ops on 0-d tensors."""

# Sympy has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import torch
from xdsl.ir import SSAValue

from weft.errors import UnsupportedError
from weft.frontends.torch.importer.builder import ImportBuilder
from weft.frontends.torch.importer.sizes import size_of_expression
from weft.ir.expr import symbols_of
from weft.ir.types import boolean, f64, i64

_UNARY = {
    "Abs": "abs",
    **{
        f"OpaqueUnaryFn_{name}": name
        for name in (
            *("sqrt", "exp", "log", "log2", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan"),
        )
    },
}
_BINARY = {
    "IntTrueDiv": "div",
    "FloatTrueDiv": "div",
    "FloatPow": "pow",
    "Pow": "pow",
    "Max": "maximum",
    "Min": "minimum",
}
_FOLDED = {"Add": "add", "Mul": "mul"}


def float_value(b: ImportBuilder, value: torch.SymFloat, symbols: set[str]) -> SSAValue:
    """The float as a 0-d f64 tensor; the symbols that it takes are added to `symbols`."""
    node: Any = value.node
    return _value(b, node.expr, node.shape_env, symbols)


def condition_value(b: ImportBuilder, value: torch.SymBool, symbols: set[str]) -> SSAValue:
    """A condition on sizes as a 0-d tensor of a truth value; its symbols are added to `symbols`."""
    node: Any = value.node
    size = size_of_expression(node.expr, node.shape_env)
    symbols |= symbols_of(size)
    return b.to(b.number(size, i64), boolean)


def _value(b: ImportBuilder, expression: Any, shape_env: Any, symbols: set[str]) -> SSAValue:
    if expression.is_integer:
        size = size_of_expression(expression, shape_env)
        symbols |= symbols_of(size)
        return b.number(size, f64)
    if expression.is_Number:
        return b.number(float(expression), f64)
    name = type(expression).__name__
    if name not in ("ToFloat", "Identity", *_UNARY, *_BINARY, *_FOLDED):
        raise UnsupportedError(f"the float {expression}, which is not computed from sizes")
    arguments = [_value(b, argument, shape_env, symbols) for argument in expression.args]
    first, *rest = arguments
    if name in _UNARY:
        return b.emit(_UNARY[name], first)
    for argument in rest:
        first = b.emit(_BINARY.get(name) or _FOLDED[name], first, argument)
    return first
