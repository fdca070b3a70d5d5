"""Calls that torch carries out, read once and made often."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from weft.frontends.torch.importer.encoding import dumps
from weft.frontends.torch.importer.opaque import OpaqueCall, OpaqueRuntime


def bound(target: str, *args: Any, symbols: dict[str, int] | None = None, **text: Any) -> OpaqueCall:
    encoded = dumps({"args": list(args), "kwargs": {}, "results": [0], **text})
    return OpaqueRuntime({}).bound(target, encoded, symbols or {})


@pytest.mark.parametrize("enabled", [False, True])
def test_a_call_is_made_of_the_operands_that_each_time_brings(enabled: bool) -> None:
    call = bound("aten::addmm", "#0", "#1", "#2", kwargs={"alpha": 2})
    with torch.set_grad_enabled(enabled):
        for _ in range(2):
            bias, x, y = torch.randn(5, requires_grad=True), torch.randn(4, 3), torch.randn(3, 5)
            (found,) = call([bias, x, y])
            assert found is not None and not found.requires_grad
            torch.testing.assert_close(found, bias + 2 * (x @ y))
        assert torch.is_grad_enabled() == enabled


def test_operands_stand_inside_of_arguments() -> None:
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    (found,) = bound("aten::cat", ["#1", "#0", "#1"], {"size": "n + -1"}, symbols={"n": 2})([x, y])
    assert found is not None and torch.equal(found, torch.cat([y, x, y], 1))
    (found,) = bound("aten::full_like", "#0", {"item": "#1"})([x, torch.tensor(7.0)])
    assert found is not None and torch.equal(found, torch.full_like(x, 7.0))
    (found,) = bound("aten::mul.Tensor", "#0", kwargs={"other": "#1"})([x, y])
    assert found is not None and torch.equal(found, x * y)


def test_operands_have_the_strides_of_eager_execution() -> None:
    x = torch.arange(6.0).view(2, 3)
    call = bound("aten::as_strided", "#0", [6], [1], 0, strides={"0": ["1", "s0"]}, symbols={"s0": 2})
    (found,) = call([x])
    assert found is not None and found.tolist() == [0, 3, 1, 4, 2, 5]
    (found,) = call([x.t().contiguous().t()])
    assert found is not None and found.tolist() == [0, 3, 1, 4, 2, 5]


GIVE_THEIR_OPERAND: dict[str, list[Any]] = {
    "aten::view": [[2, 3]],
    "aten::dropout": [0.5, False],
    "aten::dequantize.self": [],
    "aten::lift": [],
    "aten::_unsafe_view": [[2, 3]],
    "aten::unsafe_split.Tensor": [6],
    "aten::unsafe_split_with_sizes": [[6]],
}


@pytest.mark.parametrize("target", GIVE_THEIR_OPERAND)
def test_results_never_lie_in_the_memory_of_operands(target: str) -> None:
    x = torch.randn(6)
    (found,) = bound(target, "#0", *GIVE_THEIR_OPERAND[target])([x])
    assert found is not None and torch.equal(found.flatten(), x)
    assert found.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def test_an_operand_that_is_given_back_is_not_written_over() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sin().dequantize() * 3 + (x * 5).cos().cumsum(0)

    x = torch.randn(512, 600)
    compiled = torch.compile(function, backend="weft", options={"fallback": "quiet"})
    torch.testing.assert_close(compiled(x), function(x), rtol=1e-4, atol=1e-4)


def test_several_results_of_which_some_are_read() -> None:
    x = torch.randn(4, 5)
    call = bound("aten::native_layer_norm", "#0", [5], None, None, 1e-5, results=[0, 2])
    expected = torch.native_layer_norm(x, [5], None, None, 1e-5)
    torch.testing.assert_close(call([x]), [expected[0], expected[2]])


def test_operators_that_are_called_often_are_called_without_their_schemas() -> None:
    x, w = torch.randn(2, 3, 5, 4), torch.randn(6, 3, 3, 3)
    given = ["#0", "#1", None, [1, 2], [1, 1], [1, 1], False, [0, 0], 1]
    convolution = bound("aten::convolution", *given)
    assert convolution.function is torch.convolution and convolution.gives_one and convolution.is_plain
    (found,) = convolution([x, w])
    assert found is not None
    exact = torch.nn.functional.conv2d(x.double(), w.double(), stride=(1, 2), padding=1)
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)
    backward = bound("aten::convolution_backward", "#2", "#0", "#1", None, *given[3:], [True, True, False])
    assert backward.function is torch.ops.aten.convolution_backward.default and not backward.gives_one
    other = bound("aten::sum.dim_IntList", "#0", [0])
    assert other.function is torch.ops.aten.sum.dim_IntList and not other.is_plain


def test_arguments_with_places_may_come_by_name() -> None:
    """Torch's own functions call them otherwise than the schema does."""
    x, y = torch.randn(3, 4), torch.randn(4, 2)
    (found,) = bound("aten::mm", kwargs={"self": "#0", "mat2": "#1"})([x, y])
    torch.testing.assert_close(found, x @ y)
