"""The reference and the gradient of attention agree with torch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft.ops  # noqa: F401  (fills the registry)
from weft.backends.reference.graph import run
from weft.errors import DTypeError, ShapeError
from weft.ir.types import Tensor, dtype_of_numpy, f32, i64
from weft.ops.base import REGISTRY
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp

torch = pytest.importorskip("torch")


def operands(mask: str) -> tuple[list[np.ndarray], Any]:
    """q, k, v and a mask of the kind, if any, that hides all keys from one row."""
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal((2, 3, *shape)) for shape in ((5, 4), (7, 4), (7, 6))]
    if mask == "boolean":
        keep = rng.random((2, 1, 5, 7)) < 0.6
        keep[0, 0, 2] = False
        arrays.append(keep)
    elif mask == "added":
        added = rng.standard_normal((5, 7))
        added[1] = -np.inf
        arrays.append(added)
    tensors = [torch.from_numpy(array).requires_grad_(array.dtype == np.float64) for array in arrays]
    return arrays, tensors


CASES = pytest.mark.parametrize(("mask", "causal"), [("", False), ("", True), ("boolean", False), ("added", False)])


def of_torch(tensors: Any, causal: bool) -> Any:
    mask = tensors[3] if len(tensors) > 3 else None
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(*tensors[:3], mask, is_causal=causal, scale=0.4)


@CASES
def test_attention_is_torchs(mask: str, causal: bool) -> None:
    arrays, tensors = operands(mask)
    actual = REGISTRY["attention"].cls.reference(*arrays, causal=causal, scale=0.4)
    np.testing.assert_allclose(actual, of_torch(tensors, causal).detach().numpy(), rtol=1e-10, atol=1e-12)


@CASES
def test_gradient_is_torchs(mask: str, causal: bool) -> None:
    arrays, tensors = operands(mask)
    grad = np.random.default_rng(4).standard_normal((2, 3, 5, 6))
    function = FuncOp.make(
        "main", {f"a{n}": Tensor(dtype_of_numpy(a.dtype), a.shape) for n, a in enumerate((*arrays, grad))}
    )
    b = GraphBuilder(function.block)
    *inputs, seed = function.block.args
    result = b.attention(*inputs, causal=causal, scale=0.4)
    rule: Any = REGISTRY["attention"].cls
    found = rule.vjp(b, (seed,), inputs, (result,), causal=causal, scale=0.4)[:3]
    function.block.add_op(ReturnOp.make(found))
    function.verify()
    expected = torch.autograd.grad(of_torch(tensors, causal), tensors[:3], torch.from_numpy(grad))
    for actual, wanted in zip(run(function, [*arrays, grad]), expected, strict=True):
        np.testing.assert_allclose(actual, wanted.numpy(), rtol=1e-9, atol=1e-11)


def test_sinks_of_minus_infinity_are_none() -> None:
    """Neither in a row with keys nor in one without any, nor in its gradients."""
    arrays, _ = operands("boolean")
    types = {f"a{n}": Tensor(dtype_of_numpy(a.dtype), a.shape) for n, a in enumerate(arrays)}
    found: list[list[np.ndarray]] = []
    for sinks in ([], [np.full((5, 1), -np.inf)]):
        named = types | {f"sink{n}": Tensor(dtype_of_numpy(a.dtype), a.shape) for n, a in enumerate(sinks)}
        function = FuncOp.make("main", named)
        b = GraphBuilder(function.block)
        params = {"causal": False, "scale": 0.4, **({"sinks": True} if sinks else {})}
        result = b.attention(*function.block.args, **params)
        rule: Any = REGISTRY["attention"].cls
        gradients = rule.vjp(b, (result,), function.block.args, (result,), **params)
        function.block.add_op(ReturnOp.make([result, *gradients[:3]]))
        found.append(list(run(function, [*arrays, *sinks])))
    for one, other in zip(*found, strict=True):
        assert np.isfinite(other).all()
        np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("lowest", [torch.finfo(torch.float32).min, -2.4e38, -1e38])
def test_a_row_that_is_masked_by_the_lowest_number_has_the_mean(lowest: float) -> None:
    q, k, v = (torch.randn(1, 2, 5, 8) for _ in range(3))
    mask = torch.zeros(5, 5)
    mask[1], mask[3, 2:] = lowest, lowest
    torch.compiler.reset()
    run = torch.compile(torch.nn.functional.scaled_dot_product_attention, backend="weft", options={"strict": True})
    found = run(q, k, v, mask)
    torch.testing.assert_close(found[:, :, 1], v.mean(-2))
    torch.testing.assert_close(found, torch.nn.functional.scaled_dot_product_attention(q, k, v, mask))


def test_gradients_say_what_they_take() -> None:
    rule: Any = REGISTRY["attention_gradients"].cls
    q, k, rows = Tensor(f32, (2, 3, 5, 4)), Tensor(f32, (2, 7, 4)), Tensor(f32, (2, 3, 5))
    assert rule.infer(q, q, k, k, rows, rows) == (q, k, k)
    with pytest.raises(ShapeError, match="do not fit"):
        rule.infer(q, q, q, q, rows, rows)
    with pytest.raises(DTypeError, match="takes floats"):
        rule.infer(q, q, k, k, Tensor(i64, (2, 3, 5)), rows)
