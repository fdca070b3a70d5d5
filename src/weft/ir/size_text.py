"""Sizes read back from their text, as attributes and stored programs hold them."""

from __future__ import annotations

import ast

from weft.errors import ParseError
from weft.ir.expr import Size, floordiv, maximum, minimum, mod, symbol


def parse_size(text: str) -> Size:
    """Read back what `str` of a size prints."""
    try:
        return _from_ast(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, KeyError, ValueError) as error:
        raise ParseError(f"{text!r} is not a size", hint="write sizes like 768, s0 or s0*12 + 1") from error


def _from_ast(node: ast.expr) -> Size:
    match node:
        case ast.Constant(value=int() as value):
            return value
        case ast.Name(id=name):
            return symbol(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_from_ast(operand)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _from_ast(left), _from_ast(right)
            match op:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.FloorDiv():
                    return floordiv(a, b)
                case ast.Mod():
                    return mod(a, b)
                case _:
                    raise ValueError(ast.dump(op))
        case ast.Call(func=ast.Name(id=("max" | "min") as kind), args=[left, right]):
            return (maximum if kind == "max" else minimum)(_from_ast(left), _from_ast(right))
        case _:
            raise ValueError(ast.dump(node))
