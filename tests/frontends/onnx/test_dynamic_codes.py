"""Codes that are made as a model runs: each operator is right for what it was given, sums of codes to the last unit.

A whole model need not give what another runtime gives: a number half-way between two codes goes to either, by its last
place, and all that follows follows (docs/onnx.md has figures).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed")
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import weft.onnx
from weft.testing.onnx_models import info, model

CHANNELS, LAYERS = 24, 3
U8, I32, F32 = int(TensorProto.UINT8), int(TensorProto.INT32), int(TensorProto.FLOAT)


def layers() -> tuple[list[tuple[list[str], list[str], list[int]]], dict[str, np.ndarray]]:
    """Nodes (their words, results, and types of these) of convolutions of codes with a smooth activation between."""
    rng = np.random.default_rng(11)
    nodes: list[tuple[list[str], list[str], list[int]]] = []
    arrays: dict[str, np.ndarray] = {}
    x = "x"
    for n in range(LAYERS):
        wide = 3 if n == 0 else CHANNELS
        arrays |= {
            f"w{n}": rng.integers(0, 256, (CHANNELS, wide, 3, 3)).astype(np.uint8),
            f"wz{n}": np.array(121, np.uint8),
            f"ws{n}": np.array(2e-3, np.float32),
            f"b{n}": rng.standard_normal((1, CHANNELS, 1, 1)).astype(np.float32),
        }
        nodes += [
            (["DynamicQuantizeLinear", x], [f"q{n}", f"s{n}", f"z{n}"], [U8, F32, U8]),
            (["ConvInteger", f"q{n}", f"w{n}", f"z{n}", f"wz{n}"], [f"c{n}"], [I32]),
            (["Cast", f"c{n}"], [f"f{n}"], [F32]),
            (["Mul", f"s{n}", f"ws{n}"], [f"m{n}"], [F32]),
            (["Mul", f"f{n}", f"m{n}"], [f"p{n}"], [F32]),
            (["Add", f"p{n}", f"b{n}"], [f"a{n}"], [F32]),
            (["Sigmoid", f"a{n}"], [f"g{n}"], [F32]),
            (["Mul", f"a{n}", f"g{n}"], [f"y{n}"], [F32]),
        ]
        x = f"y{n}"
    return nodes, arrays


@pytest.mark.parametrize("seed", range(3))
def test_every_operator_is_right_for_what_it_was_given(seed: int) -> None:
    stated, arrays = layers()
    extra = {"Cast": {"to": F32}, "ConvInteger": {"pads": [1, 1, 1, 1]}}
    nodes = [helper.make_node(op, given, made, **extra.get(op, {})) for (op, *given), made, _ in stated]
    outputs = [info(name, None, kind) for _, made, kinds in stated for name, kind in zip(made, kinds, strict=True)]
    shape = (1, 3, 13, 29)
    function = weft.onnx.load(model(nodes, [info("x", shape)], outputs, arrays))
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    values = arrays | {"x": x} | dict(zip([each.name for each in outputs], function(x), strict=True))
    for node in nodes:
        given = {name: values[name] for name in node.input}
        # The widest that the operator knows: exact sums, and floats that err less than the ones that are judged.
        expected: Any = ReferenceEvaluator(node).run(None, given)
        for name, exact in zip(node.output, expected, strict=True):
            found = values[name]
            if node.op_type == "DynamicQuantizeLinear" and name == node.output[0]:
                _judge_codes(found, values[node.input[0]], *expected[1:])
            elif found.dtype.kind in "iu":
                np.testing.assert_array_equal(found, exact, err_msg=name)
            else:
                np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-6 * np.abs(exact).max(), err_msg=name)


def _judge_codes(found: np.ndarray, x: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> None:
    """Codes are the nearest ones, or a number lies half-way between two as near as its last places tell."""
    steps = x.astype(np.float64) / np.float64(scale) + np.float64(zero)
    codes = np.clip(steps, 0, 255)
    assert (np.abs(found - codes) <= 0.5 + 1e-4).all()
    assert (np.abs(found - codes) > 0.5).mean() < 1e-3
