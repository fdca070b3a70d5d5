"""The backward of attention on a GPU, without one: what is Weft's own, and what stays with a library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from xdsl.dialects.builtin import ModuleOp

from weft.backends.nvidia.target import target_named
from weft.config import Config
from weft.errors import UnsupportedError
from weft.frontends.torch.importer.import_graph import import_graph
from weft.frontends.torch.importer.opaque import OpaqueRuntime
from weft.lower.machine import gpu_machine
from weft.lower.plan import build_plan
from weft.lower.steps import CallStep, KernelStep
from weft.pipelines import compile_nvidia, nvidia_passes, run_passes
from weft.runtime.record import compilation
from weft.testing.interpreted import InterpretedExecutor

ATEN: Any = torch.ops.aten


@dataclass(frozen=True)
class Backward:
    """A call for the gradients of [batch, heads, length, width], whose heads lie side by side in memory."""

    library: str = "flash"
    width: int = 64
    heads: int = 2
    shared: int = 2
    length: int = 512
    dropout: float = 0.0
    causal: bool = True
    mask: bool = False
    scale: float = 0.5

    def graph(self) -> fx.GraphModule:
        with FakeTensorMode():
            kept = torch.empty(2, self.heads, self.length, device="cuda")
            seed = torch.empty((), dtype=torch.int64, device="cuda")
            scores = (2, self.heads, self.length, self.length)
            bias = torch.empty(scores, dtype=torch.bfloat16, device="cuda") if self.mask else None
            tensors = [self.tensor(count, "cuda") for count in self.counts]
            return make_fx(self._call, tracing_mode="fake")(*tensors, kept, seed, bias)

    @property
    def counts(self) -> tuple[int, ...]:
        """How many heads the result's gradient, queries, keys, values and the result have."""
        return self.heads, self.heads, self.shared, self.shared, self.heads

    def tensor(self, count: int, device: str) -> torch.Tensor:
        shape = 2, self.length, count, self.width
        return torch.randn(shape, device=device).to(torch.bfloat16).transpose(1, 2)

    def _call(self, *tensors: Any) -> Any:
        *first, seed, bias = tensors
        lengths = self.length, self.length
        if self.library == "flash":
            call = ATEN._scaled_dot_product_flash_attention_backward
            return call(*first, None, None, *lengths, self.dropout, self.causal, seed, seed)
        call = ATEN._scaled_dot_product_cudnn_attention_backward
        return call(*first, seed, seed, bias, None, None, *lengths, self.dropout, self.causal, scale=self.scale)


def steps(strict: bool = False, **options: Any) -> list[str]:
    """What the call becomes on Hopper."""
    config = Config(cache=False, strict=strict)
    program = import_graph(
        Backward(**options).graph(), "main", config, capabilities=target_named("sm_90a").capabilities
    )
    made = compile_nvidia(program.function, config, target_named("sm_90a")).plan.steps
    return [
        s.function.split("_")[0] if isinstance(s, KernelStep) else s.target
        for s in made
        if isinstance(s, KernelStep | CallStep)
    ]


@pytest.mark.parametrize("library", ["flash", "cudnn"])
@pytest.mark.parametrize("causal", [False, True])
def test_the_kernels_of_a_call_give_its_gradients(library: str, causal: bool) -> None:
    torch.manual_seed(2)
    call = Backward(library, heads=4, width=32, length=150, causal=causal)
    config = Config(cache=False, strict=True)
    imported = import_graph(call.graph(), "main", config, capabilities=target_named("sm_90a").capabilities)
    with compilation("main") as report:
        run_passes(ModuleOp([imported.function]), nvidia_passes(config, target_named("sm_90a").capabilities), report)
    run = InterpretedExecutor(build_plan(imported.function, machine=gpu_machine()), OpaqueRuntime(imported.objects))

    grad, *inputs = (call.tensor(count, "cpu") for count in call.counts[:4])
    q, k, v = (x.double().requires_grad_() for x in inputs)
    keys, values = (x.repeat_interleave(2, 1) for x in (k, v))
    scores = q @ keys.mT * (0.5 if library == "cudnn" else 32**-0.5)
    if causal:
        scores = scores.masked_fill(~torch.ones(150, 150).tril().bool(), -torch.inf)
    out = torch.softmax(scores, -1) @ values
    rest = torch.zeros((), dtype=torch.int64), None
    given = [grad, *inputs, out.detach().bfloat16(), scores.logsumexp(-1).detach().float(), *rest]
    found = run([x for x in given if x is not None], {})
    for own, exact in zip(found, torch.autograd.grad(out, (q, k, v), grad.double()), strict=True):
        assert (own.double() - exact).norm() < 5e-3 * exact.norm()


@pytest.mark.parametrize(("heads", "shared", "kernels"), [(2, 2, 3), (4, 2, 4)])
def test_gradients_are_kernels_of_keys_and_of_queries_between_those_of_rows_and_of_parts(
    heads: int, shared: int, kernels: int
) -> None:
    assert steps(heads=heads, shared=shared) == ["cast", *["attention"] * kernels]


@pytest.mark.parametrize(
    "options",
    [{"dropout": 0.1}, {"width": 72}, {"width": 288}, {"length": 128}],
    ids=lambda options: next(iter(options)),
)
def test_a_library_keeps_what_it_does_better(options: dict[str, Any]) -> None:
    assert steps(**options) == ["aten::_scaled_dot_product_flash_attention_backward"]


def test_the_fastest_library_gives_way_but_for_short_sequences_and_narrow_heads() -> None:
    library = "aten::_scaled_dot_product_cudnn_attention_backward"
    assert steps(library="cudnn", length=1024) == ["cast", "attention", "attention", "attention"]
    assert library not in steps(library="cudnn", length=1024, causal=False)
    assert library not in steps(library="cudnn", length=192)
    assert steps(library="cudnn", length=128) == [library]
    assert steps(library="cudnn", width=32) == [library]
    assert steps(library="cudnn", width=192) == ["cast", *["attention"] * 4]
    assert steps(library="cudnn", strict=True) == ["cast", "attention", "attention", "attention"]


def test_projections_read_gradients_as_rows_without_copies() -> None:
    """Where heads lie side by side, as the matmul before them has made them; what a library multiplies has no copy."""
    call = Backward(heads=12, shared=4, length=2048)

    def projected(x: torch.Tensor, *given: Any) -> list[Any]:
        matrices = [each.transpose(1, 2).reshape(4096, -1) for each in call._call(*given)]
        return [part for each in matrices for part in (each.sum(0), each.t() @ x)]

    with FakeTensorMode():
        kept = torch.empty(2, 12, 2048, device="cuda")
        seed = torch.empty((), dtype=torch.int64, device="cuda")
        x = torch.empty(4096, 768, dtype=torch.bfloat16, device="cuda")
        tensors = [call.tensor(count, "cuda") for count in call.counts]
        graph = make_fx(projected, tracing_mode="fake")(x, *tensors, kept, seed, None)
    program = import_graph(graph, "main", Config(cache=False), capabilities=target_named("sm_90a").capabilities)
    made = compile_nvidia(program.function, Config(cache=False), target_named("sm_90a")).plan.steps
    labels = [step.label for step in made if isinstance(step, KernelStep)]
    assert set(labels) <= {"attention_gradients", "cast_cast_mul_sum", "sum", "dot"}
    assert sum(isinstance(step, CallStep) for step in made) + labels.count("dot") == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [({"mask": True}, "with a mask"), ({"dropout": 0.5}, "with dropout"), ({"scale": 0.0}, "scaled to zero")],
)
def test_what_has_no_kernel_is_said(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        steps(library="cudnn", strict=True, **options)
