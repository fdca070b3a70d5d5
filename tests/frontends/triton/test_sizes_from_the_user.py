"""Grids, counts and sizes that a user gives as floats, NumPy's numbers, bools, strings or too large numbers.

What Triton takes is taken: whatever is an integer by `__index__`. The rest is refused, and nothing is cut off.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import weft.triton as triton
import weft.triton.language as tl
from weft.errors import WeftError
from weft.frontends.triton.errors import KernelTypeError, KernelValueError
from weft.triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def count(out_ptr):
    tl.atomic_add(out_ptr, 1)


@triton.jit
def turns(out_ptr, TIMES: tl.constexpr):
    total = 0
    for _ in tl.range(0, TIMES):
        total += 1
    tl.store(out_ptr, total)


@triton.jit
def annotated(out_ptr, n: tl.int32):
    tl.store(out_ptr, n)


@triton.jit
def described(desc, out_ptr):
    tl.store(out_ptr + tl.arange(0, 16), desc.load([0]))


def _programs(grid: Any, interpreted: bool = False, **options: Any) -> int:
    out = torch.zeros(1, dtype=torch.int32)
    with triton.interpret(interpreted):
        count[grid](out, **options)
    return int(out.item())


def _named(value: object) -> str:
    """The name of a case, which is the same in every process."""
    return "function" if callable(value) else repr(value)


@pytest.mark.parametrize("interpreted", [False, True])
@pytest.mark.parametrize(
    ("grid", "programs"),
    [
        ((3,), 3),
        ((np.int64(3),), 3),
        ((np.uint8(2), 2), 4),
        ((True,), 1),
        ((torch.tensor(3),), 3),
        ((tl.constexpr(3), 1, 2), 6),
        ([2, 2], 4),
        (torch.Size([2, 3]), 6),
        (np.array([2, 3]), 6),
        ((0, 5), 0),
        (lambda meta: (np.int32(2),), 2),
    ],
    ids=_named,
)
def test_integers_of_any_kind_are_a_grid(grid: Any, programs: int, interpreted: bool) -> None:
    assert _programs(grid, interpreted) == programs


@pytest.mark.parametrize("interpreted", [False, True])
@pytest.mark.parametrize(
    "grid",
    [
        *((2.9,), (10 / 4,), (2.0,), (np.float64(2),), (2, 1.5), ("2",), "2", (None,), None, (-1,), (2, -1), ()),
        *((1, 1, 1, 1), (2**40, 2**40), (2**31,), (2**31 - 1,) * 3, (float("nan"),), (torch.tensor(2.5),)),
        (lambda meta: (2.5,)),
    ],
    ids=_named,
)
def test_what_is_no_grid_is_refused(grid: Any, interpreted: bool) -> None:
    _programs((1,), interpreted)  # the kernel is known: the way that launches usually take
    with pytest.raises(KernelValueError, match="grid"):
        _programs(grid, interpreted)


def test_a_float_grid_is_refused_inside_of_a_compiled_function() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        count[(x.numel() / 2,)](out)
        return out

    with pytest.raises(Exception, match="sides of a grid are integers"):
        torch.compile(f, backend="weft", fullgraph=True)(torch.zeros(3, dtype=torch.int32))


@pytest.mark.parametrize("option", ["num_warps", "num_ctas", "num_stages", "maxnreg"])
@pytest.mark.parametrize("value", [2.5, 4.0, "4", -1, np.float32(4), [4]], ids=repr)
def test_counts_that_are_none_are_refused(option: str, value: Any) -> None:
    _programs((1,), **{option: 4})
    with pytest.raises(KernelValueError, match=option):
        _programs((1,), **{option: value})


@pytest.mark.parametrize("warps", [0, 3])
def test_warps_are_a_power_of_two(warps: int) -> None:
    with pytest.raises(KernelValueError, match="a power of two"):
        _programs((1,), num_warps=warps)


@pytest.mark.parametrize("value", [4, np.int64(4), True])
def test_counts_of_any_integer_kind_are_taken(value: Any) -> None:
    assert _programs((2,), num_warps=value) == 2


@pytest.mark.parametrize("interpreted", [False, True])
def test_bounds_of_a_loop_are_not_cut_off(interpreted: bool) -> None:
    out = torch.zeros(1, dtype=torch.int32)
    with triton.interpret(interpreted), pytest.raises((WeftError, TypeError)):
        turns[(1,)](out, TIMES=2.9)
    assert not out.any()


def test_an_argument_that_is_annotated_as_an_integer_is_not_cut_off() -> None:
    out = torch.zeros(1, dtype=torch.int32)
    annotated[(1,)](out, np.int64(7))
    assert out.item() == 7
    with pytest.raises(KernelTypeError, match=r"integers, not 2\.9"):
        annotated[(1,)](out, 2.9)


@pytest.mark.parametrize("interpreted", [False, True])
def test_sizes_of_a_descriptor_are_not_cut_off(interpreted: bool) -> None:
    x, out = torch.ones(16), torch.zeros(16)
    with triton.interpret(interpreted), pytest.raises((WeftError, TypeError)):
        described[(1,)](TensorDescriptor(x, [15.9], [1], [16]), out)
    assert not out.any()
