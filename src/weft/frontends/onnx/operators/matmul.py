"""Matrix products: MatMul, Gemm, Einsum, and the determinant."""

# NumPy leaves the types of arrays open that come in by narrowing, and functions for the host take whatever there is.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import math
import string
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import ModelError, ShapeError
from weft.frontends.onnx.call import Call, static
from weft.frontends.onnx.operators.table import onnx_op


@onnx_op("MatMul")
def matmul(c: Call) -> Any:
    return product(c, c.x(0), c.x(1))


def product(c: Call, x: SSAValue, y: SSAValue, **params: Any) -> SSAValue:
    """NumPy's `matmul`: leading dimensions broadcast, vectors are rows and columns."""
    b = c.b
    left, right = static(b.tensor(x)), static(b.tensor(y))
    if not left or not right:
        raise ShapeError(f"{c.node}: {list(left)} and {list(right)} cannot be multiplied as matrices")
    row, column = len(left) == 1, len(right) == 1
    if row:
        x, left = b.reshape(x, shape=(1, *left)), (1, *left)
    if column:
        y, right = b.reshape(y, shape=(*right, 1)), (*right, 1)
    depth, width = right[len(right) - 2 :]
    if left[-1] != depth:
        raise ShapeError(f"{c.node}: {list(left)} and {list(right)} cannot be multiplied as matrices")
    try:
        batch = np.broadcast_shapes(left[:-2], right[:-2])
    except ValueError as error:
        raise ShapeError(f"{c.node}: {list(left)} and {list(right)} do not broadcast") from error
    if len(right) == 2 and len(left) > 2:
        # One matrix for all: the rows of all batches are those of one product.
        flat = b.dot(b.reshape(x, shape=(math.prod(left[:-1]), left[-1])), y, **params)
        made = b.reshape(flat, shape=(*left[:-1], width))
    else:
        x = x if left[:-2] == batch else b.broadcast(x, shape=(*batch, *left[-2:]))
        y = y if right[:-2] == batch else b.broadcast(y, shape=(*batch, *right[-2:]))
        made = b.dot(x, y, **params)
    rows = left[len(left) - 2]
    shape = (*batch, *(() if row else (rows,)), *(() if column else (width,)))
    return b.reshape(made, shape=shape) if row or column else made


@onnx_op("Gemm")
def gemm(c: Call) -> Any:
    x, y = c.x(0), c.x(1)
    if c.flag("transA"):
        x = c.b.permute(x, dims=(1, 0))
    if c.flag("transB"):
        y = c.b.permute(y, dims=(1, 0))
    made = c.b.dot(x, y)
    alpha, beta = c.float("alpha", 1.0), c.float("beta", 1.0)
    made = made if alpha == 1 else c.b.mul(made, c.b.full_like(made, alpha))
    if not c.has(2):
        return made
    bias = c.x(2)
    return c.b.add(made, bias if beta == 1 else c.b.mul(bias, c.b.full_like(bias, beta)))


@onnx_op("Einsum")
def einsum(c: Call) -> Any:
    equation = c.string("equation").replace(" ", "")
    values = c.xs()
    inputs, arrow, output = equation.partition("->")
    terms = inputs.split(",")
    if len(terms) != len(values):
        raise ModelError(f"{c.node}: equation {equation[:80]!r} has {len(terms)} terms, expected {len(values)}")
    spare = [letter for letter in string.ascii_letters if letter not in equation]
    ranks = [c.rank(place) - len(term.replace("...", "")) for place, term in enumerate(terms) if "..." in term]
    most = max(ranks, default=0)
    if most > len(spare) or not all(set(term.replace("...", "")) <= set(string.ascii_letters) for term in terms):
        raise ModelError(f"{c.node}: equation {equation[:80]!r} is not one of letters")
    wild = "".join(spare[:most])
    terms = [
        term.replace("...", wild[most - (c.rank(place) - len(term.replace("...", ""))) :] if "..." in term else "")
        for place, term in enumerate(terms)
    ]
    if not arrow:
        letters = sorted(set("".join(terms)) - set(wild))
        output = wild + "".join(letter for letter in letters if "".join(terms).count(letter) == 1)
    output = output.replace("...", wild)
    if not set(output) <= set("".join(terms)) or len(set(output)) != len(output):
        raise ModelError(f"{c.node}: equation {equation[:80]!r} has an output that its inputs do not give")
    return _contracted(c, terms, values, output)


def _contracted(c: Call, terms: list[str], values: list[SSAValue], output: str) -> SSAValue:
    """Multiply the operands one after the other; a letter is summed over as soon as no one needs it."""
    pairs = [_diagonal(c, term, value) for term, value in zip(terms, values, strict=True)]
    term, value = _summed(c, *pairs[0], set(output).union(*(each for each, _ in pairs[1:])))
    for place, (other, operand) in enumerate(pairs[1:], 1):
        later = set(output).union(*(each for each, _ in pairs[place + 1 :]))
        other, operand = _summed(c, other, operand, later | set(term))
        term, value = _summed(c, term, value, later | set(other))
        term, value = _pair(c, term, value, other, operand, later)
    term, value = _summed(c, term, value, set(output))
    return c.b.permute(value, dims=tuple(term.index(letter) for letter in output)) if term != output else value


def _diagonal(c: Call, term: str, value: SSAValue) -> tuple[str, SSAValue]:
    if len(term) != c.b.tensor(value).rank:
        raise ShapeError(f"{c.node}: the term {term!r} has other dimensions than {c.b.tensor(value)}")
    for letter in dict.fromkeys(term):
        while term.count(letter) > 1:
            first = term.index(letter)
            second = term.index(letter, first + 1)
            value = c.b.diagonal(value, dim1=first, dim2=second, offset=0)
            term = "".join(each for n, each in enumerate(term) if n not in (first, second)) + letter
    return term, value


def _summed(c: Call, term: str, value: SSAValue, kept: set[str]) -> tuple[str, SSAValue]:
    dims = tuple(n for n, letter in enumerate(term) if letter not in kept)
    if not dims:
        return term, value
    return "".join(letter for letter in term if letter in kept), c.b.sum(value, dims=dims, keep=False)


def _pair(c: Call, a: str, x: SSAValue, b: str, y: SSAValue, later: set[str]) -> tuple[str, SSAValue]:
    """The product of two operands, as one of matrices."""
    common = [letter for letter in a if letter in b]
    batch = [letter for letter in common if letter in later]
    inner = [letter for letter in common if letter not in later]
    rows = [letter for letter in a if letter not in b]
    cols = [letter for letter in b if letter not in a]
    left, right = dict(zip(a, static(c.b.tensor(x)), strict=True)), dict(zip(b, static(c.b.tensor(y)), strict=True))
    sizes = {**right, **left}
    for letter in common:  # sizes of 1 broadcast
        sizes[letter] = max(left[letter], right[letter])
    x = c.b.broadcast(x, shape=tuple(sizes[letter] for letter in a))
    y = c.b.broadcast(y, shape=tuple(sizes[letter] for letter in b))
    x = c.b.permute(x, dims=tuple(a.index(letter) for letter in [*batch, *rows, *inner]))
    y = c.b.permute(y, dims=tuple(b.index(letter) for letter in [*batch, *inner, *cols]))

    def size(letters: list[str]) -> int:
        return math.prod(sizes[letter] for letter in letters)

    x = c.b.reshape(x, shape=(size(batch), size(rows), size(inner)))
    y = c.b.reshape(y, shape=(size(batch), size(inner), size(cols)))
    term = [*batch, *rows, *cols]
    return "".join(term), c.b.reshape(c.b.dot(x, y), shape=tuple(sizes[letter] for letter in term))


@onnx_op("Det")
def determinant(c: Call) -> Any:
    return c.host(lambda array: np.linalg.det(array.astype(np.float64)).astype(array.dtype))
