"""What the models of `ai.onnx.ml` share: rows of features, scores that are transformed, and labels of classes."""

# NumPy leaves the types of arrays open that come in by narrowing, and functions for the host take whatever there is.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import math
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import ModelError, ShapeError
from weft.frontends.onnx.call import Call, static
from weft.frontends.onnx.operators.table import onnx_op
from weft.frontends.onnx.values import Traced
from weft.ir.types import f32, f64, i64
from weft.ops import composites

DOMAIN = "ai.onnx.ml"
MOST_WEIGHTS = 1 << 27
"""Tables of more numbers are not made of attributes: their sizes are a file's to state."""


def features(c: Call, keeps_double: bool = False) -> SSAValue:
    """The first input as rows of float32, or of float64 where an operator computes with that."""
    b, x = c.b, c.x(0)
    shape = static(b.tensor(x))
    if len(shape) not in (1, 2):
        raise ShapeError(f"{c.node}: input 0 has the shape {list(shape)}, expected rows of features")
    dtype = f64 if keeps_double and b.tensor(x).dtype == f64 else f32
    x = x if b.tensor(x).dtype == dtype else b.cast(x, dtype=dtype)
    return b.reshape(x, shape=(1, *shape)) if len(shape) == 1 else x


def matrix(c: Call, name: str, columns: int) -> np.ndarray:
    """An attribute of numbers as rows of so many columns."""
    numbers = np.array(c.floats(name), np.float32)
    if columns < 1 or not numbers.size or numbers.size % columns:
        raise ModelError(f"{c.node}: attribute {name!r} has {numbers.size} numbers, expected rows of {columns}")
    return numbers.reshape(-1, columns)


def class_labels(c: Call) -> np.ndarray:
    """The labels that a classifier states: strings or integers."""
    names = ("classlabels_strings", "classlabels_int64s", "classlabels_ints")
    for name in names:
        if c.given(name):
            several = c.strings(name) if name == names[0] else c.ints(name)
            if several:
                return np.array(several, object if name == names[0] else np.int64)
    raise ModelError(f"{c.node} states no labels, expected one of {', '.join(names)}")


def labelled(c: Call, place: SSAValue, scores: SSAValue, labels: np.ndarray) -> tuple[Any, Any]:
    """The labels at places, and the scores; strings are the host's to look up."""
    if labels.dtype == np.int64:
        return c.b.take(c.table(labels), place, dim=0), scores
    return c.host(lambda at, found: (labels[at], found), (Traced(place), Traced(scores)), 2)


def is_above(c: Call, scores: SSAValue, column: int, threshold: float) -> SSAValue:
    """Of each row 1 where a column lies above a threshold, else 0."""
    b = c.b
    value = column_of(c, scores, column)
    return b.cast(b.gt(value, b.full_like(value, threshold)), dtype=i64)


def column_of(c: Call, x: SSAValue, column: int) -> SSAValue:
    rows = static(c.b.tensor(x))[0]
    return c.b.reshape(c.b.slice(x, starts=(0, column), shape=(rows, 1), steps=(1, 1)), shape=(rows,))


def greatest(c: Call, scores: SSAValue) -> SSAValue:
    """The column with the greatest score of each row, the first of several."""
    return c.b.cast(c.b.argmax(scores, dims=(1,), keep=False), dtype=i64)


def opposed(c: Call, score: SSAValue, inverse: SSAValue) -> SSAValue:
    """Two columns of one: the first class has the inverse of the second's score."""
    return c.b.concat(inverse, score, dim=1)


def transformed(c: Call, scores: SSAValue, transform: str | None = None) -> SSAValue:
    """Scores by the attribute `post_transform`."""
    b = c.b
    match transform or c.string("post_transform", "NONE"):
        case "NONE":
            return scores
        case "LOGISTIC":
            return b.sigmoid(scores)
        case "SOFTMAX":
            return composites.softmax(b, scores, 1)
        case "SOFTMAX_ZERO":
            return _softmax_zero(c, scores)
        case "PROBIT":
            return _probit(c, scores)
        case other:
            raise ModelError(
                f"{c.node}: attribute 'post_transform' is {other!r}, expected NONE, LOGISTIC, SOFTMAX, SOFTMAX_ZERO or "
                f"PROBIT"
            )


def _softmax_zero(c: Call, scores: SSAValue) -> SSAValue:
    """Softmax in which scores of zero stay zero."""
    b = c.b
    top = b.max(scores, dims=(1,), keep=True)
    counts = b.gt(b.abs(scores), b.full_like(scores, 1e-7))
    powers = b.where(counts, b.exp(b.sub(scores, top)), b.mul(scores, b.exp(b.neg(top))))
    total = b.sum(powers, dims=(1,), keep=True)
    is_nothing = b.eq(total, b.full_like(total, 0.0))
    return b.where(is_nothing, b.full_like(scores, 0.5), b.div(powers, total))


def _probit(c: Call, scores: SSAValue) -> SSAValue:
    """The quantiles of the normal distribution, by Winitzki's inverse of erf: what ONNX's reference computes."""
    b = c.b

    def number(like: SSAValue, value: float) -> SSAValue:
        return b.full_like(like, value)

    one = number(scores, 1.0)
    x = b.sub(b.mul(scores, number(scores, 2.0)), one)
    log = b.log(b.mul(b.sub(one, x), b.add(one, x)))
    half = b.add(b.mul(log, number(log, 0.5)), number(log, 2 / (math.pi * 0.147)))
    root = b.sqrt(b.sub(b.sqrt(b.sub(b.mul(half, half), b.mul(log, number(log, 1 / 0.147)))), half))
    return b.mul(b.where(b.lt(x, number(x, 0.0)), b.neg(root), root), number(root, math.sqrt(2)))


@onnx_op("ZipMap", domain=DOMAIN)
def zip_map(c: Call) -> Any:
    """The scores of each row by their labels: dictionaries in an array, which leaves the model as a list."""
    labels = class_labels(c).tolist()
    if c.shape(0)[-1] != len(labels):
        raise ShapeError(f"{c.node} has {len(labels)} labels for {c.shape(0)[-1]} columns")

    def zipped(scores: np.ndarray) -> np.ndarray:
        found = np.empty(1 if scores.ndim == 1 else len(scores), object)
        for at, row in enumerate(scores.reshape(-1, len(labels)).tolist()):
            found[at] = dict(zip(labels, row, strict=True))
        return found

    return c.host(zipped)
