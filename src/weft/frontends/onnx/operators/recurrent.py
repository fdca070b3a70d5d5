"""LSTM, GRU and RNN: ONNX's layout of weights, states and directions around the layers of `weft.ops.recurrent`.

`DynamicQuantizeLSTM` has weights of 8 bits, and rounds its input, and the state of each turn, to 256 steps from the
least to the largest element. Products of codes are those of the numbers that they stand for, which are multiplied here.
"""

from __future__ import annotations

from typing import Any

from xdsl.ir import SSAValue

from weft.errors import ModelError, ShapeError
from weft.frontends.onnx.call import Call, static
from weft.frontends.onnx.operators.table import onnx_op
from weft.ops.graph import GraphBuilder
from weft.ops.recurrent import Activation, Form, Weights, activation, gru, lstm, rnn

_GATES = {"RNN": "h", "GRU": "zrn", "LSTM": "iofg"}
_FUNCTIONS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}


@onnx_op("LSTM", "GRU", "RNN")
def recurrent(c: Call) -> Any:
    return _layer(c, c.node.op, c.x(1), c.x(2), lambda b, x: x)


@onnx_op("DynamicQuantizeLSTM", domain="com.microsoft")
def dynamic_quantize_lstm(c: Call) -> Any:
    return _layer(c, "LSTM", _widened(c, 1, 8), _widened(c, 2, 10), _rounded)


def _widened(c: Call, place: int, factors: int) -> SSAValue:
    """Weights [ways, inputs, gates * H] of codes as numbers, in the layout of an LSTM's."""
    b, shape = c.b, c.shape(place)
    if len(shape) != 3:
        raise ShapeError(f"{c.node}: its weights are {list(shape)}, expected three dimensions")
    dtype = c.kernel_type(c.dtype(factors))
    numbers = b.cast(c.x(place), dtype=dtype)
    for each, apply in ((factors + 1, b.sub), (factors, b.mul)):
        if c.has(each):
            given = b.cast(c.x(each), dtype=dtype)
            sizes = c.shape(each)
            if sizes not in ((shape[0],), (shape[0], shape[2])):
                raise ShapeError(f"{c.node}: input {each} is {list(sizes)}, expected {[shape[0], shape[2]]}")
            wide = b.reshape(given, shape=(shape[0], 1, 1 if len(sizes) == 1 else shape[2]))
            numbers = apply(numbers, wide)
    return b.permute(numbers, dims=(0, 2, 1))


def _rounded(b: GraphBuilder, x: SSAValue) -> SSAValue:
    """What `DynamicQuantizeLinear` and back make of a tensor."""
    dims, zero = tuple(range(b.tensor(x).rank)), b.full_like(x, 0)
    least = b.minimum(b.min(x, dims=dims, keep=False), zero)
    most = b.maximum(b.max(x, dims=dims, keep=False), zero)
    scale = b.div(b.sub(most, least), b.full_like(x, 255))
    scale = b.where(b.eq(scale, zero), b.full_like(x, 1), scale)
    offset = b.round(b.div(b.neg(least), scale))
    codes = b.add(b.round(b.div(x, scale)), offset)
    codes = b.minimum(b.maximum(codes, zero), b.full_like(x, 255))
    return b.mul(b.sub(codes, offset), scale)


def _layer(c: Call, kind: str, weight: SSAValue, hidden: SSAValue, seen: Activation) -> Any:
    way, size = c.string("direction", "forward"), c.int("hidden_size")
    ways = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}.get(way)
    if ways is None:
        raise ModelError(f"{c.node}: attribute 'direction' is {way!r}, expected forward, reverse or bidirectional")
    x = c.x(0)
    batch_first = c.flag("layout")
    x = c.b.permute(x, dims=(1, 0, 2)) if batch_first else x
    _, batch, inputs = static(c.b.tensor(x))
    expected = (len(ways), len(_GATES[kind]) * size, inputs)
    found = static(c.b.tensor(weight))
    if found != expected:
        raise ShapeError(f"{c.node}: its weights are {list(found)}, expected {list(expected)}")
    functions = _functions(c, kind, len(ways))
    outputs: list[SSAValue] = []
    finals: list[list[SSAValue]] = []
    for n, reverse in enumerate(ways):
        chosen = functions[n]
        form = Form(
            _GATES[kind],
            reverse=reverse,
            lengths=c.optional(4),
            clip=c.float("clip") if c.given("clip") else None,
            gate=chosen[0],
            cell=chosen[1] if kind != "RNN" else chosen[0],
            output=chosen[-1],
            coupled=c.flag("input_forget") if kind == "LSTM" else False,
            reset_after=c.flag("linear_before_reset") if kind == "GRU" else True,
            seen=seen,
        )
        state = _state(c, 5, n, batch, size, batch_first)
        weights = _weights(c, kind, _one(c, weight, n), _one(c, hidden, n), n, size)
        if kind == "LSTM":
            made, *last = lstm(c.b, x, state, _state(c, 6, n, batch, size, batch_first), weights, form)
        else:
            made, *last = (gru if kind == "GRU" else rnn)(c.b, x, state, weights, form)
        outputs.append(made)
        finals.append(last)
    axis = 2 if batch_first else 1
    y = _joined(c, [c.b.permute(each, dims=(1, 0, 2)) if batch_first else each for each in outputs], axis)
    return [y, *(_joined(c, list(each), 1 if batch_first else 0) for each in zip(*finals, strict=True))]


def _joined(c: Call, parts: list[SSAValue], axis: int) -> SSAValue:
    """One tensor of the directions', with a new dimension for them."""
    shape = static(c.b.tensor(parts[0]))
    wide = [c.b.reshape(each, shape=(*shape[:axis], 1, *shape[axis:])) for each in parts]
    return wide[0] if len(wide) == 1 else c.b.concat(*wide, dim=axis)


def _one(c: Call, x: SSAValue, n: int, axis: int = 0) -> SSAValue:
    """What one direction has of a tensor."""
    shape = static(c.b.tensor(x))
    starts = tuple(n if d == axis else 0 for d in range(len(shape)))
    sizes = tuple(1 if d == axis else size for d, size in enumerate(shape))
    part = c.b.slice(x, starts=starts, shape=sizes, steps=(1,) * len(shape))
    return c.b.reshape(part, shape=tuple(size for d, size in enumerate(shape) if d != axis))


def _state(c: Call, place: int, n: int, batch: int, size: int, batch_first: bool) -> SSAValue:
    """The first state; zeros, where none is given."""
    if c.has(place):
        return _one(c, c.x(place), n, 1 if batch_first else 0)
    return c.b.full(value=0, shape=(batch, size), dtype=c.kernel_type(c.dtype(0)))


def _weights(c: Call, kind: str, weight: SSAValue, hidden: SSAValue, n: int, size: int) -> Weights:
    biases: list[SSAValue | None] = [None, None]
    if c.has(3):
        both = _one(c, c.x(3), n)
        half = static(c.b.tensor(both))[0] // 2
        biases = [c.b.slice(both, starts=(start,), shape=(half,), steps=(1,)) for start in (0, half)]
    peepholes: dict[str, SSAValue] = {}
    if kind == "LSTM" and c.has(7):
        row = _one(c, c.x(7), n)
        peepholes = {
            gate: c.b.slice(row, starts=(k * size,), shape=(size,), steps=(1,)) for k, gate in enumerate("iof")
        }
    return Weights(weight, hidden, biases[0], biases[1], peepholes=peepholes)


def _functions(c: Call, kind: str, ways: int) -> list[list[Activation]]:
    """The activations of each direction; parameters are handed out in order to those that take them."""
    default = _FUNCTIONS[kind]
    names = c.strings("activations", default * ways)
    if len(names) != len(default) * ways:
        raise ModelError(f"{c.node}: there are {len(names)} activations, expected {len(default) * ways}")
    alphas, betas = list(c.floats("activation_alpha", ())), list(c.floats("activation_beta", ()))
    made: list[Activation] = []
    for name in names:
        word = name.lower()
        alpha = alphas.pop(0) if alphas and word in _TAKES_ALPHA else None
        beta = betas.pop(0) if betas and word in _TAKES_BETA else None
        made.append(activation(name, alpha, beta))
    return [made[n * len(default) : (n + 1) * len(default)] for n in range(ways)]


_TAKES_ALPHA = ("affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu")
_TAKES_BETA = ("affine", "scaledtanh", "hardsigmoid")
