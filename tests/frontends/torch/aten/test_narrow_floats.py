"""Casts to floats of 8 bits: the very numbers that eager gives, beyond the type's range too."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch._subclasses import FakeTensorMode

from weft.frontends.torch.dtypes import largest_cast
from weft.ir.types import f8e4m3, f8e5m2, f16
from weft.lower.machine import gpu_machine
from weft.lower.steps import KernelStep
from weft.testing.interpreted import GpuInterpreter

NARROW = (torch.float8_e4m3fn, torch.float8_e5m2)
WITHOUT_WEFT_TYPE = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
SPECIAL = [math.inf, -math.inf, math.nan, 3e38, -3e38, 464.0, 465.0, 480.0, 500.0, -600.0, 1000.0, 61440.0, 65504.0]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def numbers(dtype: torch.dtype) -> torch.Tensor:
    """All numbers of 16 bits; of wider types those of 8 bits, what lies halfway between, its neighbours, and others."""
    if dtype.itemsize == 2:
        return torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
    if not dtype.is_floating_point:
        return torch.randint(-2000, 2000, (4000,)).to(dtype)
    codes = torch.arange(256, dtype=torch.uint8)
    held = torch.cat([codes.view(narrow).double() for narrow in (*NARROW, *WITHOUT_WEFT_TYPE)])
    held = held[held.isfinite()].sort().values
    half = ((held[1:] + held[:-1]) / 2).to(dtype)
    beside = [torch.nextafter(half, torch.tensor(end, dtype=dtype)) for end in (math.inf, -math.inf)]
    drawn = torch.randn(3000, dtype=dtype) * 300, torch.randn(3000, dtype=dtype) * 1e-3
    return torch.cat([held.to(dtype), half, *beside, *drawn, torch.tensor(SPECIAL, dtype=dtype)])


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.float(), expected.float(), rtol=0, atol=0, equal_nan=True)
    there = ~expected.float().isnan()
    assert torch.equal(found.float()[there].signbit(), expected.float()[there].signbit())


@pytest.mark.parametrize("narrow", NARROW, ids=str)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int8, torch.bool], ids=str
)
def test_casts_give_what_eager_gives(dtype: torch.dtype, narrow: torch.dtype) -> None:
    x = numbers(dtype)
    options = {"cache": False, "strict": True}
    assert_same(torch.compile(lambda x: x.to(narrow), backend="weft", options=options)(x), x.to(narrow))


def test_casts_between_narrow_floats_give_what_eager_gives() -> None:
    for source, target in (NARROW, NARROW[::-1]):
        x = torch.arange(256, dtype=torch.uint8).view(source)
        compiled = torch.compile(lambda x, target=target: x.to(target), backend="weft", options={"cache": False})
        assert_same(compiled(x), x.to(target))
        torch.compiler.reset()


@pytest.mark.parametrize("narrow", WITHOUT_WEFT_TYPE, ids=str)
def test_what_weft_has_no_type_for_is_eagers(narrow: torch.dtype) -> None:
    x = numbers(torch.float32)
    assert_same(torch.compile(lambda x: x.to(narrow), backend="weft", options={"cache": False})(x), x.to(narrow))


def test_torch_is_asked_for_its_largest_number_even_while_it_traces() -> None:
    largest_cast.cache_clear()
    with FakeTensorMode():
        found = largest_cast(f8e4m3)
    at_most = torch.tensor([math.inf]).to(torch.float8_e4m3fn).float().item()
    assert found == (at_most if math.isfinite(at_most) else None)
    assert largest_cast(f8e5m2) is None  # infinity is a number of it
    assert largest_cast(f16) is None


def test_without_a_largest_number_the_cast_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.frontends.torch.importer.builder.largest_cast", lambda dtype: None)
    x = torch.tensor([500.0, 464.0, math.inf])
    compiled = torch.compile(lambda x: x.to(torch.float8_e4m3fn).float(), backend="weft", options={"cache": False})
    assert [f"{number:g}" for number in compiled(x).tolist()] == ["nan", "448", "nan"]


def test_kernels_of_a_gpu_give_what_eager_gives() -> None:
    x = numbers(torch.float32)
    backend = GpuInterpreter(gpu_machine())
    assert_same(torch.compile(lambda x: x.to(NARROW[0]), backend=backend)(x), x.to(NARROW[0]))
    assert [type(step) for planned in backend.plans for step in planned.plan.steps] == [KernelStep]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_neighbours_are_those_among_the_same_floats(dtype: torch.dtype) -> None:
    x = numbers(dtype)
    compiled = torch.compile(torch.nextafter, backend="weft", options={"strict": True})
    for target in (0.0, math.inf, -math.inf, 1.0, math.nan):
        to = torch.full_like(x, target)
        assert_same(compiled(x, to), torch.nextafter(x, to))
    computed = torch.compile(lambda x, y: torch.nextafter(x * 3, y), backend="weft", options={"strict": True})
    finite = torch.randn(1000).to(dtype)
    assert_same(computed(finite, x[:1000]), torch.nextafter(finite * 3, x[:1000]))
    some = x[::97].clone()
    simulated = torch.compile(torch.nextafter, backend=GpuInterpreter(gpu_machine(), simulated=True))
    assert_same(simulated(some, some.flip(0)), torch.nextafter(some, some.flip(0)))
