"""Graphs as ONNX models: every writer against the op's own reference, round trips, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator

import weft.onnx
from tests.frontends.onnx.models import layer
from weft.errors import ShapeError, UnsupportedError
from weft.frontends.onnx.export.writer import WRITERS
from weft.frontends.onnx.one_graph import read_one_graph
from weft.ir.expr import symbol
from weft.ir.types import Tensor, boolean, dtype_of_numpy, f32, i64
from weft.ops.base import REGISTRY
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp
from weft.testing.op_cases import OpCase, op_cases


def function_of(case: OpCase) -> FuncOp:
    types = {f"x{n}": Tensor(dtype_of_numpy(a.dtype), a.shape) for n, a in enumerate(case.arrays())}
    function = FuncOp.make("f", types)
    b = GraphBuilder(function.block)
    made: Any = b.emit(case.spec.name, *function.block.args, **case.sample.params)
    b.insert(ReturnOp.make(list(made) if isinstance(made, tuple | list) else [made]))
    return function


def has_meaning(case: OpCase) -> bool:
    """Whether ONNX, and its reference evaluator, say what comes out: indices in range, windows of something."""
    arrays = case.arrays()
    if case.spec.name in _INDEXED:
        dims = case.sample.params.get("dims", (case.sample.params.get("dim", 0),))
        least = min(arrays[0].shape[dim] for dim in dims)
        return all((array < least).all() and (array >= -least).all() for array in arrays[1:] if array.dtype.kind == "i")
    if case.spec.name == "convolution" and case.sample.params["transposed"]:
        return not any(map(any, case.sample.params["padding"]))
    return case.spec.name != "max_pool" or 0 not in arrays[0].shape


_INDEXED = {"take", "gather", "index", "index_put"}


def cases() -> Iterator[Any]:
    """The samples of ops that can be written, in the first type of each that the reference evaluator computes with."""
    for name in sorted(WRITERS):
        for case in op_cases(REGISTRY[name.removeprefix("graph.")]):
            if case.dtype in (f32, i64, boolean) and case.dtype == case.sample.dtypes[0] and has_meaning(case):
                yield pytest.param(case, id=case.name)


_OWN_RULES = {"grid_sample", "scatter", "sum_pool"}
"""Whose reference evaluator differs: borders of cubic samples, indices out of range, pads of pools."""


@pytest.mark.parametrize("case", [each for each in cases() if each.values[0].spec.name not in _OWN_RULES])
def test_a_written_op_means_what_it_meant(case: OpCase) -> None:
    try:
        model = weft.onnx.export(function_of(case))
    except UnsupportedError as error:
        assert f"graph.{case.spec.name}" in error.message or "does not allow" in error.message
        return
    feeds = {given.name: array for given, array in zip(model.graph.input, case.arrays(), strict=True)}
    with np.errstate(all="ignore"):
        found = ReferenceEvaluator(model).run(None, feeds)
    for result, expected in zip(found, case.reference(), strict=True):
        assert result.shape == expected.shape and result.dtype == expected.dtype
        np.testing.assert_allclose(result, expected, rtol=2e-5, atol=1e-5)


def test_a_model_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "layer.onnx"
    onnx.save(layer(3), path)
    again = weft.onnx.export(*read_one_graph(path, {}), name="layer")
    x = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    np.testing.assert_allclose(weft.onnx.load(again)(x)[0], weft.onnx.load(path)(x)[0], rtol=1e-6)


class Net(torch.nn.Module):
    """A bit of everything: a convolution, a norm, attention, an embedding's like."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1, stride=2)
        self.norm = torch.nn.LayerNorm(8)
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = torch.nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.gelu(self.conv(x)).flatten(2).transpose(1, 2)
        y = self.norm(y)
        y = y + self.attention(y, y, y, need_weights=False)[0]
        return torch.softmax(self.head(y.mean(1)), -1)


def test_a_program_of_torch_with_an_open_batch() -> None:
    torch.manual_seed(0)
    net, given = Net().eval(), torch.randn(2, 3, 8, 8)
    batch = torch.export.Dim("batch", min=1, max=64)
    model = weft.onnx.export(torch.export.export(net, (given,), dynamic_shapes=({0: batch},)))
    onnx.checker.check_model(model, full_check=True)
    (given_info,) = model.graph.input
    assert given_info.type.tensor_type.shape.dim[0].dim_param
    for count in (2, 5):
        x = torch.randn(count, 3, 8, 8)
        (found,) = ReferenceEvaluator(model).run(None, {given_info.name: x.numpy()})
        with torch.no_grad():
            np.testing.assert_allclose(found, net(x).numpy(), rtol=1e-4, atol=1e-5)


def test_symbolic_sizes_are_computed() -> None:
    s = symbol("s0")
    function = FuncOp.make("f", {"x": Tensor(f32, (s, 6))})
    b = GraphBuilder(function.block)
    (x,) = function.block.args
    flat = b.reshape(x, shape=(s * 6,))
    count = b.iota(shape=(s * 6,), dim=0, dtype=f32)
    b.insert(ReturnOp.make([b.reshape(b.add(flat, count), shape=(3, s * 2))]))
    model = weft.onnx.export(function)
    for rows in (1, 4):
        given = np.ones((rows, 6), np.float32)
        (found,) = ReferenceEvaluator(model).run(None, {"x": given})
        np.testing.assert_array_equal(found, (1 + np.arange(rows * 6, dtype=np.float32)).reshape(3, -1))


def test_an_op_that_onnx_lacks_is_named() -> None:
    function = FuncOp.make("f", {"x": Tensor(f32, (4,))})
    b = GraphBuilder(function.block)
    b.insert(ReturnOp.make([b.digamma(function.block.args[0])]))
    with pytest.raises(UnsupportedError, match=r"graph\.digamma"):
        weft.onnx.export(function)


def test_wrong_constants_are_told() -> None:
    function = FuncOp.make("f", {"x": Tensor(f32, (4,))})
    b = GraphBuilder(function.block)
    b.insert(ReturnOp.make([b.exp(function.block.args[0])]))
    with pytest.raises(UnsupportedError, match="no argument 'w'"):
        weft.onnx.export(function, {"w": np.zeros(4, np.float32)})
    with pytest.raises(ShapeError, match="the constant x is float64"):
        weft.onnx.export(function, {"x": np.zeros(4)})
    with pytest.raises(UnsupportedError, match="a dict is no graph"):
        weft.onnx.export({})
