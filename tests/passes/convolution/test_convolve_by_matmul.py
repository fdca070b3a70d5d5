"""`convolve_by_matmul`: frozen convolutions become products of rows, and what follows is computed in rows."""

from __future__ import annotations

from typing import Any

import pytest

from weft.ir.attributes import to_attribute
from weft.ir.expr import symbol
from weft.ir.types import Tensor, f32, i32
from weft.ops.windows.convolution import plain_params
from weft.passes.convolution.convolve_by_matmul import ROWS_OF_WINDOWS, ConvolveByMatmul, geometry_of
from weft.passes.simplify.eliminate_dead import EliminateDead

PASSES = (ConvolveByMatmul(), EliminateDead())
PLAIN = plain_params()


def rewritten(
    passes: Any, x: Tensor, w: Tensor, body: Any, *others: Tensor, constants: Any = (1,), **sizes: int
) -> Any:
    arguments = {"x": x, "w": w, **{f"v{n}": tensor for n, tensor in enumerate(others)}}
    module = passes.built(arguments, body)
    passes.function(module).attributes["constants"] = to_attribute(constants)
    passes.apply(PASSES, module, rtol=1e-5, **sizes)
    return passes.function(module)


def names(function: Any) -> list[str]:
    return [op.name.removeprefix("graph.") for op in function.block.ops]


def test_one_element_needs_views_only(passes: Any) -> None:
    function = rewritten(
        passes, Tensor(f32, (2, 8, 3, 5)), Tensor(f32, (4, 8, 1, 1)), lambda b, x, w: b.convolution(x, w, **PLAIN)
    )
    assert set(names(function)) == {"permute", "reshape", "dot", "return"}
    (dot,) = (op for op in function.block.ops if op.name == "graph.dot")
    assert ROWS_OF_WINDOWS in dot.attributes


@pytest.mark.parametrize("channels", [2, 32])
@pytest.mark.parametrize("batch", [1, symbol("s0")])
def test_windows(passes: Any, channels: int, batch: Any) -> None:
    geometry = PLAIN | {"padding": ((1, 2), (0, 1)), "strides": (2, 1), "dilation": (1, 2)}
    function = rewritten(
        passes,
        Tensor(f32, (batch, channels, 7, 8)),
        Tensor(f32, (4, channels, 3, 2)),
        lambda b, x, w: b.convolution(x, w, **geometry),
        s0=3,
    )
    # The weights are copied; windows of few channels are short runs, which are copied as well.
    assert names(function).count("copy") == (2 if channels == 2 else 1)
    assert {"pad", "windows", "dot"} <= set(names(function)) and "convolution" not in names(function)


def test_what_follows_is_computed_in_rows(passes: Any) -> None:
    def body(b: Any, x: Any, w: Any, bias: Any, other: Any) -> Any:
        y = b.add(b.convolution(x, w, **PLAIN), bias)
        return b.relu(b.add(b.mul(y, b.full_like(y, 0.5)), other))

    shapes = [Tensor(f32, shape) for shape in ((2, 8, 3, 5), (4, 8, 1, 1), (4, 1, 1), (2, 4, 3, 5))]
    function = rewritten(passes, shapes[0], shapes[1], body, *shapes[2:], constants=(1, 2))
    ranks = {op.name: len(op.results[0].type.shape) for op in function.block.ops if op.name != "graph.return"}
    assert ranks["graph.add"] == ranks["graph.relu"] == ranks["graph.mul"] == 2


def test_an_operand_for_each_image_is_not_rows(passes: Any) -> None:
    def body(b: Any, x: Any, w: Any, scale: Any) -> Any:
        return b.mul(b.convolution(x, w, **PLAIN), scale)

    tensors = [Tensor(f32, shape) for shape in ((2, 8, 3, 5), (4, 8, 1, 1), (2, 4, 1, 1))]
    function = rewritten(passes, tensors[0], tensors[1], body, tensors[2])
    (product,) = (op for op in function.block.ops if op.name == "graph.mul")
    assert len(product.results[0].type.shape) == 4


def test_channels_that_do_not_mix(passes: Any) -> None:
    for window, pads in ((3, 0), (5, 1)):
        geometry = PLAIN | {"groups": 6, "padding": ((1, 1), (1, 1))}
        function = rewritten(
            passes,
            Tensor(f32, (2, 6, 7, 8)),
            Tensor(f32, (6, 1, window, window)),
            lambda b, x, w, geometry=geometry: b.convolution(x, w, **geometry),
        )
        assert names(function).count("pad") == pads and names(function).count("copy") == 1
        assert "convolution" in names(function)


def test_weights_that_may_change_stay(passes: Any) -> None:
    tensors = Tensor(f32, (2, 8, 3, 5)), Tensor(f32, (4, 8, 1, 1))
    function = rewritten(passes, *tensors, lambda b, x, w: b.convolution(x, w, **PLAIN), constants=(0,))
    assert names(function) == ["convolution", "return"]


@pytest.mark.parametrize(
    ("x", "w", "changed"),
    [
        ((1, 8, 5, 5), (4, 4, 3, 3), {"groups": 2}),
        ((1, 8, 5, 5), (16, 1, 3, 3), {"groups": 8}),
        ((1, 8, 25, 25), (8, 1, 9, 9), {"groups": 8}),
        ((1, 8, 5, symbol("w")), (4, 8, 3, 3), {}),
        ((0, 8, 5, 5), (4, 8, 3, 3), {}),
    ],
)
def test_what_is_left_to_others(x: Any, w: Any, changed: dict[str, Any]) -> None:
    result = Tensor(f32, (x[0], w[0], 3, 3))
    assert geometry_of(Tensor(f32, x), Tensor(f32, w), result, **(PLAIN | changed)) is None
    assert geometry_of(Tensor(i32, (1, 8, 5, 5)), Tensor(i32, (4, 8, 3, 3)), result, **PLAIN) is None


@pytest.mark.parametrize(
    ("x", "w", "narrow", "wide"),
    [
        ((1, 3, 20, 20), (64, 3, 7, 7), True, False),  # runs of 21 elements
        ((1, 256, 16, 16), (256, 256, 3, 3), True, False),  # rows of 14 windows by weights that leave a cache
        ((1, 256, 9, 9), (256, 256, 3, 3), True, True),  # rows of 7
        ((1, 2, 20, 20), (64, 2, 3, 3), True, True),
    ],
)
def test_wide_vectors_take_shorter_runs_and_rows_where_they_lie(x: Any, w: Any, narrow: bool, wide: bool) -> None:
    counts = tuple(size - window + 1 for size, window in zip(x[2:], w[2:], strict=True))
    geometry = geometry_of(Tensor(f32, x), Tensor(f32, w), Tensor(f32, (1, w[0], *counts)), **PLAIN)
    assert geometry is not None
    assert (geometry.copies_windows(), geometry.copies_windows(wide=True)) == (narrow, wide)
    assert geometry.copies_windows(codes=True, wide=True) == geometry.copies_windows(codes=True)
