"""The gradients of recurrent layers: a loop in the other direction, and products over all turns behind it.

They take what a layer with `keep` has given for all turns, and the gradients of its results. A turn of the loop is one
kernel and the product that takes gates back to the state before; weights get theirs from products over all turns.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from weft.ops.control import loop
from weft.ops.graph import GraphBuilder
from weft.ops.recurrent import Weights


def lstm_gradients(
    b: GraphBuilder,
    grads: Sequence[SSAValue],
    x: SSAValue,
    states: Sequence[SSAValue],
    weights: Weights,
    outputs: SSAValue,
    kept: Sequence[SSAValue],
    *,
    reverse: bool,
) -> tuple[SSAValue | None, ...]:
    """Gradients of x, h, c, both matrices, the sum of the biases, and the projection, of those of y, h' and c'."""
    cells = kept[4]
    before = _before(b, cells, states[1], reverse)

    def turn(
        b: GraphBuilder, index: SSAValue, carried: Sequence[SSAValue], slices: Sequence[SSAValue]
    ) -> tuple[list[SSAValue], list[SSAValue]]:
        grad, i, f, g, o, cell, old = slices
        whole = b.add(grad, carried[0])
        to_state = whole if weights.projection is None else b.dot(whole, weights.projection)
        seen = b.tanh(cell)
        to_cell = b.add(carried[1], b.mul(b.mul(to_state, o), _slope_of_tanh(b, seen)))
        gates = b.concat(
            b.mul(b.mul(to_cell, g), _slope_of_sigmoid(b, i)),
            b.mul(b.mul(to_cell, old), _slope_of_sigmoid(b, f)),
            b.mul(b.mul(to_cell, i), _slope_of_tanh(b, g)),
            b.mul(b.mul(to_state, seen), _slope_of_sigmoid(b, o)),
            dim=1,
        )
        new = [b.dot(gates, weights.hidden), b.mul(to_cell, f)]
        return new, [gates, *([] if weights.projection is None else [whole])]

    turns = b.tensor(x).shape[0]
    finals, (gates, *wholes) = loop(
        b, turn, grads[1:], [grads[0], *kept[:4], cells, before], trip_count=turns, reverse=not reverse
    )
    made: list[SSAValue | None] = [*_of_weights(b, gates, gates, x, _before(b, outputs, states[0], reverse), weights)]
    projection = None
    if weights.projection is not None:
        projection = _outer(b, wholes[0], b.mul(kept[3], b.tanh(cells)))
    to_x, to_input, to_hidden, to_bias, _ = made
    return to_x, finals[0], finals[1], to_input, to_hidden, to_bias, projection


def gru_gradients(
    b: GraphBuilder,
    grads: Sequence[SSAValue],
    x: SSAValue,
    state: SSAValue,
    weights: Weights,
    outputs: SSAValue,
    kept: Sequence[SSAValue],
    *,
    reverse: bool,
) -> tuple[SSAValue, ...]:
    """Gradients of x, h, both matrices and both biases, of those of y and h'. The gates' order is `rzn`."""
    before = _before(b, outputs, state, reverse)

    def turn(
        b: GraphBuilder, index: SSAValue, carried: Sequence[SSAValue], slices: Sequence[SSAValue]
    ) -> tuple[list[SSAValue], list[SSAValue]]:
        grad, r, z, n, seen, old = slices
        whole = b.add(grad, carried[0])
        to_n = b.mul(b.sub(whole, b.mul(whole, z)), _slope_of_tanh(b, n))
        to_r = b.mul(b.mul(to_n, seen), _slope_of_sigmoid(b, r))
        to_z = b.mul(b.mul(whole, b.sub(old, n)), _slope_of_sigmoid(b, z))
        given = b.concat(to_r, to_z, to_n, dim=1)
        made = b.concat(to_r, to_z, b.mul(to_n, r), dim=1)
        return [b.add(b.mul(whole, z), b.dot(made, weights.hidden))], [given, made]

    turns = b.tensor(x).shape[0]
    finals, (given, made) = loop(b, turn, grads[1:], [grads[0], *kept, before], trip_count=turns, reverse=not reverse)
    to_x, to_input, to_hidden, input_bias, hidden_bias = _of_weights(b, given, made, x, before, weights)
    return to_x, finals[0], to_input, to_hidden, input_bias, hidden_bias


def rnn_gradients(
    b: GraphBuilder,
    grads: Sequence[SSAValue],
    x: SSAValue,
    state: SSAValue,
    weights: Weights,
    outputs: SSAValue,
    *,
    relu: bool,
    reverse: bool,
) -> tuple[SSAValue, ...]:
    """Gradients of x, h, both matrices and the sum of the biases, of those of y and h'."""

    def turn(
        b: GraphBuilder, index: SSAValue, carried: Sequence[SSAValue], slices: Sequence[SSAValue]
    ) -> tuple[list[SSAValue], list[SSAValue]]:
        grad, output = slices
        whole = b.add(grad, carried[0])
        if relu:
            gate = b.where(b.gt(output, b.full_like(output, 0)), whole, b.full_like(whole, 0))
        else:
            gate = b.mul(whole, _slope_of_tanh(b, output))
        return [b.dot(gate, weights.hidden)], [gate]

    turns = b.tensor(x).shape[0]
    finals, (gates,) = loop(b, turn, grads[1:], [grads[0], outputs], trip_count=turns, reverse=not reverse)
    before = _before(b, outputs, state, reverse)
    to_x, to_input, to_hidden, bias, _ = _of_weights(b, gates, gates, x, before, weights)
    return to_x, finals[0], to_input, to_hidden, bias


def _of_weights(
    b: GraphBuilder, given: SSAValue, made: SSAValue, x: SSAValue, before: SSAValue, weights: Weights
) -> tuple[SSAValue, SSAValue, SSAValue, SSAValue, SSAValue]:
    """Gradients of x, both matrices and both biases, of what came to the gates from x and from the state."""
    turns, rows, size = b.tensor(given).shape
    flat = b.dot(b.reshape(given, shape=(turns * rows, size)), weights.input)
    biases = [b.sum(given, dims=(0, 1), keep=False)]
    biases.append(biases[0] if made is given else b.sum(made, dims=(0, 1), keep=False))
    return (
        b.reshape(flat, shape=b.tensor(x).shape),
        _outer(b, given, x),
        _outer(b, made, before),
        biases[0],
        biases[1],
    )


def _outer(b: GraphBuilder, left: SSAValue, right: SSAValue) -> SSAValue:
    """The sum over all turns and rows of the products of [T, B, M] and [T, B, N]: [M, N]."""
    flat: list[SSAValue] = []
    for value in (left, right):
        turns, rows, size = b.tensor(value).shape
        flat.append(b.reshape(value, shape=(turns * rows, size)))
    return b.dot(b.permute(flat[0], dims=(1, 0)), flat[1])


def _before(b: GraphBuilder, states: SSAValue, first: SSAValue, reverse: bool) -> SSAValue:
    """The state before each turn, of those behind each."""
    turns, *rest = b.tensor(states).shape
    start = b.reshape(first, shape=(1, *rest))
    starts = (1 if reverse else 0, *(0 for _ in rest))
    others = b.slice(states, starts=starts, shape=(turns - 1, *rest), steps=(1,) * (1 + len(rest)))
    return b.concat(*((others, start) if reverse else (start, others)), dim=0)


def _slope_of_sigmoid(b: GraphBuilder, value: SSAValue) -> SSAValue:
    return b.sub(value, b.mul(value, value))


def _slope_of_tanh(b: GraphBuilder, value: SSAValue) -> SSAValue:
    return b.sub(b.full_like(value, 1), b.mul(value, value))
