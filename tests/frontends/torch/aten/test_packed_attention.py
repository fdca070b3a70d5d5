"""Attention over sequences of different lengths that lie one after the other: a kernel that skips others' keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import varlen
from xdsl.dialects.builtin import ModuleOp

from weft.backends.nvidia.target import target_named
from weft.config import Config
from weft.frontends.torch.capture.decompositions import decompositions
from weft.frontends.torch.compiled_graph import CompiledGraph
from weft.frontends.torch.importer.import_graph import import_graph
from weft.frontends.torch.importer.opaque import OpaqueRuntime
from weft.lower.machine import gpu_machine
from weft.lower.plan import build_plan
from weft.lower.steps import KernelStep
from weft.pipelines import compile_nvidia, nvidia_passes, run_passes
from weft.runtime.record import compilation
from weft.testing.interpreted import InterpretedExecutor

_aten: Any = torch.ops.aten
CONFIG = Config(cache=False, verify=True)


def imported(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Any:
    with FakeTensorMode():
        fakes = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda") for x in inputs]
        traced = make_fx(function, decomposition_table=decompositions("cuda"))(*fakes)
    return import_graph(traced, "main", CONFIG, capabilities=target_named("sm_90a").capabilities)


def interpreted(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The results of what is compiled for a GPU."""
    made = imported(function, inputs)
    with compilation("main") as report:
        run_passes(
            ModuleOp([made.function]), nvidia_passes(CONFIG, target_named("sm_90a").capabilities), report, verify=True
        )
    planned = build_plan(made.function, machine=gpu_machine())
    assert all(isinstance(step, KernelStep) for step in planned.plan.steps)
    executor = InterpretedExecutor(planned, OpaqueRuntime(made.objects))
    return CompiledGraph(made.calling, made.constants, executor)(list(inputs))


def attended(
    inputs: Sequence[torch.Tensor], ends: tuple[Sequence[int], Sequence[int]], behind: int, ahead: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention in f64, one sequence after the other, and the logarithms of its sums."""
    query, key, value = (x.double() for x in inputs)
    group = query.shape[1] // key.shape[1]
    out, sums = torch.zeros_like(query), torch.full(query.shape[1::-1], -math.inf, dtype=torch.float64)
    for number in range(len(ends[0]) - 1):
        rows, keys = (slice(each[number], each[number + 1]) for each in ends)
        shared = [x[keys].repeat_interleave(group, 1) for x in (key, value)]
        scores = torch.einsum("ihd,jhd->hij", query[rows], shared[0]) / math.sqrt(query.shape[2])
        counts = [each.stop - each.start for each in (rows, keys)]
        place = torch.arange(counts[1]) - torch.arange(counts[0])[:, None] + counts[0] - counts[1]
        seen = ((ahead < 0) | (place <= ahead)) & ((behind < 0) | (place >= -behind))
        scores = scores.masked_fill(~seen, -math.inf)
        out[rows] = torch.einsum("hij,jhd->ihd", scores.softmax(-1).nan_to_num(0), shared[1])
        sums[:, rows] = scores.logsumexp(-1)
    return out, sums


OWN = (0, 3, 3, 200, 460, 700, 900)
OTHERS = (0, 130, 140, 300, 610, 611, 750)
"""Where sequences end: one is empty, one has more queries than keys."""


@pytest.mark.parametrize(("behind", "ahead"), [(-1, -1), (-1, 0), (50, 0), (40, 100)])
@pytest.mark.parametrize("others", [OWN, OTHERS])
def test_rows_see_their_own_sequence(behind: int, ahead: int, others: Sequence[int]) -> None:
    torch.manual_seed(len(others) + behind)
    shapes = (900, 2, 64), (others[-1], 1, 64), (others[-1], 1, 64)
    inputs = [torch.randn(shape).bfloat16() for shape in shapes]
    ends = torch.tensor(OWN, dtype=torch.int32), torch.tensor(others, dtype=torch.int32)

    def call(query: Any, key: Any, value: Any, *ends: Any) -> Any:
        window = {"window_size_left": behind, "window_size_right": ahead}
        causal = (behind, ahead) == (-1, 0)
        given = query, key, value, ends[0], ends[-1]
        return _aten._flash_attention_forward(*given, 300, 300, 0.0, causal, False, **window)[:2]

    found = interpreted(call, [*inputs, *ends[: 1 if others is OWN else 2]])
    expected = attended(inputs, (OWN, others), behind, ahead)
    for one, other, most in zip(found, expected, (4e-3, 1e-5), strict=True):
        some = torch.isfinite(other)
        assert torch.equal(torch.isfinite(one), some)
        assert (one.double() - other)[some].norm() < most * other[some].norm()


def steps(function: Callable[..., Any], *shapes: Sequence[int]) -> list[str]:
    inputs = [torch.empty(shape, dtype=torch.bfloat16 if len(shape) == 3 else torch.int32) for shape in shapes]
    plan = compile_nvidia(imported(function, inputs).function, CONFIG, target_named("sm_90a")).plan
    return [step.function if isinstance(step, KernelStep) else getattr(step, "target", "") for step in plan.steps]


MANY = (4096, 16, 128)


def test_it_is_a_kernel_behind_one_that_finds_the_sequences_of_rows() -> None:
    def call(query: Any, key: Any, value: Any, ends: Any) -> Any:
        first = varlen.varlen_attn(query, key, value, ends, ends, 999, 999, window_size=(-1, 0))
        return [varlen.varlen_attn(first, key, value, ends, ends, 999, 999, window_size=(-1, 0))]

    find, *others = steps(call, MANY, MANY, MANY, (5,))
    attend = [name for name in others if "_counter" not in name]
    assert "max" in find and ["attention" in name for name in attend] == [True, True]


@pytest.mark.parametrize("ahead", [-1, 0])
def test_rows_of_no_sequence_see_nothing(ahead: int) -> None:
    def call(query: Any, key: Any, value: Any, *ends: Any) -> Any:
        window = {"window_size_left": -1, "window_size_right": ahead}
        return _aten._flash_attention_forward(query, key, value, *ends, 1, 1, 0.0, False, False, **window)[:2]

    inputs = [torch.randn(600, heads, 64).bfloat16() for heads in (2, 1, 1)]
    ends = [torch.zeros(1, dtype=torch.int32)] * 2
    out, sums = interpreted(call, [*inputs, *ends])
    assert torch.equal(out, torch.zeros_like(inputs[0])) and torch.equal(sums, torch.full((2, 600), -math.inf))
    assert "_flash_attention_forward" not in steps(call, MANY, MANY, MANY, (1,), (1,))[-1]


def test_training_has_the_librarys_backward() -> None:
    def call(query: Any, key: Any, value: Any, ends: Any) -> Any:
        out, sums, state = torch.ops.torch_attn._varlen_attn(query, key, value, ends, ends, 999, 999, True)
        kept = query, key, value, out, sums, ends, ends, 999, 999, True, state
        return torch.ops.torch_attn._varlen_attn_backward(out, *kept)

    names = steps(call, MANY, MANY, MANY, (5,))
    assert any("attention_with_lse" in name for name in names) and names[-1] == "torch_attn::_varlen_attn_backward"


def test_what_no_kernel_is_made_for_is_the_librarys() -> None:
    def dropped(query: Any, key: Any, value: Any, ends: Any) -> Any:
        return _aten._flash_attention_forward(query, key, value, ends, ends, 999, 999, 0.5, True, False)[:1]

    assert "aten::_flash_attention_forward" in steps(dropped, MANY, MANY, MANY, (5,))
