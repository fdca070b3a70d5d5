"""`fold_batch_norm`: frozen convolutions and products take over the scaling and shifting of their channels."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from xdsl.context import Context

from tests.seeds import generator
from weft.backends.reference.graph import run
from weft.ir.attributes import to_attribute
from weft.ir.types import Tensor, f32
from weft.ops import composites
from weft.ops.graph import OpaqueOp
from weft.ops.windows.convolution import Convolution, plain_params
from weft.passes.convolution.fold_batch_norm import FoldBatchNorm
from weft.passes.simplify.eliminate_dead import EliminateDead
from weft.passes.simplify.simplify import Simplify

GEOMETRY = plain_params() | {"padding": ((1, 1), (1, 1)), "groups": 2}
PASSES = (FoldBatchNorm(), EliminateDead())
CHANNELS = {name: Tensor(f32, (6,)) for name in ("gamma", "beta", "mean", "variance")}
X, W = Tensor(f32, (2, 4, 5, 5)), Tensor(f32, (6, 2, 3, 3))


def frozen(passes: Any, arguments: dict[str, Tensor], body: Any, names: tuple[str, ...]) -> Any:
    module = passes.built(arguments, body)
    places = tuple(place for place, name in enumerate(arguments) if name in names)
    passes.function(module).attributes["constants"] = to_attribute(places)
    return module


def test_as_text(passes: Any) -> None:
    passes.rewrites_text(
        PASSES,
        """
        "graph.func"() ({
        ^bb0(%x: tensor<3x4xf32>, %w: tensor<4x2xf32>, %s: tensor<2xf32>, %t: tensor<2xf32>):
          %0 = "graph.dot"(%x, %w) : (tensor<3x4xf32>, tensor<4x2xf32>) -> tensor<3x2xf32>
          %1 = "graph.sub"(%0, %t) : (tensor<3x2xf32>, tensor<2xf32>) -> tensor<3x2xf32>
          %2 = "graph.mul"(%1, %s) : (tensor<3x2xf32>, tensor<2xf32>) -> tensor<3x2xf32>
          "graph.return"(%2) : (tensor<3x2xf32>) -> ()
        }) {sym_name = "f", constants = [1, 2, 3]} : () -> ()
        """,
        """
        "graph.func"() ({
        ^bb0(%x: tensor<3x4xf32>, %w: tensor<4x2xf32>, %s: tensor<2xf32>, %t: tensor<2xf32>):
          %0 = "graph.neg"(%t) : (tensor<2xf32>) -> tensor<2xf32>
          %1 = "graph.mul"(%0, %s) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
          %2 = "graph.reshape"(%s) {shape = [1, 2]} : (tensor<2xf32>) -> tensor<1x2xf32>
          %3 = "graph.mul"(%w, %2) : (tensor<4x2xf32>, tensor<1x2xf32>) -> tensor<4x2xf32>
          %4 = "graph.dot"(%x, %3) : (tensor<3x4xf32>, tensor<4x2xf32>) -> tensor<3x2xf32>
          %5 = "graph.reshape"(%1) {shape = [2]} : (tensor<2xf32>) -> tensor<2xf32>
          %6 = "graph.add"(%4, %5) : (tensor<3x2xf32>, tensor<2xf32>) -> tensor<3x2xf32>
          "graph.return"(%6) : (tensor<3x2xf32>) -> ()
        }) {sym_name = "f", constants = [1, 2, 3]} : () -> ()
        """,
        rtol=1e-5,
    )


def normalized(b: Any, y: Any, gamma: Any, beta: Any, mean: Any, variance: Any) -> Any:
    return composites.batch_norm(b, y, gamma, beta, mean, b.mul(variance, variance), 1e-3)


def test_convolutions(passes: Any) -> None:
    def body(b: Any, x: Any, w: Any, *channels: Any) -> Any:
        return b.relu(normalized(b, b.convolution(x, w, **GEOMETRY), *channels))

    module = frozen(passes, {"x": X, "w": W, **CHANNELS}, body, ("w", *CHANNELS))
    passes.apply((*PASSES, Simplify()), module, rtol=1e-4)
    ops = [op.name for op in passes.function(module).block.ops]
    assert ops[ops.index("graph.convolution") :] == [
        *("graph.convolution", "graph.reshape", "graph.add", "graph.relu", "graph.return")
    ]


@pytest.mark.parametrize("with_bias", [True, False])
def test_convolutions_by_a_library(passes: Any, with_bias: bool) -> None:
    def body(b: Any, x: Any, w: Any, bias: Any, *channels: Any) -> Any:
        call = {
            "args": ["#0", "#1", "#2" if with_bias else None, [1, 1], [1, 1], [1, 1], False, [0, 0], 2],
            "kwargs": {},
        }
        operands = [x, w, bias] if with_bias else [x, w]
        result = Tensor(f32, (2, 6, 5, 5))
        made = b.insert(OpaqueOp.make("aten::convolution", operands, json.dumps(call), [result]))
        return normalized(b, made.results[0], *channels)

    def convolve(op: OpaqueOp, arrays: Any) -> Any:
        call = json.loads(op.arguments.data)["args"]
        y = Convolution.reference(arrays[0], arrays[1], **GEOMETRY)
        return [y if call[2] is None else y + arrays[int(call[2][1:])][:, None, None]]

    arguments = {"x": X, "w": W, "bias": Tensor(f32, (6,)), **CHANNELS}
    module = frozen(passes, arguments, body, ("w", "bias", *CHANNELS))
    rng = generator()
    arrays = [rng.standard_normal([*t.shape]).astype(np.float32) for t in arguments.values()]
    (wanted,) = run(passes.function(module), arrays, opaque=convolve)
    for each in PASSES:
        each.apply(Context(), module)
    module.verify()
    (found,) = run(passes.function(module), arrays, opaque=convolve)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    ops = [op.name for op in passes.function(module).block.ops]
    assert ops[-2:] == ["graph.opaque", "graph.return"]


STAYS: dict[str, tuple[tuple[str, ...], Any]] = {
    "weights that are no constants": (
        tuple(CHANNELS),
        lambda b, x, w, *channels: normalized(b, b.convolution(x, w, **GEOMETRY), *channels),
    ),
    "statistics that are no constants": (
        ("w",),
        lambda b, x, w, *channels: normalized(b, b.convolution(x, w, **GEOMETRY), *channels),
    ),
    "a result that others read": (
        ("w", *CHANNELS),
        lambda b, x, w, *channels: [y := b.convolution(x, w, **GEOMETRY), normalized(b, y, *channels)],
    ),
    "a number": (
        ("w", *CHANNELS),
        lambda b, x, w, *channels: b.mul(y := b.convolution(x, w, **GEOMETRY), b.full_like(y, 0.5)),
    ),
    "factors along another dimension": (
        ("w", *CHANNELS),
        lambda b, x, w, gamma, *channels: b.mul(
            b.convolution(x, w, **GEOMETRY), b.slice(gamma, starts=(0,), shape=(5,), steps=(1,))
        ),
    ),
}


@pytest.mark.parametrize("case", STAYS)
def test_what_stays(passes: Any, case: str) -> None:
    names, body = STAYS[case]
    module = frozen(passes, {"x": X, "w": W, **CHANNELS}, body, names)
    before = str(module)
    passes.apply(PASSES, module)
    assert str(module) == before
