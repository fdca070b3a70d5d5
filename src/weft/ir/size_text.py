"""Sizes read back from their text, as attributes and stored programs hold them."""

from __future__ import annotations

import ast

from weft.errors import ParseError
from weft.ir.expr import Size, floordiv, maximum, minimum, mod, symbol

_LONGEST, _MOST_TERMS = 10_000, 10_000
"""What a size may be at most: stored programs and models come from elsewhere."""


def parse_size(text: str) -> Size:
    """Read back what `str` of a size prints."""
    try:
        body = ast.parse(text.strip(), mode="eval").body if len(text) <= _LONGEST else None
        if body is None or _terms(body) > _MOST_TERMS:
            raise ValueError("too long")
        return _from_ast(body)
    except (SyntaxError, KeyError, ValueError, ZeroDivisionError) as error:
        raise ParseError(f"{text[:200]!r} is not a size", hint="write sizes like 768, s0 or s0*12 + 1") from error


def _terms(node: ast.expr) -> int:
    """How many terms the polynomial of a text has at most: a short product of sums can have more than fit in memory."""
    match node:
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            return _terms(left) + _terms(right)
        case ast.BinOp(left=left, right=right):
            return _terms(left) * _terms(right)
        case ast.UnaryOp(operand=operand):
            return _terms(operand)
        case ast.Call(args=args):
            return max(map(_terms, args), default=1)
        case _:
            return 1


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
