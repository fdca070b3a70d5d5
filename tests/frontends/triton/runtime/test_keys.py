"""What a compiled kernel depends on: when one is used again, and when another has to be made."""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import weft.triton as triton
import weft.triton.language as tl
from weft.frontends.triton.errors import KernelTypeError, OptionError
from weft.frontends.triton.language.aggregates import aggregate
from weft.frontends.triton.runtime.compiling import disk_cache

x: Any = None
ADDED = tl.constexpr(1)
OTHER = tl.constexpr(1)
settings: Any = ModuleType("settings")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    disk_cache.cache_clear()


def result(kernel: Any, *args: Any) -> float:
    place = torch.zeros(1)
    kernel[(1,)](place, *args)
    return place.item()


def with_default(number: int) -> Any:
    @triton.jit
    def helper(value, added: tl.constexpr = number):
        return value + added

    @triton.jit
    def kernel(place):
        tl.store(place, helper(tl.load(place)))

    return kernel


def test_defaults_of_a_function_are_a_part_of_it() -> None:
    assert [result(with_default(1)), result(with_default(2))] == [1, 2]


@triton.jit
def named_like_a_global(x, N: tl.constexpr):
    tl.store(x, N)


def test_a_parameter_is_no_global_of_the_same_name(monkeypatch: pytest.MonkeyPatch) -> None:
    first = named_like_a_global[(1,)](torch.zeros(1), 4)
    monkeypatch.setitem(globals(), "x", object())
    assert named_like_a_global.fingerprint().stable
    assert named_like_a_global[(1,)](torch.zeros(1), 4) is first


@triton.jit
def add_global(place, N: tl.constexpr):
    tl.store(place, tl.load(place) + ADDED + N * 0)


def test_a_warmup_sees_that_a_global_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert result(add_global, 4) == 1
    monkeypatch.setitem(globals(), "ADDED", tl.constexpr(10))
    add_global.warmup(torch.float32, 8, grid=(1,))
    assert result(add_global, 4) == 10


@triton.jit
def plus_other(value):
    return value + OTHER


@triton.jit
def apply(place, FUNCTION: tl.constexpr):
    tl.store(place, FUNCTION(tl.load(place)))


def test_globals_of_a_function_given_as_a_constant_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert result(apply, plus_other) == 1
    monkeypatch.setitem(globals(), "OTHER", tl.constexpr(10))
    assert result(apply, plus_other) == 10


def test_what_a_closure_holds_counts() -> None:
    held = tl.constexpr(1)

    @triton.jit
    def kernel(place):
        tl.store(place, tl.load(place) + held)

    assert result(kernel) == 1
    held = tl.constexpr(5)
    assert result(kernel) == 5


@triton.jit
def add_setting(place):
    tl.store(place, tl.load(place) + settings.added)


def test_the_attribute_of_a_module_counts() -> None:
    settings.added = tl.constexpr(1)
    assert result(add_setting) == 1
    settings.added = tl.constexpr(7)
    assert result(add_setting) == 7


@triton.jit
def even(value, N: tl.constexpr):
    if N == 0:
        return value + ADDED
    return odd(value, N - 1)


@triton.jit
def odd(value, N: tl.constexpr):
    if N == 0:
        return value
    return even(value, N - 1)


def test_recursion_depends_on_all_its_functions_in_every_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = even.cache_key, odd.cache_key
    found: list[tuple[str, str]] = []
    for _ in range(5):
        even._fingerprint = odd._fingerprint = None
        threads = [Thread(target=lambda: found.append((even.cache_key, odd.cache_key))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert set(found) == {expected}
    monkeypatch.setitem(globals(), "ADDED", tl.constexpr(10))
    assert even.cache_key != expected[0]
    assert odd.cache_key != expected[1]


def test_an_unknown_keyword_is_refused_by_a_warm_launch_too() -> None:
    place = torch.zeros(1)
    named_like_a_global[(1,)](place, N=4)
    with pytest.raises(OptionError, match="BLOCK"):
        named_like_a_global[(1,)](place, N=4, BLOCK=3)


@triton.jit
def read_around_a_write(x, y, N: tl.constexpr):
    r = tl.arange(0, N)
    before = tl.load(x + r)
    tl.store(y + r, r * 0.0 - 1)
    tl.store(x + r, before + tl.load(x + r))


@pytest.mark.parametrize("as_given", [torch.from_numpy, np.asarray])
def test_tensors_that_overlap_share_memory(as_given: Any) -> None:
    memory, expected = np.arange(65, dtype=np.float32), np.arange(65, dtype=np.float32)
    before = expected[:64].copy()
    expected[1:] = -1
    expected[:64] += before
    read_around_a_write[(1,)](as_given(memory[:64]), as_given(memory[1:]), 64)
    assert np.array_equal(memory, expected)


@triton.jit
def shift_wide(place, n: tl.int64):
    tl.store(place, (n + 1) << 33)


@pytest.mark.parametrize("n", [1, 2, 16])
def test_an_annotated_number_keeps_its_type(n: int) -> None:
    place = torch.zeros(1, dtype=torch.int64)
    shift_wide[(1,)](place, n)
    assert place.item() == (n + 1) << 33


@dataclasses.dataclass(frozen=True)
class Setting:
    flag: object


@triton.jit
def store_setting(place, SETTING: tl.constexpr):
    tl.store(place, 1.0 if str(SETTING.flag) == "True" else 2.0)


def test_constants_that_are_equal_need_not_be_the_same() -> None:
    assert [result(store_setting, Setting(1)), result(store_setting, Setting(True))] == [2, 1]


def with_aggregate(number: int, by_method: bool) -> Any:
    first, second = (tl.constexpr(each) for each in ((number, 0) if by_method else (0, number)))

    @aggregate
    class Held:
        value: tl.tensor

        def __init__(self, value):
            self.value = value + second

        @triton.jit
        def plus(self):
            return self.value + first

    @triton.jit
    def kernel(place):
        tl.store(place, Held(tl.load(place)).plus())

    return kernel


@pytest.mark.parametrize("by_method", [True, False])
def test_methods_of_a_class_are_a_part_of_its_kernels(by_method: bool) -> None:
    one, two = with_aggregate(1, by_method), with_aggregate(2, by_method)
    assert one.fingerprint().stable
    assert one.cache_key != two.cache_key
    assert [result(one), result(two)] == [1, 2]


@triton.jit
def store_given(place, value, n: tl.uint32):
    tl.store(place, value + n)


@pytest.mark.parametrize(("value", "n", "name"), [(1e300, 2, "value"), (2.0, -1, "n"), (2.0, 1 << 40, "n")])
def test_a_number_out_of_range_is_named(value: float, n: int, name: str) -> None:
    with pytest.raises(KernelTypeError, match=f"argument {name}: .* does not fit"):
        result(store_given, value, n)


def with_fields(*fields: str) -> Any:
    Fields = namedtuple("Fields", fields)

    @triton.jit
    def kernel(place):
        tl.store(place, Fields(1.0, 2.0).a)

    return kernel


def test_fields_of_a_named_tuple_are_a_part_of_its_kernels() -> None:
    assert with_fields("a", "b").fingerprint().stable
    assert [result(with_fields("a", "b")), result(with_fields("b", "a"))] == [1, 2]
