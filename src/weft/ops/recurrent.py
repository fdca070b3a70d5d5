"""Recurrent layers as loops: LSTM, GRU and RNN with the conventions of torch and of ONNX.

What the input contributes is one product before the loop; a turn is a product of the state with weights that stay, and
one kernel. A layer takes x [T, B, I], a first state [B, H] and weights [gates * H, I] and [gates * H, H], and gives the
states of all turns [T, B, H] with the last one. Gates stand in the order that the caller names: torch's LSTM has
`ifgo`, ONNX's `iofg`; torch's GRU has `rzn`, ONNX's `zrn`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from xdsl.ir import SSAValue

from weft.errors import UnsupportedError
from weft.ir.types import i64
from weft.ops.control import loop
from weft.ops.graph import GraphBuilder
from weft.ops.rules import iota, size_value

Activation: TypeAlias = Callable[[GraphBuilder, SSAValue], SSAValue]
_Turn: TypeAlias = tuple[list[SSAValue], list[SSAValue]]
"""What a turn makes: the new states, and what gradients need of it."""
_Step: TypeAlias = Callable[[GraphBuilder, SSAValue, Sequence[SSAValue]], _Turn]
"""A turn, of what the input contributes to it and the states."""


@dataclass(frozen=True)
class Weights:
    """What a layer multiplies by and adds, in one direction. A bias is one number for each row of its matrix.

    `peepholes` are what an LSTM's gates see of the cell: a factor [H] for each of the gates `i`, `f` and `o`.
    """

    input: SSAValue
    hidden: SSAValue
    input_bias: SSAValue | None = None
    hidden_bias: SSAValue | None = None
    projection: SSAValue | None = None
    peepholes: dict[str, SSAValue] = field(default_factory=dict[str, SSAValue])


@dataclass(frozen=True)
class Form:
    """How a layer is computed, beside its weights.

    `lengths` [B] are those of the sequences, where they differ: states behind an end are those at the end, and 0 in
    what is given for all turns. Before they are taken as arguments, gates are kept within `clip` of 0.
    """

    order: str
    reverse: bool = False
    lengths: SSAValue | None = None
    clip: float | None = None
    gate: Activation = lambda b, x: b.sigmoid(x)
    cell: Activation = lambda b, x: b.tanh(x)
    output: Activation = lambda b, x: b.tanh(x)
    coupled: bool = False
    """Whether an LSTM forgets what it does not take in: f is 1 - i."""
    keep: bool = False
    """Whether what gradients need of every turn is given behind the results (`ops/recurrent_gradients.py`)."""
    times: tuple[Activation, Activation] | None = None
    """The products of an LSTM's input and state, as rows, with their weights: quantized layers multiply codes."""
    reset_after: bool = True
    """Whether a GRU resets what the product has made of the state (`linear_before_reset`), or the state before."""


def rnn(b: GraphBuilder, x: SSAValue, h: SSAValue, weights: Weights, form: Form) -> tuple[SSAValue, ...]:
    """`h' = cell(W x + b + R h + c)`: the states of all turns, and the last one."""
    hidden = _turned(b, weights.hidden, x)
    bias = _sum(b, weights.input_bias, weights.hidden_bias)

    def turn(b: GraphBuilder, inputs: SSAValue, states: Sequence[SSAValue]) -> _Turn:
        made = b.add(_biased(b, inputs, bias), b.dot(states[0], hidden))
        return [form.cell(b, _clipped(b, made, form))], []

    return _turns(b, turn, x, weights.input, [h], form)


def lstm(b: GraphBuilder, x: SSAValue, h: SSAValue, c: SSAValue, weights: Weights, form: Form) -> tuple[SSAValue, ...]:
    """`c' = f c + i g; h' = o output(c')`: the states of all turns, and the last state and cell.

    What is kept: i, f, g, o and the cell of each turn.
    """
    hidden = _turned(b, weights.hidden, x)
    projection = None if weights.projection is None else _turned(b, weights.projection, x)
    bias = _sum(b, weights.input_bias, weights.hidden_bias)

    def turn(b: GraphBuilder, inputs: SSAValue, states: Sequence[SSAValue]) -> _Turn:
        h, c = states
        product = b.dot(h, hidden) if form.times is None else form.times[1](b, h)
        given, made = _biased_gates(b, inputs, bias, form.order), _gates(b, product, form.order)
        gates = {name: b.add(given[name], made[name]) for name in form.order}
        i = form.gate(b, _clipped(b, _peeped(b, gates["i"], c, weights, "i"), form))
        if form.coupled:
            f = b.sub(b.full_like(i, 1), i)
        else:
            f = form.gate(b, _clipped(b, _peeped(b, gates["f"], c, weights, "f"), form))
        g = form.cell(b, _clipped(b, gates["g"], form))
        new = b.add(b.mul(f, c), b.mul(i, g))
        o = form.gate(b, _clipped(b, _peeped(b, gates["o"], new, weights, "o"), form))
        state = b.mul(o, form.output(b, new))
        state = state if projection is None else b.dot(state, projection)
        return [state, new], [i, f, g, o, new]

    return _turns(b, turn, x, weights.input, [h, c], form)


def gru(b: GraphBuilder, x: SSAValue, h: SSAValue, weights: Weights, form: Form) -> tuple[SSAValue, ...]:
    """`h' = (1 - z) n + z h`, where n sees the state through r: the states of all turns, and the last one.

    What is kept: r, z, n and what the state contributes to n before it is reset.
    """
    rows = _gates(b, weights.hidden, form.order, dim=0)
    to_n = _turned(b, rows["n"], x)
    hidden = _turned(b, weights.hidden if form.reset_after else b.concat(rows["r"], rows["z"], dim=0), x)
    bias = weights.input_bias if form.reset_after else _sum(b, weights.input_bias, weights.hidden_bias)

    def turn(b: GraphBuilder, inputs: SSAValue, states: Sequence[SSAValue]) -> _Turn:
        (h,) = states
        given = _biased_gates(b, inputs, bias, form.order)
        product = b.dot(h, hidden)
        if form.reset_after:
            made = _biased_gates(b, product, weights.hidden_bias, form.order)
        else:
            made = _gates(b, product, "rz")
        r, z = (form.gate(b, _clipped(b, b.add(given[name], made[name]), form)) for name in "rz")
        seen = b.mul(r, made["n"]) if form.reset_after else b.dot(b.mul(r, h), to_n)
        n = form.cell(b, _clipped(b, b.add(given["n"], seen), form))
        return [b.add(n, b.mul(z, b.sub(h, n)))], [r, z, n, made["n"]] if form.reset_after else []

    return _turns(b, turn, x, weights.input, [h], form)


def activation(name: str, alpha: float | None = None, beta: float | None = None) -> Activation:
    """An activation by ONNX's name, with its parameters or ONNX's values for them."""
    made = _ACTIVATIONS.get(name.lower())
    if made is None:
        raise UnsupportedError(f"no activation of recurrent layers is called {name}", hint=", ".join(_ACTIVATIONS))
    function, first, second = made
    one, two = first if alpha is None else alpha, second if beta is None else beta
    return lambda b, x: function(b, x, one, two)


def _thresholded(b: GraphBuilder, x: SSAValue, alpha: float, _: float) -> SSAValue:
    return b.where(b.gt(x, b.full_like(x, alpha)), x, b.full_like(x, 0))


def _affine(b: GraphBuilder, x: SSAValue, alpha: float, beta: float) -> SSAValue:
    return b.add(b.mul(x, b.full_like(x, alpha)), b.full_like(x, beta))


_ACTIVATIONS: dict[str, tuple[Callable[[GraphBuilder, SSAValue, float, float], SSAValue], float, float]] = {
    "relu": (lambda b, x, _, __: b.relu(x), 0, 0),
    "tanh": (lambda b, x, _, __: b.tanh(x), 0, 0),
    "sigmoid": (lambda b, x, _, __: b.sigmoid(x), 0, 0),
    "affine": (_affine, 1, 0),
    "leakyrelu": (lambda b, x, alpha, _: b.leaky_relu(x, slope=alpha), 0.01, 0),
    "thresholdedrelu": (_thresholded, 1, 0),
    "scaledtanh": (lambda b, x, alpha, beta: _affine(b, b.tanh(_affine(b, x, beta, 0)), alpha, 0), 1, 1),
    "hardsigmoid": (lambda b, x, alpha, beta: b.clamp(_affine(b, x, alpha, beta), low=0.0, high=1.0), 0.2, 0.5),
    "elu": (lambda b, x, alpha, _: b.elu(x, alpha=alpha, scale=1.0, input_scale=1.0), 1, 0),
    "softsign": (lambda b, x, _, __: b.div(x, b.add(b.abs(x), b.full_like(x, 1))), 0, 0),
    "softplus": (lambda b, x, _, __: b.softplus(x, beta=1.0, threshold=20.0), 0, 0),
}
"""Each with the values that `alpha` and `beta` have where a model does not state them."""


def _turns(
    b: GraphBuilder, step: _Step, x: SSAValue, weight: SSAValue, states: Sequence[SSAValue], form: Form
) -> tuple[SSAValue, ...]:
    """The loop over all turns: what the first state was in each of them, the last states, and what is kept."""
    if form.lengths is not None:
        return _turns_of_lengths(b, step, x, weight, states, form, form.lengths)

    def turn(
        b: GraphBuilder, index: SSAValue, states: Sequence[SSAValue], slices: Sequence[SSAValue]
    ) -> tuple[list[SSAValue], list[SSAValue]]:
        new, kept = step(b, slices[0], states)
        return new, [new[0], *(kept if form.keep else [])]

    inputs, turns = _projected(b, x, weight, form), b.tensor(x).shape[0]
    finals, (outputs, *kept) = loop(b, turn, states, [inputs], trip_count=turns, reverse=form.reverse)
    return outputs, *finals, *kept


def _turns_of_lengths(
    b: GraphBuilder,
    step: _Step,
    x: SSAValue,
    weight: SSAValue,
    states: Sequence[SSAValue],
    form: Form,
    lengths: SSAValue,
) -> tuple[SSAValue, ...]:
    """The loop where sequences have lengths: it ends with the longest. What is left of the stack is 0, as it is to be.

    In reverse, inputs come in the order longest - 1, … 0, and so do outputs; what is behind the longest goes behind.
    """
    turns, rows = b.tensor(x).shape[0], b.tensor(lengths).shape[0]
    ends = b.cast(lengths, dtype=i64)
    longest, zero = size_value(b, turns, i64), b.full(value=0, shape=(), dtype=i64)
    if rows != 0:
        longest = b.minimum(b.maximum(b.max(ends, dims=(0,), keep=False), zero), longest)
    last = b.sub(longest, b.full(value=1, shape=(), dtype=i64))
    alone = turns == 1
    order = b.sub(last, iota(b, turns)) if form.reverse and not alone else None
    ordered = x if order is None else b.take(x, order, dim=0)
    inputs = _projected(b, ordered, weight, form) if alone else _projected_until(b, ordered, weight, form, longest)

    def turn(
        b: GraphBuilder, index: SSAValue, states: Sequence[SSAValue], slices: Sequence[SSAValue]
    ) -> tuple[list[SSAValue], list[SSAValue]] | tuple[list[SSAValue], list[SSAValue], SSAValue]:
        new, _ = step(b, slices[0], states)
        stacked = new[0]
        if alone or rows != 1:
            time = b.sub(last, index) if order is not None else index
            alive = b.reshape(b.lt(time, ends), shape=(rows, 1))
            stacked = b.where(alive, stacked, b.full_like(stacked, 0))
            new = [b.where(alive, made, before) for made, before in zip(new, states, strict=True)]
        return (new, [stacked]) if alone else (new, [stacked], b.lt(index, last))

    going = None if alone else b.gt(longest, zero)
    finals, (outputs,) = loop(b, turn, states, [inputs], trip_count=turns, condition=going)
    return outputs if order is None else b.take(outputs, order, dim=0), *finals


_ROWS_AT_ONCE = 32
"""Rows that are multiplied together where a product ends with the longest sequence: more gain little."""


def _projected_until(b: GraphBuilder, x: SSAValue, weight: SSAValue, form: Form, longest: SSAValue) -> SSAValue:
    """`_projected`, a few turns at once, up to the longest sequence; 0 behind it.

    Layers that round their inputs find the range of all of them, and open sizes are multiplied as a whole.
    """
    turns, rows, size = b.tensor(x).shape
    if form.times is not None or not isinstance(turns, int) or not isinstance(rows, int) or not rows:
        return _projected(b, x, weight, form)
    each = -(-_ROWS_AT_ONCE // rows)
    parts = -(-turns // each)
    if parts < 2:
        return _projected(b, x, weight, form)
    if rest := parts * each - turns:
        x = b.pad(x, low=(0, 0, 0), high=(rest, 0, 0), value=0)
    turned = _turned(b, weight, x)
    given = b.reshape(x, shape=(parts, each * rows, size))
    whole = b.full(value=each, shape=(), dtype=i64)

    def part(
        b: GraphBuilder, index: SSAValue, _: Sequence[SSAValue], slices: Sequence[SSAValue]
    ) -> tuple[list[SSAValue], list[SSAValue], SSAValue]:
        done = b.mul(b.add(index, b.full(value=1, shape=(), dtype=i64)), whole)
        return [], [b.dot(slices[0], turned)], b.lt(done, longest)

    going = b.gt(longest, b.full(value=0, shape=(), dtype=i64))
    _, (made,) = loop(b, part, [], [given], trip_count=parts, condition=going)
    gates = b.tensor(weight).shape[0]
    flat = b.reshape(made, shape=(parts * each, rows, gates))
    return b.slice(flat, starts=(0, 0, 0), shape=(turns, rows, gates), steps=(1, 1, 1)) if rest else flat


def _projected(b: GraphBuilder, x: SSAValue, weight: SSAValue, form: Form) -> SSAValue:
    """What the input contributes to the gates, in all turns: [T, B, gates * H].

    The bias is added in each turn, by the kernel that reads this: a library's product would be read and written again.
    """
    turns, rows, size = b.tensor(x).shape
    given = b.reshape(x, shape=(turns * rows, size))
    flat = _product(b, given, weight) if form.times is None else form.times[0](b, given)
    return b.reshape(flat, shape=(turns, rows, b.tensor(weight).shape[0]))


def _product(b: GraphBuilder, x: SSAValue, weight: SSAValue) -> SSAValue:
    return b.dot(x, b.permute(weight, dims=(1, 0)))


def _turned(b: GraphBuilder, weight: SSAValue, x: SSAValue) -> SSAValue:
    """Weights [N, K] as [K, N], in memory if there are turns of x that share them: brought into order before these."""
    turned = b.permute(weight, dims=(1, 0))
    return turned if b.tensor(x).shape[0] == 1 else b.copy(turned)


def _biased(b: GraphBuilder, x: SSAValue, bias: SSAValue | None) -> SSAValue:
    return x if bias is None else b.add(x, bias)


def _sum(b: GraphBuilder, one: SSAValue | None, other: SSAValue | None) -> SSAValue | None:
    if one is None or other is None:
        return other if one is None else one
    return b.add(one, other)


def _gates(b: GraphBuilder, x: SSAValue, order: str, dim: int = 1) -> dict[str, SSAValue]:
    """The parts of a tensor along a dimension, by the names of the gates."""
    shape = list(b.tensor(x).shape)
    shape[dim] = shape[dim] // len(order)
    ones = (1,) * len(shape)
    starts = [[shape[dim] * n if d == dim else 0 for d in range(len(shape))] for n in range(len(order))]
    parts = [b.slice(x, starts=tuple(start), shape=tuple(shape), steps=ones) for start in starts]
    return dict(zip(order, parts, strict=True))


def _biased_gates(b: GraphBuilder, x: SSAValue, bias: SSAValue | None, order: str) -> dict[str, SSAValue]:
    """The parts of rows with a bias, by the names of the gates.

    Each part is added to by the kernel that computes with it: a sum that were cut behind the addition would be made in
    a kernel of its own, which writes all rows once more in every turn.
    """
    parts = _gates(b, x, order)
    if bias is None:
        return parts
    biases = _gates(b, bias, order, dim=0)
    return {name: b.add(part, biases[name]) for name, part in parts.items()}


def _peeped(b: GraphBuilder, gate: SSAValue, cell: SSAValue, weights: Weights, name: str) -> SSAValue:
    factor = weights.peepholes.get(name)
    return gate if factor is None else b.add(gate, b.mul(cell, factor))


def _clipped(b: GraphBuilder, x: SSAValue, form: Form) -> SSAValue:
    return x if form.clip is None else b.clamp(x, low=-form.clip, high=form.clip)
