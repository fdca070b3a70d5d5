"""`convolve_trained`: convolutions and their gradients become products, whatever their weights are."""

from __future__ import annotations

from typing import Any

import pytest

from weft.ir.expr import symbol
from weft.ir.types import Tensor, bf16, f32, i32, tensor_of
from weft.ops.windows.convolution import Convolution
from weft.passes.convolution.convolve_trained import ConvolveTrained, is_product
from weft.passes.grouping.build_groups import PARTIAL_SUMS

PLAIN: dict[str, Any] = {
    "strides": (1, 1),
    "padding": ((0, 0), (0, 0)),
    "dilation": (1, 1),
    "groups": 1,
    "transposed": False,
    "output_padding": (0, 0),
}
CASES: list[tuple[tuple[Any, ...], tuple[Any, ...], dict[str, Any]]] = [
    ((2, 8, 3, 5), (16, 8, 1, 1), {}),
    ((2, 3, 7, 8), (8, 3, 3, 2), {"padding": ((1, 2), (0, 1)), "strides": (2, 1), "dilation": (1, 2)}),
    ((2, 8, 9, 9), (8, 8, 2, 2), {"strides": (4, 3)}),
    ((2, 16, 5, 6), (32, 4, 3, 3), {"groups": 4, "padding": ((1, 1), (1, 1))}),
    ((2, 8, 4, 3), (8, 5, 3, 3), {"transposed": True, "strides": (2, 2), "output_padding": (1, 0)}),
    ((2, 16, 4, 3), (16, 3, 2, 2), {"transposed": True, "groups": 2, "padding": ((1, 0), (0, 1))}),
    ((symbol("s0"), 8, 5, 5), (8, 8, 3, 3), {"padding": ((1, 1), (1, 1))}),
]


def names(function: Any) -> list[str]:
    return [op.name.removeprefix("graph.") for op in function.block.ops]


@pytest.mark.parametrize(("x", "w", "changed"), CASES)
def test_forward(passes: Any, x: Any, w: Any, changed: dict[str, Any]) -> None:
    module = passes.built(
        {"x": Tensor(f32, x), "w": Tensor(f32, w)}, lambda b, x, w: b.convolution(x, w, **(PLAIN | changed))
    )
    passes.apply(ConvolveTrained(), module, rtol=1e-5, s0=3)
    found = names(passes.function(module))
    assert "convolution" not in found and found.count("dot") == 1
    assert ("fold" in found) == bool(changed.get("transposed"))


@pytest.mark.parametrize(("x", "w", "changed"), CASES)
def test_gradients(passes: Any, x: Any, w: Any, changed: dict[str, Any]) -> None:
    params = PLAIN | changed
    tensors = Tensor(f32, x), Tensor(f32, w)
    arguments = {"g": Convolution.infer(*tensors, **params), "x": tensors[0], "w": tensors[1]}
    module = passes.built(arguments, lambda b, g, x, w: list(Convolution.vjp(b, (g,), (x, w), (), **params)))
    passes.apply(ConvolveTrained(), module, rtol=1e-5, s0=3)
    function = passes.function(module)
    assert "convolution" not in names(function) and names(function).count("dot") == 2
    assert sum(PARTIAL_SUMS in op.attributes for op in function.block.ops) == 1


@pytest.mark.parametrize(
    ("x", "w", "changed"),
    [
        ((1, 8, 5, 5), (4, 8, 3, 3), {}),
        ((1, 8, 5, 5), (8, 1, 3, 3), {"groups": 8}),
        ((1, 8, 5, symbol("w")), (8, 8, 3, 3), {}),
        ((0, 8, 5, 5), (8, 8, 3, 3), {}),
        ((1 << 20, 8, 5, 5), (8, 8, 3, 3), {}),
    ],
)
def test_what_is_left_to_others(x: Any, w: Any, changed: dict[str, Any]) -> None:
    params = PLAIN | changed
    result = Tensor(f32, (x[0], w[0], 3, 3))
    assert not is_product(Tensor(f32, x), Tensor(f32, w), result, **params)
    assert not is_product(Tensor(i32, (1, 8, 5, 5)), Tensor(i32, (8, 8, 3, 3)), result, **PLAIN)


@pytest.mark.parametrize(
    ("w", "changed", "taken"),
    [
        ((16, 8, 1, 1), {}, True),
        ((16, 8, 1, 1), {"strides": (2, 2)}, False),
        ((16, 8, 1, 1), {"padding": ((1, 1), (0, 0))}, False),
        ((16, 8, 3, 3), {}, False),
        ((16, 4, 1, 1), {"groups": 2}, False),
        ((8, 4, 1, 1), {"transposed": True}, False),
    ],
)
def test_convolutions_of_single_places(passes: Any, w: Any, changed: dict[str, Any], taken: bool) -> None:
    module = passes.built(
        {"x": Tensor(bf16, (2, 8, 5, 6)), "w": Tensor(bf16, w)},
        lambda b, x, w: b.convolution(x, w, **(PLAIN | changed)),
    )
    passes.apply(ConvolveTrained(pointwise=True), module, rtol=1e-2)
    assert ("dot" in names(passes.function(module))) == taken


ALONG = PLAIN | {"strides": (1,), "dilation": (1,), "padding": ((0, 0),)}


@pytest.mark.parametrize(
    ("length", "turned", "kept"), [(128, False, True), (128, True, False), (40, False, False), (129, False, False)]
)
def test_long_examples_keep_their_places_innermost(passes: Any, length: int, turned: bool, kept: bool) -> None:
    """One product for each example; over rows of channels where these are short, or lie with channels innermost."""
    shape = (2, length, 8) if turned else (2, 8, length)
    module = passes.built(
        {"x": Tensor(bf16, shape), "w": Tensor(bf16, (16, 8, 1))},
        lambda b, x, w: b.convolution(b.relu(b.permute(x, dims=(0, 2, 1)) if turned else x), w, **ALONG),
    )
    passes.apply(ConvolveTrained(pointwise=True), module, rtol=1e-2)
    (dot,) = [op for op in passes.function(module).block.ops if op.name == "graph.dot"]
    assert (tensor_of(dot.results[0].type).shape == (2, 16, length)) == kept
