"""Frozen weights in few bits: what a program gives with them, and what its kernels read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from weft.backends.nvidia.target import target_named
from weft.backends.reference.graph import run
from weft.config import CODES, Config
from weft.errors import WeftError
from weft.ir.attributes import to_attribute
from weft.ir.types import DType, Tensor, bf16, f16, f32, i32, tensor_of
from weft.ops.graph import FuncOp, GraphBuilder, GroupOp, ReturnOp
from weft.passes.dot.split_dots import SplitDots
from weft.passes.quantize.quantize_weight_only import QuantizeWeightOnly
from weft.pipelines import nvidia_passes
from weft.testing.gpu.narrow import coded

ERRORS = {"int4": 0.14, "int4_64": 0.13, "int4_32": 0.12, "int8": 0.012, "fp8": 0.04, "mxfp4": 0.15, "nvfp4": 0.12}
"""Of a product with normally distributed weights, in parts of it."""


def linear(rows: int, outs: int, ins: int, dtype: DType = bf16) -> FuncOp:
    function = FuncOp.make("f", {"x": Tensor(dtype, (rows, ins)), "w": Tensor(dtype, (outs, ins))})
    b = GraphBuilder(function.block)
    x, w = function.block.args
    function.block.add_op(ReturnOp.make([b.dot(x, b.permute(w, dims=(1, 0)))]))
    function.attributes["constants"] = to_attribute((1,))
    return function


def operands(rows: int, outs: int, ins: int, dtype: DType = bf16) -> list[np.ndarray]:
    rng = np.random.default_rng(outs + ins)
    return [rng.standard_normal(shape).astype(dtype.numpy) for shape in ((rows, ins), (outs, ins))]


def relative(actual: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(actual.astype(np.float64) - exact) / np.linalg.norm(exact))


@pytest.mark.parametrize("dtype", [bf16, f16], ids=str)
@pytest.mark.parametrize("form", CODES)
def test_products_are_nearly_the_same(form: str, dtype: DType) -> None:
    function, (x, w) = linear(3, 160, 256, dtype), operands(3, 160, 256, dtype)
    w[7] = 0  # has no largest
    QuantizeWeightOnly(form).apply(Context(), ModuleOp([function]))
    function.verify()
    (actual,) = run(function, [x, w])
    exact = x.astype(np.float64) @ w.astype(np.float64).T
    assert 0 < relative(actual, exact) < ERRORS[form]
    assert not actual[:, 7].any()


@pytest.mark.parametrize("form", CODES)
def test_products_are_those_of_what_codes_stand_for(form: str) -> None:
    function, (x, w) = linear(3, 160, 256), operands(3, 160, 256)
    w[7] = 0
    w[8] *= 2**-20
    QuantizeWeightOnly(form).apply(Context(), ModuleOp([function]))
    (actual,) = run(function, [x, w])
    left = coded(torch.from_numpy(w.astype(np.float32)).bfloat16(), form).numpy()
    assert relative(actual, x.astype(np.float64) @ left.T) < 2**-8


@pytest.mark.parametrize("shape", [(1, 64, 256), (1, 256, 64), (1, 256, 200)])
def test_small_weights_and_those_that_groups_do_not_divide_stay(shape: tuple[int, int, int]) -> None:
    function = linear(*shape)
    before = str(function)
    QuantizeWeightOnly("int4").apply(Context(), ModuleOp([function]))
    assert str(function) == before


def test_weights_of_32_bits_stay() -> None:
    function = linear(1, 256, 256, f32)
    before = str(function)
    QuantizeWeightOnly("int4").apply(Context(), ModuleOp([function]))
    assert str(function) == before


@pytest.mark.parametrize(("rows", "reads"), [(1, ["ui8", "bf16"]), (64, ["bf16"])])
def test_few_rows_read_codes_and_many_what_was_widened_once(rows: int, reads: list[str]) -> None:
    function = linear(rows, 256, 256)
    module = ModuleOp([function])
    for each in nvidia_passes(Config(freeze=True, quantize="int4"), target_named("sm_90a").capabilities):
        each.apply(Context(), module)
    inputs = [v for op in function.block.ops for v in op.operands if v in function.block.args[2:]]
    assert [str(tensor_of(value.type).dtype) for value in inputs] == reads


@pytest.mark.parametrize("form", CODES)
@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
def test_products_in_f16_of_many_rows_stay_finite(form: str, arch: str) -> None:
    function, (x, w) = linear(32, 128, 4096, f16), operands(32, 128, 4096, f16)
    x *= np.float16(4)
    module = ModuleOp([function])
    passes = nvidia_passes(Config(freeze=True, quantize=form), target_named(arch).capabilities)
    (coding,) = (each for each in passes if isinstance(each, QuantizeWeightOnly))
    coding.apply(Context(), module)
    function.verify()
    (actual,) = run(function, [x, w])
    assert relative(actual, x.astype(np.float64) @ w.astype(np.float64).T) < ERRORS[form]


@pytest.mark.parametrize("rows", [1, 32])
def test_without_tensor_cores_weights_are_widened_once(rows: int) -> None:
    for form in CODES:
        function = linear(rows, 256, 256, f16)
        module = ModuleOp([function])
        for each in nvidia_passes(Config(freeze=True, quantize=form)):
            each.apply(Context(), module)
        (used,) = (v for op in function.block.ops for v in op.operands if v in function.block.args[2:])
        assert str(tensor_of(used.type).dtype) == "f16"


def test_coding_freezes() -> None:
    assert Config.from_options({"quantize": "int4"}).freeze
    with pytest.raises(WeftError, match="constant"):
        Config.from_options({"quantize": "int4", "freeze": False})


@pytest.mark.parametrize("form", CODES)
def test_matrices_that_are_chosen_for_rows_are_coded_too(form: str) -> None:
    tensors = {"x": Tensor(bf16, (3, 1, 128)), "w": Tensor(bf16, (4, 160, 128)), "chosen": Tensor(i32, (3,))}
    function = FuncOp.make("f", tensors)
    b = GraphBuilder(function.block)
    x, w, chosen = function.block.args
    product = b.dot(x, b.permute(b.take(w, chosen, dim=0), dims=(0, 2, 1)))
    function.block.add_op(ReturnOp.make([product]))
    function.attributes["constants"] = to_attribute((1,))
    QuantizeWeightOnly(form).apply(Context(), ModuleOp([function]))
    function.verify()
    assert sum(op.name == "graph.dequantize" for op in function.block.ops) == 1
    rng = np.random.default_rng(0)
    rows, weights = (rng.standard_normal(shape).astype(bf16.numpy) for shape in ((3, 1, 128), (4, 160, 128)))
    places = np.array([3, 0, 3], np.int32)
    (actual,) = run(function, [rows, weights, places])
    exact = np.matmul(rows.astype(np.float64), weights.astype(np.float64)[places].transpose(0, 2, 1))
    assert relative(actual, exact) < ERRORS[form]


@pytest.mark.parametrize(("form", "kernels"), [("int4", 1), ("mxfp4", 1), ("int8", 2)])
def test_a_gate_and_what_it_opens_are_coded_apart_for_one_kernel(form: str, kernels: int) -> None:
    """The codes are those of the whole: neighbours along K share factors. Factors for rows follow one product."""
    outs, ins = 1 << 14, 512
    function = FuncOp.make("f", {"x": Tensor(bf16, (1, ins)), "w": Tensor(bf16, (outs, ins))})
    b = GraphBuilder(function.block)
    x, w = function.block.args
    whole = b.dot(x, b.permute(w, dims=(1, 0)))
    cuts = [b.slice(whole, starts=(0, at), shape=(1, outs // 2), steps=(1, 1)) for at in (0, outs // 2)]
    function.block.add_op(ReturnOp.make([b.mul(b.silu(cuts[0]), cuts[1])]))
    function.attributes["constants"] = to_attribute((1,))
    module, given = ModuleOp([function]), operands(1, outs, ins)
    before = module.clone()
    every = nvidia_passes(Config(freeze=True, quantize=form), target_named("sm_90a").capabilities)
    for each in every:
        each.apply(Context(), module)
    assert sum(isinstance(op, GroupOp) for op in function.block.ops) == kernels
    split = next(each for each in every if isinstance(each, SplitDots))
    results: list[np.ndarray] = []
    for passes in ([QuantizeWeightOnly(form)], [split, QuantizeWeightOnly(form)]):
        copy = before.clone()
        for each in passes:
            each.apply(Context(), copy)
        (coded,) = (op for op in copy.body.block.ops if isinstance(op, FuncOp))
        results += run(coded, given)
    assert (results[0] == results[1]).all()
