"""Linear models and support vector machines of `ai.onnx.ml`: products of features with what was fitted."""

# NumPy leaves the types of arrays open that come in by narrowing, and functions for the host take whatever there is.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
from xdsl.ir import Block, SSAValue

from weft.errors import ModelError, ShapeError
from weft.frontends.onnx.call import Call, static
from weft.frontends.onnx.operators.class_scores import (
    DOMAIN,
    MOST_WEIGHTS,
    class_labels,
    features,
    greatest,
    is_above,
    labelled,
    matrix,
    opposed,
    transformed,
)
from weft.frontends.onnx.operators.shapes import checked_shape
from weft.frontends.onnx.operators.table import onnx_op
from weft.ir.types import Tensor, boolean, i64, tensor_type
from weft.ops.control import close_loop
from weft.ops.graph import GraphBuilder


@onnx_op("LinearRegressor", domain=DOMAIN)
def linear_regressor(c: Call) -> Any:
    return transformed(c, _linear(c, features(c), c.int("targets", 1)))


@onnx_op("LinearClassifier", domain=DOMAIN)
def linear_classifier(c: Call) -> Any:
    b, labels = c.b, class_labels(c)
    scores = _linear(c, features(c), None)
    count = static(b.tensor(scores))[1]
    if count == 1:
        if len(labels) != 2:
            raise c.unsupported(f"one row of coefficients decides between two labels, there are {len(labels)}")
        place, scores = is_above(c, scores, 0, 0.0), opposed(c, scores, b.neg(scores))
    else:
        _check_count(c, labels, count)
        place = greatest(c, scores)
    return labelled(c, place, transformed(c, scores), labels)


def _linear(c: Call, x: SSAValue, targets: int | None) -> SSAValue:
    """`x wᵀ + b`; the number of rows of `w` is what is stated, or told by its size."""
    b = c.b
    weights = matrix(c, "coefficients", static(b.tensor(x))[1])
    if targets is not None and len(weights) != targets:
        raise ShapeError(f"{c.node}: its coefficients are for {len(weights)} targets, expected {targets}")
    made = b.dot(x, c.table(np.ascontiguousarray(weights.T)))
    offsets = np.array(c.floats("intercepts", ()), np.float32)
    if not offsets.size:
        return made
    if offsets.size != len(weights):
        raise ShapeError(f"{c.node}: attribute 'intercepts' has {offsets.size} numbers, expected {len(weights)}")
    return b.add(made, c.table(offsets))


def _check_count(c: Call, labels: np.ndarray, count: int) -> None:
    if len(labels) != count:
        raise ShapeError(f"{c.node} has {len(labels)} labels for {count} classes")


@onnx_op("SVMRegressor", domain=DOMAIN)
def svm_regressor(c: Call) -> Any:
    b, x = c.b, features(c)
    supports, width = c.int("n_supports", 0), static(b.tensor(x))[1]
    if supports > 0:
        near = _kernel(c, x, _support_vectors(c, supports, width), c.string("kernel_type", "LINEAR"))
        weights = matrix(c, "coefficients", supports)
    else:
        near, weights = x, matrix(c, "coefficients", width)
    made = b.dot(near, c.table(np.ascontiguousarray(weights[:1].T)))
    made = b.add(made, b.full_like(made, _offsets(c, "rho", 1)[0].item()))
    if c.flag("one_class"):
        one = b.full_like(made, 1.0)
        return b.where(b.gt(made, b.full_like(made, 0.0)), one, b.neg(one))
    return transformed(c, made)


@onnx_op("SVMClassifier", domain=DOMAIN)
def svm_classifier(c: Call) -> Any:
    b, x, labels = c.b, features(c), class_labels(c)
    width = static(b.tensor(x))[1]
    counts = c.ints("vectors_per_class", ())
    if not sum(counts):
        weights = matrix(c, "coefficients", width)
        _check_count(c, labels, len(weights))
        scores = b.dot(x, c.table(np.ascontiguousarray(weights.T)))
        scores = b.add(scores, b.full_like(scores, _offsets(c, "rho", 1)[0].item()))
        return labelled(c, greatest(c, scores), transformed(c, scores), labels)
    _check_count(c, labels, len(counts))
    if min(counts) < 0 or len(counts) < 2:
        raise ModelError(f"{c.node}: attribute 'vectors_per_class' is {list(counts)}, expected two or more counts")
    near = _kernel(c, x, _support_vectors(c, sum(counts), width), c.string("kernel_type", "LINEAR"))
    offsets = _offsets(c, "rho", len(counts) * (len(counts) - 1) // 2)
    pairs = list(combinations(range(len(counts)), 2))
    scores = b.dot(near, c.table(_pair_weights(c, counts, pairs)))
    scores = b.add(scores, c.table(offsets))
    votes = _votes(c, scores, len(counts))
    if c.given("prob_a") and c.floats("prob_a"):
        return _probable(c, scores, votes, pairs, labels)
    if len(counts) > 2:
        return labelled(c, greatest(c, votes), transformed(c, scores), labels)
    return labelled(c, greatest(c, votes), transformed(c, opposed(c, scores, b.neg(scores))), labels)


def _offsets(c: Call, name: str, count: int) -> np.ndarray:
    numbers = np.array(c.floats(name), np.float32)
    if numbers.size < count:
        raise ModelError(f"{c.node}: attribute {name!r} has {numbers.size} numbers, expected {count}")
    return numbers[:count]


def _support_vectors(c: Call, count: int, width: int) -> np.ndarray:
    vectors = matrix(c, "support_vectors", width)
    if len(vectors) != count:
        raise ShapeError(f"{c.node}: attribute 'support_vectors' has {len(vectors)} rows of {width}, expected {count}")
    return vectors


def _kernel(c: Call, x: SSAValue, vectors: np.ndarray, kind: str) -> SSAValue:
    """The kernel of each row with each support vector."""
    b = c.b
    gamma, offset, degree = (*c.floats("kernel_params", ()), 0.0, 0.0, 0.0)[:3]
    if kind == "RBF":
        rows, width = static(b.tensor(x))
        apart = b.sub(b.reshape(x, shape=(rows, 1, width)), c.table(vectors[None]))
        squares = b.sum(b.mul(apart, apart), dims=(2,), keep=False)
        return b.exp(b.mul(squares, b.full_like(squares, -gamma)))
    near = b.dot(x, c.table(np.ascontiguousarray(vectors.T)))
    if kind == "LINEAR":
        return near
    scaled = b.add(b.mul(near, b.full_like(near, gamma)), b.full_like(near, offset))
    if kind == "SIGMOID":
        return b.tanh(scaled)
    if kind == "POLY":
        return b.pow(scaled, b.full_like(scaled, degree))
    raise ModelError(f"{c.node}: attribute 'kernel_type' is {kind[:40]!r}, expected LINEAR, POLY, RBF or SIGMOID")


def _pair_weights(c: Call, counts: tuple[int, ...], pairs: list[tuple[int, int]]) -> np.ndarray:
    """What each support vector adds to the decision of each pair of classes: those of other classes add nothing."""
    rows = matrix(c, "coefficients", sum(counts))
    if len(rows) < len(counts) - 1:
        raise ModelError(f"{c.node}: attribute 'coefficients' has {len(rows)} rows, expected {len(counts) - 1}")
    ends = np.cumsum(counts).tolist()
    spans = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
    weights = np.zeros(checked_shape(c, (sum(counts), len(pairs)), MOST_WEIGHTS), np.float32)
    for place, (one, other) in enumerate(pairs):
        weights[spans[one], place] = rows[other - 1, spans[one]]
        weights[spans[other], place] = rows[one, spans[other]]
    return weights


def _votes(c: Call, scores: SSAValue, classes: int) -> SSAValue:
    """How many decisions each class wins."""
    b = c.b
    first = b.cast(b.gt(scores, b.full_like(scores, 0.0)), dtype=b.tensor(scores).dtype)
    return b.sum(_against(c, first, classes), dims=(2,), keep=False)


def _against(c: Call, decided: SSAValue, classes: int) -> SSAValue:
    """For each row at [i, j] how far class i wins over class j; of a pair is given how far its first class does."""
    b = c.b
    rows, count = static(b.tensor(decided))
    nothing = b.full(value=0.0, shape=(rows, 1), dtype=b.tensor(decided).dtype)
    columns = b.concat(decided, b.sub(b.full_like(decided, 1.0), decided), nothing, dim=1)
    places = np.full(checked_shape(c, (classes, classes), MOST_WEIGHTS), 2 * count, np.int32)
    one, other = np.triu_indices(classes, 1)
    places[one, other] = np.arange(count)
    places[other, one] = np.arange(count) + count
    return b.reshape(b.take(columns, c.table(places.reshape(-1)), dim=1), shape=(rows, classes, classes))


def _probable(c: Call, scores: SSAValue, votes: SSAValue, pairs: list[tuple[int, int]], labels: np.ndarray) -> Any:
    """Labels and probabilities: Platt's sigmoid of each decision, coupled."""
    b = c.b
    scale, shift = (_offsets(c, name, len(pairs)) for name in ("prob_a", "prob_b"))
    decided = b.sigmoid(b.neg(b.add(b.mul(scores, c.table(scale)), c.table(shift))))
    likely = b.clamp(decided, low=1e-7, high=1 - 1e-7)
    found = _coupled(c, _against(c, likely, len(labels)))
    return labelled(c, greatest(c, votes), transformed(c, found), labels)


def _coupled(c: Call, ratios: SSAValue) -> SSAValue:
    """Probabilities of classes by those of one out of two: the second method of Wu, Lin and Weng, as libsvm has it.

    A row of `ratios` has at [i, j] how likely class i is where it is i or j. A row is done once what is left of its
    error is small; others go on, for 100 turns at most.
    """
    b = c.b
    rows, classes, _ = static(b.tensor(ratios))
    others = b.permute(ratios, dims=(0, 2, 1))
    own = b.sum(b.mul(others, others), dims=(2,), keep=True)
    is_own = c.table(np.eye(classes, dtype=bool)[None])
    weights = b.where(is_own, own, b.neg(b.mul(others, ratios)))
    dtype = b.tensor(ratios).dtype
    start = b.full(value=1 / classes, shape=(rows, classes), dtype=dtype)
    going = b.full(value=True, shape=(rows, 1), dtype=boolean)
    flag = b.full(value=rows > 0, shape=(), dtype=boolean)
    block = Block(arg_types=[tensor_type(Tensor(i64, ())), start.type, going.type])
    inside = GraphBuilder(block, b.location)
    found, goes_on = _coupling_turn(inside, weights, block.args[1], block.args[2])
    (made, _), _ = close_loop(
        b, block, [inside.any(goes_on, dims=(0, 1), keep=False), found, goes_on], [flag, start, going],
        trip_count=100, carried=2, scanned=(), stacked=(),
    )  # fmt: skip
    return made


def _coupling_turn(b: GraphBuilder, weights: SSAValue, found: SSAValue, going: SSAValue) -> tuple[SSAValue, SSAValue]:
    """One turn over all classes, and which rows take another one."""
    rows, classes = static(b.tensor(found))
    sides = b.sum(b.mul(weights, b.reshape(found, shape=(rows, 1, classes))), dims=(2,), keep=False)
    whole = b.sum(b.mul(found, sides), dims=(1,), keep=True)
    error = b.max(b.abs(b.sub(sides, whole)), dims=(1,), keep=True)
    going = b.logical_and(going, b.ge(error, b.full_like(error, 0.005 / classes)))
    block = Block(arg_types=[tensor_type(Tensor(i64, ())), found.type, sides.type, whole.type])
    at, *state = block.args
    (found, _, _), _ = close_loop(
        b, block, _coupling_step(GraphBuilder(block, b.location), weights, going, at, *state), [found, sides, whole],
        trip_count=classes, carried=3, scanned=(), stacked=(),
    )  # fmt: skip
    return found, going


def _coupling_step(
    b: GraphBuilder, weights: SSAValue, going: SSAValue, at: SSAValue, found: SSAValue, sides: SSAValue, whole: SSAValue
) -> list[SSAValue]:
    """The probability of one class anew, with the sums that follow from it."""
    rows, classes = static(b.tensor(found))
    place = b.reshape(at, shape=(1,))
    row = b.reshape(b.take(weights, place, dim=1), shape=(rows, classes))
    own, side = (b.take(each, place, dim=1) for each in (row, sides))
    step = b.where(going, b.div(b.sub(whole, side), own), b.full_like(own, 0.0))
    shrunk = b.add(step, b.full_like(step, 1.0))
    is_this = b.eq(b.iota(shape=(rows, classes), dim=1, dtype=i64), at)
    found = b.div(b.where(is_this, b.add(found, step), found), shrunk)
    grown = b.mul(step, b.add(b.mul(step, own), b.add(side, side)))
    whole = b.div(b.add(whole, grown), b.mul(shrunk, shrunk))
    sides = b.div(b.add(sides, b.mul(row, step)), shrunk)
    return [found, sides, whole]
