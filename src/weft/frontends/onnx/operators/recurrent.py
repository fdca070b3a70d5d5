"""LSTM, GRU and RNN: ONNX's layout of weights, states and directions around the layers of `weft.ops.recurrent`.

`DynamicQuantizeLSTM` has weights of 8 bits, and rounds its input, and the state of each turn, to 256 steps from the
least to the largest element. Products are those of the numbers that codes stand for, written so that `multiply_codes`
makes products of codes of them, which are a quarter as much to read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from xdsl.ir import SSAValue

from weft.errors import ModelError, ShapeError
from weft.frontends.onnx.call import Call, static
from weft.frontends.onnx.checks import check_lengths
from weft.frontends.onnx.operators.table import onnx_op
from weft.ir.types import f32, i32, u8
from weft.ops.graph import GraphBuilder
from weft.ops.recurrent import Activation, Form, Weights, activation, gru, lstm, rnn

_GATES = {"RNN": "h", "GRU": "zrn", "LSTM": "iofg"}
_FUNCTIONS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}


@onnx_op("LSTM", "GRU", "RNN")
def recurrent(c: Call) -> Any:
    return _layer(c, c.node.op, c.x(1), c.x(2))


@onnx_op("DynamicQuantizeLSTM", domain="com.microsoft")
def dynamic_quantize_lstm(c: Call) -> Any:
    weight, hidden = _QuantizedWeights.of(c, 1, 8), _QuantizedWeights.of(c, 2, 10)

    def times(way: int) -> tuple[Activation, Activation]:
        return weight.product(c, way), hidden.product(c, way)

    numbers = [c.b.permute(each.numbers(c.b), dims=(0, 2, 1)) for each in (weight, hidden)]
    return _layer(c, "LSTM", numbers[0], numbers[1], times)


@dataclass(frozen=True)
class _QuantizedWeights:
    """Codes of weights [..., inputs, gates * H], what stands for 0, and factors, which broadcast to them."""

    codes: SSAValue
    zero: SSAValue | None
    scale: SSAValue

    @classmethod
    def of(cls, c: Call, place: int, factors: int) -> _QuantizedWeights:
        """Those of all directions, [ways, inputs, gates * H]."""
        shape = c.shape(place)
        if len(shape) != 3:
            raise ShapeError(f"{c.node}: its weights are {list(shape)}, expected three dimensions")

        def beside(each: int) -> SSAValue:
            sizes = c.shape(each)
            if sizes not in ((shape[0],), (shape[0], shape[2])):
                raise ShapeError(f"{c.node}: input {each} is {list(sizes)}, expected {[shape[0], shape[2]]}")
            return c.b.reshape(c.x(each), shape=(shape[0], 1, 1 if len(sizes) == 1 else shape[2]))

        return cls(c.x(place), beside(factors + 1) if c.has(factors + 1) else None, beside(factors))

    def product(self, c: Call, way: int) -> Activation:
        """What multiplies rows, rounded to codes, by the weights of one direction."""
        zero = None if self.zero is None else _one(c, self.zero, way)
        part = _QuantizedWeights(_one(c, self.codes, way), zero, _one(c, self.scale, way))
        return lambda b, x: b.dot(_rounded(b, x), part.numbers(b))

    def numbers(self, b: GraphBuilder) -> SSAValue:
        """What the codes stand for."""
        whole = b.cast(self.codes, dtype=i32)
        whole = whole if self.zero is None else b.sub(whole, b.cast(self.zero, dtype=i32))
        return b.mul(b.cast(whole, dtype=f32), self.scale)


def _rounded(b: GraphBuilder, x: SSAValue) -> SSAValue:
    """What `DynamicQuantizeLinear` and back make of a tensor."""
    dims, zero = tuple(range(b.tensor(x).rank)), b.full_like(x, 0)
    least = b.minimum(b.min(x, dims=dims, keep=False), zero)
    most = b.maximum(b.max(x, dims=dims, keep=False), zero)
    scale = b.div(b.sub(most, least), b.full_like(x, 255))
    scale = b.where(b.eq(scale, zero), b.full_like(x, 1), scale)
    offset = b.round(b.div(b.neg(least), scale))
    codes = b.add(b.round(b.div(x, scale)), offset)
    codes = b.cast(b.minimum(b.maximum(codes, zero), b.full_like(x, 255)), dtype=u8)
    whole = b.sub(b.cast(codes, dtype=i32), b.cast(offset, dtype=i32))
    return b.mul(b.cast(whole, dtype=f32), scale)


def _layer(
    c: Call,
    kind: str,
    weight: SSAValue,
    hidden: SSAValue,
    times: Callable[[int], tuple[Activation, Activation]] | None = None,
) -> Any:
    """A layer; `times` makes the products of a direction's input and state, where those are of codes."""
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
    if c.optional(4) is not None:
        check_lengths(c, 4, c.b.tensor(x).shape[0])
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
            times=None if times is None else times(n),
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
