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
from weft.ir.types import f64

_UNARY = {
    "OpaqueUnaryFn_sqrt": "sqrt",
    "OpaqueUnaryFn_exp": "exp",
    "OpaqueUnaryFn_log": "log",
    "OpaqueUnaryFn_log2": "log2",
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


def float_value(b: ImportBuilder, value: torch.SymFloat) -> SSAValue:
    """The float as a 0-d f64 tensor."""
    node: Any = value.node
    return _value(b, node.expr, node.shape_env)


def _value(b: ImportBuilder, expression: Any, shape_env: Any) -> SSAValue:
    if expression.is_integer:
        return b.number(size_of_expression(expression, shape_env), f64)
    if expression.is_Number:
        return b.number(float(expression), f64)
    name = type(expression).__name__
    if name not in ("ToFloat", "Identity", *_UNARY, *_BINARY, *_FOLDED):
        raise UnsupportedError(f"the float {expression}, which is not computed from sizes")
    arguments = [_value(b, argument, shape_env) for argument in expression.args]
    first, *rest = arguments
    if name in _UNARY:
        return b.emit(_UNARY[name], first)
    for argument in rest:
        first = b.emit(_BINARY.get(name) or _FOLDED[name], first, argument)
    return first
