"""Small kernels that become one: what they compute, and which stay apart."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest
import torch

from weft.backends.nvidia.ir.horizontal_select import HorizontalSelectOp
from weft.backends.nvidia.ir.programmatic_launch import written_by
from weft.backends.nvidia.plan import fuse_horizontally as join
from weft.backends.nvidia.plan.fuse_horizontally import fuse_horizontally
from weft.backends.nvidia.target import target_named
from weft.ir.types import bf16
from weft.lower.plan import Planned
from weft.lower.steps import KernelStep
from weft.pipelines import compile_kernels

from .. import emulated_graphs
from ..ptx_machine import Memory, run_blocks
from ..row_kernels import planned

TARGET = target_named("sm_90a")


def run(found: Planned, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """The results of a plan whose steps are kernels with a block for each program."""
    code = compile_kernels(found.kernels, TARGET)
    plan, memory, places = found.plan, Memory(), list[int]()
    given = dict(zip(plan.inputs, inputs, strict=True))
    arrays = [
        given.get(number, np.full(buffer.tensor.shape, np.nan, buffer.tensor.dtype.numpy))  # type: ignore[arg-type]
        for number, buffer in enumerate(plan.buffers)
    ]
    places = [memory.add(array) for array in arrays]
    for step in plan.steps:
        assert isinstance(step, KernelStep) and isinstance(step.grid, int)
        launch = code.launches[step.function]
        addresses = [places[number] for number in step.buffers]
        run_blocks(code.ptx, step.function, launch.threads, launch.shared, memory, addresses, step.grid)
    return [memory.read(places[number], arrays[number]) for number in plan.outputs]


def rotated(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Three kernels of different sizes and grids: one is turned, one has a last block that is not full."""
    one, other = x.chunk(2, -1)
    return torch.cat((-other, one), -1) * 2, y.transpose(0, 1).contiguous() + 1, z * z


def chained(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The last needs what the first makes, in another order."""
    made = x.abs() + 1
    return made, y + 1, made.flip(0).sum(1) * 2


def steps(found: Planned) -> list[str]:
    return [step.function for step in found.plan.steps if isinstance(step, KernelStep)]


SHAPES = (5, 128), (70, 90), (1000,)


def test_kernels_that_are_apart_are_one() -> None:
    found = planned(rotated, *SHAPES)
    before = steps(found)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(shape).astype(bf16.numpy) for shape in SHAPES]
    expected = run(found, inputs)
    fuse_horizontally(found)
    assert len(before) == 3 and len(steps(found)) == 1 and found.kernels.keys() == set(steps(found))
    for actual, wanted in zip(run(found, inputs), expected, strict=True):
        np.testing.assert_array_equal(actual.view(np.int16), wanted.view(np.int16))


def test_what_needs_another_comes_after_it() -> None:
    found = planned(chained, *SHAPES)
    before = len(steps(found))
    fuse_horizontally(found)
    assert 1 < len(steps(found)) < before


@pytest.mark.parametrize("function", [lambda x: (x.sum(0), x.sum(1)), lambda x: (x @ x, x + 1)])
def test_reductions_and_products_stay(function: Callable[..., Any]) -> None:
    found = planned(function, (256, 256))
    before = steps(found)
    fuse_horizontally(found)
    assert steps(found) == before


def test_large_kernels_stay() -> None:
    side = 4096
    found = planned(lambda x, y: (x + 1, y.abs()), (side, side), (side, side))
    assert prod((len(steps(found)), side)) > side
    before = steps(found)
    fuse_horizontally(found)
    assert steps(found) == before


def test_large_copies_are_one() -> None:
    """As of both operands of a product, whose rows get longer: those that fill a tile ask where they end otherwise."""
    shapes = (345, 582), (8139, 582)

    def padded(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.nn.functional.pad(x, (0, 2)), torch.nn.functional.pad(y, (0, 2))

    found = planned(padded, *shapes)
    kinds = {tuple(op.name for op in kernel.block.ops) for kernel in found.kernels.values()}
    fuse_horizontally(found)
    assert len(kinds) == 2 and len(steps(found)) == 1


def stepped(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What an optimizer does to each tensor."""
    return tuple(each * 0.5 + each.abs() for each in tensors)


def picks(found: Planned) -> list[HorizontalSelectOp]:
    return [op for kernel in found.kernels.values() for op in kernel.walk() if isinstance(op, HorizontalSelectOp)]


def test_what_is_done_to_many_tensors_is_written_down_once() -> None:
    """Of 1000 elements the last block is not full, and 256 are a single one: in the same kernel, but apart."""
    shapes = (512,), (2048,), (16, 64), (1000,), (256,)
    found = planned(stepped, *shapes)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(shape).astype(bf16.numpy) for shape in shapes]
    expected = run(found, inputs)
    fuse_horizontally(found)
    (step,) = found.plan.steps
    (pick,) = picks(found)
    assert isinstance(step, KernelStep) and len(pick.starts.data) == 3 and len(pick.picked) == 2
    for actual, wanted in zip(run(found, inputs), expected, strict=True):
        np.testing.assert_array_equal(actual.view(np.int16), wanted.view(np.int16))


def adamw(*tensors: torch.Tensor) -> None:
    """The third step of an optimizer over parameters, gradients and both of their moments."""
    count = len(tensors) // 4
    for p, g, m, v in zip(*(tensors[first * count : (first + 1) * count] for first in range(4)), strict=True):
        p.mul_(1 - 1e-2 * 0.1)
        m.lerp_(g, 0.1)
        v.mul_(0.999).addcmul_(g, g, value=0.001)
        p.addcdiv_(m / (1 - 0.9**3), (v / (1 - 0.999**3)).sqrt() + 1e-8, value=-1e-2)


@pytest.mark.parametrize("sizes", [(64, 64, 64), (512, 2048, 1024, 1000, 256)])
def test_a_step_of_adamw_is_one_kernel(sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Against f64; of three tensors of one size, addresses of parameters are chosen instead of what lies there."""
    launched: list[str] = []
    run_blocks = emulated_graphs.run_blocks
    monkeypatch.setattr(
        emulated_graphs, "run_blocks", lambda ptx, name, *args: (launched.append(name), run_blocks(ptx, name, *args))
    )
    tensors = [torch.randn(size) for _ in range(3) for size in sizes] + [torch.rand(size) for size in sizes]
    expected = [each.double() for each in tensors]
    adamw(*expected)
    emulated_graphs.emulated(adamw)(*tensors)
    assert len(launched) == 1
    torch.testing.assert_close([each.double() for each in tensors], expected, rtol=1e-5, atol=1e-6)


def test_large_tensors_share_a_kernel_with_small_ones() -> None:
    found = planned(stepped, (4096, 4096), (8192, 4096), (4096,), (64,))
    grids = [step.grid for step in found.plan.steps if isinstance(step, KernelStep)]
    fuse_horizontally(found)
    (step,) = found.plan.steps
    (kernel,) = found.kernels.values()
    assert isinstance(step, KernelStep) and len(step.buffers) == 8
    assert step.grid == sum(grid for grid in grids if isinstance(grid, int))
    assert written_by(kernel) == (1, 3, 5, 7)


def test_a_kernel_has_no_more_parameters_than_the_driver_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert join.MOST_POINTERS * 8 <= 4096
    monkeypatch.setattr(join, "MOST_POINTERS", 6)
    found = planned(stepped, *[(4096,)] * 5)
    fuse_horizontally(found)
    assert [len(step.buffers) for step in found.plan.steps if isinstance(step, KernelStep)] == [6, 4]
    assert len(found.kernels) == 2
