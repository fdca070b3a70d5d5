"""From torch to kernels of a GPU, without one: what they compute, what libraries take, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from weft.backends.nvidia import compile
from weft.backends.nvidia.target import target_named
from weft.config import Config
from weft.errors import LoweringError, UnsupportedError
from weft.frontends.torch.capture.decompositions import decompositions
from weft.frontends.torch.importer.graph_device import graph_device
from weft.frontends.torch.importer.import_graph import import_graph
from weft.lower.machine import Machine, gpu_machine
from weft.lower.steps import CallStep, DotStep, KernelStep
from weft.pipelines import compile_nvidia
from weft.testing.comparison import compare
from weft.testing.interpreted import GpuInterpreter

SMALL = replace(gpu_machine(2, clusters=False), tile_elements=64, row_elements=128, lanes=8)


def check(function: Callable[..., Any], *inputs: torch.Tensor, machine: Machine | None = None) -> GpuInterpreter:
    """Compare what the GPU's kernels compute with float64."""
    torch.compiler.reset()
    backend = GpuInterpreter(machine or gpu_machine())
    found = torch.compile(function, backend=backend)(*(x.clone() for x in inputs))
    wide = function(*(x.double() if x.is_floating_point() else x for x in inputs))
    judged = compare(found, function(*(x.clone() for x in inputs)), wide)
    assert judged.ok, str(judged)
    return backend


def steps(backend: GpuInterpreter) -> tuple[list[str], int]:
    made = [step for planned in backend.plans for step in planned.plan.steps]
    return [s.target for s in made if isinstance(s, CallStep)], sum(isinstance(s, KernelStep) for s in made)


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "gelu": (lambda x: F.gelu(x) + 1, ((33, 70),)),
    "softmax": (lambda x: F.softmax(x, -1), ((40, 200),)),
    "softmax_long": (lambda x: F.softmax(x, -1), ((2, 3000),)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (96,), w, b), ((50, 96), (96,), (96,))),
    "rms_norm": (lambda x, y, w: F.rms_norm(x + y, (96,), w), ((50, 96), (50, 96), (96,))),
    "swiglu": (lambda x: F.silu(x[:, :64]) * x[:, 64:], ((30, 128),)),
    "cross_entropy": (lambda x: F.cross_entropy(x, torch.arange(12) * 7 % 50), ((12, 50),)),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), ((6, 5, 9, 8),)),
    "group_norm": (lambda x: F.group_norm(x, 2), ((3, 6, 7, 5),)),
    "transpose": (lambda x: x.permute(0, 2, 1).contiguous() * 2, ((2, 70, 90),)),
    "bias_sum": (lambda x: (x * 2, x.sum(0)), ((900, 24),)),
    "mean_of_all": (lambda x: x.square().mean(), ((300, 70),)),
    "argmax": (lambda x: x.argmax(-1), ((20, 400),)),
    "embedding": (lambda w: F.embedding(torch.arange(30).view(5, 6) % 9, w), ((9, 32),)),
    "concat": (lambda x, y: torch.cat([x.exp(), y], 1), ((9, 12), (9, 30))),
    "rope": (
        lambda x, c, s: x * c + torch.cat([-x[..., 16:], x[..., :16]], -1) * s,
        ((2, 3, 20, 32), (20, 32), (20, 32)),
    ),
    "max_pool": (lambda x: F.max_pool2d(x, 3, 2, 1), ((2, 3, 17, 19),)),
    "avg_pool": (lambda x: F.adaptive_avg_pool2d(x, 1), ((2, 30, 9, 9),)),
    "index_put": (lambda x, u: x.index_put((torch.tensor([3, 0, 5]),), u), ((8, 40), (3, 40))),
}


@pytest.mark.parametrize("machine", [gpu_machine(), SMALL], ids=["gpu", "small"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_kernels_compute_what_torch_does(name: str, machine: Machine) -> None:
    function, shapes = FUNCTIONS[name]
    torch.manual_seed(0)
    calls, kernels = steps(check(function, *map(torch.randn, shapes), machine=machine))
    assert not calls and kernels


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "bias_sum", "mean_of_all", "transpose"])
def test_sizes_that_change(name: str) -> None:
    function, shapes = FUNCTIONS[name]
    torch.compiler.reset()
    backend = GpuInterpreter(gpu_machine())
    compiled = torch.compile(function, backend=backend, dynamic=True)
    for extra in (0, 3, 40):
        inputs = [
            torch.randn(shape[0] + extra, *shape[1:]) if len(shape) > 1 else torch.randn(shape) for shape in shapes
        ]
        judged = compare(compiled(*inputs), function(*inputs), function(*(x.double() for x in inputs)))
        assert judged.ok, str(judged)
    assert len(backend.plans) == 1


def test_libraries_take_products_and_sorts() -> None:
    calls, kernels = steps(
        check(lambda x, w, b: F.gelu(F.linear(x, w, b)), *map(torch.randn, ((9, 16), (8, 16), (8,))))
    )
    assert calls == ["aten::addmm"] and kernels == 1
    assert steps(check(lambda x: x.sort(-1)[0] + 1, torch.randn(2, 5000)))[0] == ["aten::sort"]
    assert steps(check(lambda x: x.sort(-1)[0] + 1, torch.randn(4, 9)))[0] == []
    assert steps(check(lambda x: x.cumsum(-1) * 2, torch.randn(4, 9)))[0] == ["aten::cumsum"]
    add = lambda x, u: x.index_put((torch.tensor([3, 3, 5]),), u, accumulate=True)  # noqa: E731
    assert steps(check(add, torch.randn(8, 4), torch.randn(3, 4)))[0] == ["aten::index_put"]


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.view(2, 10, 4, 8).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(2, 10, 32))
        return x + self.down(F.gelu(self.up(F.rms_norm(x, (32,)))))


class Convolutions(nn.Module):
    """A residual block of a vision model."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.head = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm(self.first(x)))
        y = F.max_pool2d(F.relu(y + self.second(y)), 2)
        return self.head(y.mean((2, 3)))


@pytest.mark.parametrize(("make", "shape"), [(Block, (2, 10, 32)), (Convolutions, (2, 3, 12, 10))])
def test_models_train(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    model = make()
    copy = make()
    copy.load_state_dict(model.state_dict())
    torch.compiler.reset()
    compiled = torch.compile(model, backend=GpuInterpreter(gpu_machine()))
    x = torch.randn(shape)
    losses = [each(x).square().mean() for each in (compiled, copy)]
    torch.testing.assert_close(*losses)
    for loss in losses:
        loss.backward()
    for ours, theirs in zip(model.parameters(), copy.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)


# -- graphs of CUDA tensors ------------------------------------------------------------------------------------------


def traced(function: Callable[..., Any], *metas: tuple[tuple[int, ...], torch.dtype, str]) -> torch.fx.GraphModule:
    with FakeTensorMode():
        inputs = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype, device in metas]
        return make_fx(lambda *given: pack(function(*given)), decomposition_table=decompositions("cuda"))(*inputs)


def pack(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def test_a_graph_of_cuda_tensors_becomes_ptx() -> None:
    def layer(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return F.softmax(F.gelu(torch.addmm(b, x, w)) * scale, -1)

    half = torch.bfloat16
    module = traced(
        layer, ((64, 128), half, "cuda"), ((128, 256), half, "cuda"), ((256,), half, "cuda"), ((), torch.float32, "cpu")
    )
    device = graph_device(module)
    assert device == torch.device("cuda", 0)
    imported = import_graph(module, "layer", Config(), capabilities=target_named("sm_80").capabilities)
    compiled = compile_nvidia(imported.function, Config(verify=True), target_named("sm_90a"))
    calls = [step.target for step in compiled.plan.steps if isinstance(step, CallStep)]
    kernels = [step.function for step in compiled.plan.steps if isinstance(step, KernelStep)]
    assert calls == ["aten::addmm"] and len(kernels) == 1
    assert kernels == list(compiled.code.launches) and f".entry {kernels[0]}" in compiled.code.ptx


FACTORS = {
    "one": (((), torch.float32, "cuda"), ((), torch.float32, "cuda")),
    "rows": (((1024, 1), torch.float32, "cuda"), ((1, 2048), torch.float32, "cuda")),
    "blocks": (((1024, 4), torch.float32, "cuda"), ((4, 16), torch.float32, "cuda")),
}


@pytest.mark.parametrize("factors", FACTORS)
def test_scaled_products_are_kernels_on_tensor_cores(factors: str) -> None:
    def layer(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm(x, w.t(), a, b, bias=c, out_dtype=torch.bfloat16)

    narrow, half = torch.float8_e4m3fn, torch.bfloat16
    operands = ((1024, 512), narrow, "cuda"), ((2048, 512), narrow, "cuda")
    module = traced(layer, *operands, *FACTORS[factors], ((2048,), half, "cuda"))
    imported = import_graph(module, "layer", Config(), capabilities=target_named("sm_90a").capabilities)
    compiled = compile_nvidia(imported.function, Config(verify=True), target_named("sm_90a"))
    assert [type(step) for step in compiled.plan.steps] == [KernelStep]
    assert "e4m3.e4m3" in compiled.code.ptx


def test_products_of_few_or_unaligned_bytes_are_a_librarys() -> None:
    for rows, depth in ((32, 512), (1024, 520)):
        metas = ((rows, depth), torch.int8, "cuda"), ((2048, depth), torch.int8, "cuda")
        module = traced(lambda x, w: torch._int_mm(x, w.t()), *metas)
        imported = import_graph(module, "product", Config(), capabilities=target_named("sm_90a").capabilities)
        plan = compile_nvidia(imported.function, Config(), target_named("sm_90a")).plan
        assert [step.target for step in plan.steps if isinstance(step, CallStep)] == ["aten::_int_mm"]


def test_a_kernel_without_code_tells_where_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(kernel: Any, target: Any, *_: Any) -> Any:
        raise LoweringError("a tile needs too much shared memory")

    errors: list[LoweringError] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        imported = import_graph(module, "inference", Config(), capabilities=target_named("sm_80").capabilities)
        with pytest.raises(LoweringError, match=r"exp_sum.*shared memory") as caught:
            compile_nvidia(imported.function, Config(), target_named("sm_90a"))
        errors.append(caught.value)
        left = import_graph(
            module, "inference", Config(), capabilities=target_named("sm_80").capabilities, left=caught.value.sources
        )
        assert [fallback.target for fallback in left.fallbacks] == ["aten.exp.default", "aten.sum.dim_IntList"]
        return make_boxed_func(module.forward)

    monkeypatch.setattr(compile, "annotate", refused)
    torch.compiler.reset()
    compiled = torch.compile(
        lambda x: x.exp().sum(-1), backend=aot_autograd(fw_compiler=backend, decompositions=decompositions("cuda"))
    )
    with torch.no_grad():
        compiled(torch.randn(4, 8))
    assert len(errors) == 1 and errors[0].sources


def test_dropout_is_drawn_by_torch() -> None:
    module = traced(lambda x: torch.native_dropout(x, 0.5, True)[0] + 1, ((64, 128), torch.float32, "cuda"))
    imported = import_graph(module, "dropout", Config(), capabilities=target_named("sm_80").capabilities)
    compiled = compile_nvidia(imported.function, Config(), target_named("sm_90a"))
    assert [s.target for s in compiled.plan.steps if isinstance(s, CallStep)] == ["aten::native_dropout"]
    assert not imported.fallbacks, "numbers that torch's generator draws are no fallback"


def test_graphs_over_several_devices_are_refused() -> None:
    plain = ((4, 4), torch.float32, "cpu")
    module = traced(lambda x, y: x + torch.empty_like(y, device="cuda"), ((4, 4), torch.float32, "cuda"), plain)
    with pytest.raises(UnsupportedError, match="several devices"):
        graph_device(module)
    assert graph_device(traced(lambda x: x + 1, plain)).type == "cpu"
    assert graph_device(traced(lambda x: (x + 1).cpu(), ((4, 4), torch.float32, "cuda"))).type == "cuda"
    with pytest.raises(UnsupportedError, match="is a number"):
        graph_device(traced(lambda x, y: (x + y, y * 2), ((4,), torch.float32, "cuda"), ((), torch.float32, "cpu")))


# -- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "name", [name for name in FUNCTIONS if name not in ("cross_entropy", "embedding", "index_put")]
)
def test_compiled_functions_on_a_gpu(name: str, dtype: torch.dtype) -> None:
    function, shapes = FUNCTIONS[name]
    torch.compiler.reset()
    inputs = [torch.randn(shape, device="cuda", dtype=dtype) for shape in shapes]
    found = torch.compile(function, backend="weft", options={"cache": False})(*inputs)
    judged = compare(found, function(*inputs), function(*(x.double() for x in inputs)))
    assert judged.ok, str(judged)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize(("make", "shape"), [(Block, (2, 10, 32)), (Convolutions, (2, 3, 12, 10))])
def test_models_train_on_a_gpu(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    model, copy = make().cuda(), make().cuda()
    copy.load_state_dict(model.state_dict())
    torch.compiler.reset()
    compiled = torch.compile(model, backend="weft", options={"cache": False})
    for _ in range(3):
        x = torch.randn(shape, device="cuda")
        losses = [each(x).square().mean() for each in (compiled, copy)]
        torch.testing.assert_close(*losses)
        for loss in losses:
            loss.backward()
    for ours, theirs in zip(model.parameters(), copy.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-4)


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], list[int], bool, int]] = {
    "1d": ((2, 4, 9), (6, 4, 3), [1], False, 1),
    "2d_strided": ((2, 4, 9, 8), (6, 4, 3, 3), [2, 2], False, 1),
    "2d_of_each_channel": ((2, 4, 9, 8), (4, 1, 3, 3), [1, 1], False, 4),
    "2d_transposed": ((2, 4, 5, 6), (4, 6, 3, 3), [2, 2], True, 1),
    "3d": ((1, 2, 4, 5, 6), (3, 2, 3, 3, 3), [1, 1, 1], False, 1),
}


INNERMOST = {2: torch.channels_last, 3: torch.channels_last_3d}


@pytest.mark.parametrize(
    ("name", "order"),
    [
        *((name, torch.contiguous_format) for name in CONVOLUTIONS),
        *((name, INNERMOST[len(given[2])]) for name, given in CONVOLUTIONS.items() if len(given[2]) in INNERMOST),
    ],
)
def test_the_gradient_of_a_convolutions_bias_is_a_sum_of_our_own(name: str, order: torch.memory_format) -> None:
    shape, weights, strides, transposed, groups = CONVOLUTIONS[name]
    rank = len(strides)
    geometry = strides, [1] * rank, [1] * rank, transposed, [0] * rank, groups
    x, weight = torch.randn(shape).to(memory_format=order), torch.randn(weights)
    grad = torch.randn_like(torch.ops.aten.convolution(x, weight, None, *geometry))

    def gradients(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        sizes = [grad.shape[1]]
        return torch.ops.aten.convolution_backward(grad * 2, x, weight, sizes, *geometry, [True, True, True])

    backend = check(gradients, grad, x, weight)
    calls = [step for each in backend.plans for step in each.plan.steps if isinstance(step, CallStep)]
    assert [json.loads(call.arguments)["args"][-1] for call in calls] == [[True, True, False]]


def bottleneck(x: torch.Tensor, into: torch.Tensor, across: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """A residual block: two convolutions of single places around one of windows."""
    y = F.relu(F.conv2d(x.exp(), into))
    return F.relu(F.conv2d(F.relu(F.conv2d(y, across, padding=1)), out) + x.exp())


def test_convolutions_of_places_are_products_over_channels_innermost() -> None:
    shapes = [(32, 512, 28, 28), (128, 512, 1, 1), (128, 128, 3, 3), (512, 128, 1, 1)]
    graph = traced(bottleneck, *((shape, torch.bfloat16, "cuda") for shape in shapes))
    imported = import_graph(graph, "main", Config(cache=False), capabilities=target_named("sm_90a").capabilities)
    plan = compile_nvidia(imported.function, Config(cache=False), target_named("sm_90a")).plan
    labels = [step.label for step in plan.steps if isinstance(step, KernelStep)]
    assert [label for label in labels if label.startswith("dot")] == ["dot_relu", "dot_add_relu"]
    (call,) = [step for step in plan.steps if isinstance(step, CallStep)]
    assert call.target == "aten::convolution" and call.operands[0].layout.strides == (100352, 1, 3584, 128)
    assert plan.buffers[call.results[0]].layout.strides == (100352, 1, 3584, 128)


def test_attention_that_torch_writes_out_is_one_kernel() -> None:
    """With a mask that hides nothing, and widened to f32: what no library takes."""

    def attention(x: torch.Tensor) -> torch.Tensor:
        q, k, v = x.view(4, 197, 3, 12, 64).permute(2, 0, 3, 1, 4).unbind(0)
        mask = (torch.arange(197, device=x.device) >= 0).expand(1, 1, 197, 197)
        with sdpa_kernel(SDPBackend.MATH):
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return out.transpose(1, 2).reshape(4, 197, 768)

    graph = traced(attention, ((4, 197, 2304), torch.bfloat16, "cuda"))
    imported = import_graph(graph, "main", Config(cache=False), capabilities=target_named("sm_90a").capabilities)
    plan = compile_nvidia(imported.function, Config(cache=False), target_named("sm_90a")).plan
    assert [step.label for step in plan.steps if isinstance(step, KernelStep)] == ["attention"]
    assert len(plan.steps) == 1


def test_products_around_a_softmax_of_f32_stay_the_librarys() -> None:
    def weighted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.bmm(F.softmax(torch.bmm(x, y), -1), x)

    shapes = [(4, 64, 64), (4, 64, 64)]
    graph = traced(weighted, *((shape, torch.float32, "cuda") for shape in shapes))
    imported = import_graph(graph, "main", Config(cache=False), capabilities=target_named("sm_90a").capabilities)
    plan = compile_nvidia(imported.function, Config(cache=False), target_named("sm_90a")).plan
    assert len([step for step in plan.steps if isinstance(step, DotStep)]) == 2


@pytest.mark.parametrize("rows", [512, 8])
def test_attention_with_a_score_that_each_head_learns_is_one_kernel(rows: int) -> None:
    """As gpt-oss has it, in bf16; of few rows, keys are split over the GPU."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
        k, v = k.repeat_interleave(8, 1), v.repeat_interleave(8, 1)
        row = torch.arange(rows, device=q.device).unsqueeze(1) + 512 - rows
        key = torch.arange(512, device=q.device)
        low = torch.finfo(q.dtype).min
        mask = torch.where((row >= key) & (row - key < 128), 0.0, low).to(q.dtype)
        scores = torch.matmul(q, k.transpose(2, 3)) * 0.125 + mask
        beside = sinks.reshape(1, -1, 1, 1).expand(q.shape[0], -1, rows, -1)
        scores = torch.cat([scores, beside], dim=-1)
        scores = scores - scores.max(dim=-1, keepdim=True).values
        return torch.matmul(F.softmax(scores, dim=-1, dtype=scores.dtype).narrow(-1, 0, 512), v)

    shapes = [(1, 16, rows, 64), (1, 2, 512, 64), (1, 2, 512, 64), (16,)]
    graph = traced(attention, *((shape, torch.bfloat16, "cuda") for shape in shapes))
    imported = import_graph(graph, "main", Config(cache=False), capabilities=target_named("sm_90a").capabilities)
    plan = compile_nvidia(imported.function, Config(cache=False), target_named("sm_90a")).plan
    labels = [step.label for step in plan.steps if isinstance(step, KernelStep)]
    assert len(plan.steps) == len(labels) and all("attention" in label for label in labels)


@pytest.mark.parametrize("known", [True, False])
def test_running_sums_of_what_is_known_are_computed_before(known: bool) -> None:
    """As masks of sequences one after the other begin with: where places do not follow each other."""

    def shifted(x: torch.Tensor) -> torch.Tensor:
        place = torch.arange(4096, device=x.device) if known else x.to(torch.int64)
        return x + (place.narrow(0, 1, 4095) - place.narrow(0, 0, 4095)).ne(1).cumsum(0).sum()

    graph = traced(shifted, ((4096,), torch.float32, "cuda"))
    imported = import_graph(graph, "main", Config(cache=False), capabilities=target_named("sm_90a").capabilities)
    plan = compile_nvidia(imported.function, Config(cache=False), target_named("sm_90a")).plan
    assert all(isinstance(step, KernelStep) for step in plan.steps) == known
