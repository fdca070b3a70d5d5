"""Products with matrices that are chosen when they run: interpreted, simulated, and as PTX with TMA."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

import weft.ops  # noqa: F401  (fills the registry)
from weft.backends.nvidia.target import target_named
from weft.backends.reference.graph import run
from weft.config import Config
from weft.frontends.torch.capture.decompositions import decompositions
from weft.frontends.torch.importer.import_graph import import_graph
from weft.ir.types import DType, Tensor, bf16, dtype_of_numpy, u8
from weft.lower.machine import gpu_machine
from weft.lower.steps import CallStep, KernelStep
from weft.ops.graph import FuncOp, OpaqueOp
from weft.ops.matmul.quantized import dequantized
from weft.pipelines import nvidia_passes
from weft.testing.gpu.products import expert_layer
from weft.testing.kernels import Trial, group_of, run_interpreted
from weft.testing.simulated import run_simulated

from ..layout.test_tensor_cores import agree, run_as_ptx
from ..pipeline.test_streamed_weights import all_brought as all_brought
from ..pipeline.test_streamed_weights import run as run_streamed
from ..row_kernels import planned

EXPERTS = 5
CHOSEN = [2, 2, 0, 4, -1, 1]


def operands(n: int, k: int, form: str = "", scale: DType = bf16) -> list[np.ndarray]:
    rng = np.random.default_rng(n + k)
    x = rng.standard_normal((len(CHOSEN), 1, k)).astype(bf16.numpy)
    chosen = np.array(CHOSEN, np.int32)
    if not form:
        return [x, chosen, rng.standard_normal((EXPERTS, n, k)).astype(bf16.numpy)]
    codes = rng.integers(0, 256, (EXPERTS, n, k // 2)).astype(np.uint8)
    shape = EXPERTS, n, k // 32
    scales = rng.integers(118, 124, shape) if scale == u8 else rng.uniform(0.1, 1, shape)
    return [x, chosen, codes, scales.astype(scale.numpy)]


def trial_of(arrays: list[np.ndarray], form: str = "") -> Trial:
    def body(b: Any, x: Any, chosen: Any, *parts: Any) -> Any:
        weights = b.dequantize(*parts, form=form, dtype=bf16) if form else parts[0]
        return b.dot(x, b.permute(b.take(weights, chosen, dim=0), dims=(0, 2, 1)))

    tensors = [Tensor(dtype_of_numpy(a.dtype), a.shape) for a in arrays]
    return Trial.of(group_of(tensors, body), "product", gpu_machine())


def expected(arrays: list[np.ndarray], form: str = "") -> np.ndarray:
    x, chosen, *parts = arrays
    weights = dequantized(parts[0], parts[1], None, form, 32).astype(bf16.numpy) if form else parts[0]
    return np.matmul(x.astype(np.float64), weights.astype(np.float64)[chosen].transpose(0, 2, 1))


CASES = [("", bf16), ("int4", bf16), ("e2m1", u8)]


@pytest.mark.parametrize(("form", "scale"), CASES)
def test_every_row_is_multiplied_with_its_matrix(form: str, scale: DType) -> None:
    arrays = operands(20, 288, form, scale)
    trial, exact = trial_of(arrays, form), expected(arrays, form)
    agree(run_interpreted(trial, arrays)[0], exact)
    agree(run_simulated(trial, arrays)[0], exact)
    agree(run_as_ptx(trial, arrays, "sm_90a"), exact)


@pytest.mark.usefixtures("all_brought")
def test_the_copy_engine_brings_the_chosen() -> None:
    arrays = operands(24, 2048)
    agree(run_streamed(trial_of(arrays), arrays, 2), expected(arrays))


def experts(x: torch.Tensor, router: torch.Tensor, gates_and_ups: torch.Tensor, downs: torch.Tensor) -> torch.Tensor:
    return expert_layer(x, router, gates_and_ups, downs, chosen=2)


@pytest.mark.parametrize(("tokens", "name"), [(1, "take_dot"), (32, "tiled_dot"), (3000, "tiled_dot")])
def test_few_tokens_read_their_experts_themselves(tokens: int, name: str) -> None:
    plan = planned(experts, (tokens, 256), (8, 256), (8, 1024, 256), (8, 256, 512)).plan
    products = [step for step in plan.steps if isinstance(step, KernelStep) and name in step.function]
    calls = [step for step in plan.steps if isinstance(step, CallStep) and "_grouped_mm" in step.target]
    assert (len(products), len(calls)) == (2, 0)


def test_rows_in_groups_are_multiplied_with_the_matrix_of_their_group() -> None:
    """Groups may be empty."""

    def grouped(x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch._grouped_mm(x, weights.transpose(1, 2), offs=ends),)

    with FakeTensorMode():
        shapes = ((6, 128), torch.bfloat16), ((4, 160, 128), torch.bfloat16), ((4,), torch.int32)
        graph = make_fx(grouped)(*(torch.empty(shape, dtype=dtype) for shape, dtype in shapes))
    function = import_graph(
        graph, "main", Config(cache=False), capabilities=target_named("sm_90a").capabilities
    ).function
    rng = np.random.default_rng(0)
    x, weights = (rng.standard_normal(shape).astype(bf16.numpy) for shape in ((6, 128), (4, 160, 128)))
    (found,) = run(function, [x, weights, np.array([2, 2, 5, 6], np.int32)])
    wide = weights.astype(np.float64)[[0, 0, 2, 2, 2, 3]]
    agree(found, np.einsum("rk,rnk->rn", x.astype(np.float64), wide))


def sorted_layer(x: torch.Tensor, router: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """A layer of experts as some models write it: the order is undone, and each token's rows are added up."""
    experts, tokens = router.shape[0], x.shape[0]
    weights, chosen = torch.topk(torch.sigmoid((x @ router.t()).float()), 2, dim=-1)
    flat = chosen.reshape(-1)
    order = torch.argsort(flat)
    token = torch.arange(tokens).unsqueeze(1).expand(-1, 2).reshape(-1)
    ends = torch.cumsum((flat[:, None] == torch.arange(experts)).sum(0), 0, dtype=torch.int32)
    gate, up = torch._grouped_mm(x[token][order], first.transpose(1, 2), offs=ends).chunk(2, dim=-1)
    done = torch._grouped_mm(F.silu(gate) * up, second.transpose(1, 2), offs=ends)
    done = (done * weights.reshape(-1)[order].to(x.dtype)[:, None])[torch.argsort(order)]
    return done.view(tokens, 2, -1).sum(1)


def dense_layer(
    x: np.ndarray, router: np.ndarray, first: np.ndarray, second: np.ndarray, *, softmax: bool
) -> np.ndarray:
    """The same in float64, token by token."""
    x, first, second = (array.astype(np.float64) for array in (x, first, second))
    scores = (x @ router.astype(np.float64).T).astype(bf16.numpy).astype(np.float64)
    scores = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True) if softmax else 1 / (1 + np.exp(-scores))
    out = np.zeros_like(x)
    for token, row in enumerate(scores):
        best = np.argsort(-row, kind="stable")[:2]
        for expert in best:
            gate, up = np.split(x[token] @ first[expert].T, 2)
            weight = row[expert] / row[best].sum() if softmax else row[expert]
            out[token] += weight * ((gate / (1 + np.exp(-gate)) * up) @ second[expert].T)
    return out


@pytest.mark.parametrize("tokens", [1, 9])
@pytest.mark.parametrize("layer", [experts, sorted_layer])
def test_nothing_of_a_layer_of_few_tokens_is_left_to_libraries(layer: Any, tokens: int) -> None:
    shapes = (tokens, 128), (6, 128), (6, 320, 128), (6, 128, 160)
    with FakeTensorMode():
        inputs = [torch.empty(shape, dtype=torch.bfloat16) for shape in shapes]
        graph = make_fx(lambda *args: (layer(*args),), decompositions("cuda"))(*inputs)
    function = import_graph(
        graph, "main", Config(cache=False), capabilities=target_named("sm_90a").capabilities
    ).function
    assert not any(isinstance(op, OpaqueOp) for op in function.block.ops)
    rng = np.random.default_rng(tokens)
    arrays = [(rng.standard_normal(shape) / shape[-1] ** 0.5).astype(bf16.numpy) for shape in shapes]
    arrays[0] = (arrays[0].astype(np.float32) * 11).astype(bf16.numpy)
    exact = dense_layer(*arrays, softmax=layer is experts)
    for each in nvidia_passes(Config(cache=False), target_named("sm_90a").capabilities)[:3]:
        (found,) = run(function, arrays)
        agree(found, exact)
        each.apply(Context(), function.parent_op() or ModuleOp([function]))
    assert not any(op.name in ("graph.sort", "graph.topk", "graph.index_put") for op in function.block.ops)


def test_what_sorts_an_order_is_its_inverse() -> None:
    plan = planned(lambda x: torch.argsort(torch.argsort(x)), (9000,)).plan
    assert [step.target for step in plan.steps if isinstance(step, CallStep)] == ["aten::sort"]


def counting(bins: int, least: int, greatest: int, dtype: torch.dtype) -> FuncOp:
    """Torch traces that on a GPU only."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    counted = graph.call_function(torch.ops.aten.histc.default, (x, bins, least, greatest))
    graph.output((counted,))
    with FakeTensorMode():
        x.meta["val"], counted.meta["val"] = torch.empty(9, dtype=dtype), torch.empty(bins, dtype=dtype)
    module = fx.GraphModule(torch.nn.Module(), graph)
    return import_graph(module, "main", Config(cache=False), capabilities=target_named("sm_80").capabilities).function


@pytest.mark.parametrize(("bins", "dtype"), [(5, torch.int32), (300, torch.uint8)])
def test_integers_are_counted(bins: int, dtype: torch.dtype) -> None:
    x = torch.tensor([4, 0, 4, 4, 2, 0, 4, 1, 2], dtype=dtype).numpy()
    (found,) = run(counting(bins, 0, bins - 1, dtype), [x])
    np.testing.assert_array_equal(found, np.bincount(x, minlength=bins))


def test_an_empty_range_is_that_of_the_data() -> None:
    assert any(isinstance(op, OpaqueOp) for op in counting(1, 0, 0, torch.int32).block.ops)
