"""Steps of optimizers, as the preview domain for training has them: states in, new states out."""

from __future__ import annotations

from typing import Any

from xdsl.ir import SSAValue

from weft.errors import ModelError
from weft.frontends.onnx.call import Call
from weft.frontends.onnx.operators.table import onnx_op

_DOMAIN = "ai.onnx.preview.training"


def _groups(c: Call, kinds: int) -> list[tuple[SSAValue, ...]]:
    """For each tensor that is optimized: itself, its gradient and its states."""
    count, rest = divmod(len(c.inputs) - 2, kinds)
    if rest or count < 1:
        raise ModelError(f"{c.node} has {len(c.inputs)} inputs, expected 2 and {kinds} for each tensor")
    return [tuple(c.x(2 + n + kind * count) for kind in range(kinds)) for n in range(count)]


def _number(c: Call, x: SSAValue, value: float) -> SSAValue:
    return c.b.full_like(x, value)


def _rate(c: Call, x: SSAValue) -> SSAValue:
    rate = c.x(0)
    dtype = c.b.tensor(x).dtype
    return rate if c.b.tensor(rate).dtype == dtype else c.b.cast(rate, dtype=dtype)


@onnx_op("Adagrad", domain=_DOMAIN)
def adagrad(c: Call) -> Any:
    b, turn = c.b, int(c.known_scalar(1))
    decay, eps, norm = c.float("decay_factor", 0.0), c.float("epsilon", 1e-6), c.float("norm_coefficient", 0.0)
    made: list[tuple[SSAValue, ...]] = []
    for x, g, h in _groups(c, 3):
        rate = b.div(_rate(c, x), _number(c, x, 1 + turn * decay))
        g = b.add(g, b.mul(x, _number(c, x, norm)))
        total = b.add(h, b.mul(g, g))
        step = b.div(b.mul(rate, g), b.add(b.sqrt(total), _number(c, x, eps)))
        made.append((b.sub(x, step), total))
    return [each for kind in zip(*made, strict=True) for each in kind]


@onnx_op("Adam", domain=_DOMAIN)
def adam(c: Call) -> Any:
    b, turn = c.b, int(c.known_scalar(1))
    alpha, beta, eps = c.float("alpha", 0.9), c.float("beta", 0.999), c.float("epsilon", 1e-6)
    norm, after = c.float("norm_coefficient", 0.0), c.float("norm_coefficient_post", 0.0)
    made: list[tuple[SSAValue, ...]] = []
    for x, g, v, h in _groups(c, 4):
        g = b.add(g, b.mul(x, _number(c, x, norm)))
        first = b.add(b.mul(v, _number(c, x, alpha)), b.mul(g, _number(c, x, 1 - alpha)))
        second = b.add(b.mul(h, _number(c, x, beta)), b.mul(b.mul(g, g), _number(c, x, 1 - beta)))
        rate = _rate(c, x)
        if turn > 0:
            rate = b.mul(rate, _number(c, x, (1 - beta**turn) ** 0.5 / (1 - alpha**turn)))
        moved = b.sub(x, b.div(b.mul(rate, first), b.add(b.sqrt(second), _number(c, x, eps))))
        made.append((b.mul(moved, _number(c, x, 1 - after)), first, second))
    return [each for kind in zip(*made, strict=True) for each in kind]


@onnx_op("Momentum", domain=_DOMAIN)
def momentum(c: Call) -> Any:
    b, turn = c.b, int(c.known_scalar(1))
    alpha, beta, norm = c.float("alpha"), c.float("beta"), c.float("norm_coefficient")
    mode = c.string("mode")
    made: list[tuple[SSAValue, ...]] = []
    for x, g, v in _groups(c, 3):
        g = b.add(g, b.mul(x, _number(c, x, norm)))
        factor = beta if turn > 0 else 1.0
        new = b.add(b.mul(v, _number(c, x, alpha)), b.mul(g, _number(c, x, factor)))
        step = b.add(g, b.mul(new, _number(c, x, alpha))) if mode == "nesterov" else new
        made.append((b.sub(x, b.mul(_rate(c, x), step)), new))
    return [each for kind in zip(*made, strict=True) for each in kind]
