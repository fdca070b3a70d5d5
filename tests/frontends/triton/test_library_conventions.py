"""What libraries of kernels ask of Triton beside its language: the driver, hooks, figures of the device."""

from __future__ import annotations

import importlib
import json
from collections.abc import Generator
from typing import Any

import pytest
import torch

import weft.triton as triton
import weft.triton.language as tl
from weft.errors import WeftError
from weft.triton import knobs


@triton.jit
def double(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.load(x + offsets, mask=offsets < n) * 2, mask=offsets < n)


def test_importing_the_module_of_the_driver_leaves_the_driver() -> None:
    with triton.enable():
        module = importlib.import_module("triton.runtime.driver")
        outer = importlib.import_module("triton")
        assert outer.runtime.driver is module.driver is triton.runtime.driver
        assert outer.runtime.driver.active.get_current_target().backend in ("cpu", "cuda")


def test_names_that_modules_pass_on() -> None:
    with triton.enable():
        for module, name in (
            ("runtime.autotuner", "OutOfResources"),
            ("compiler.compiler", "GPUTarget"),
            ("language.extra.cuda", "smid"),
            ("language.extra.cuda", "globaltimer"),
            ("tools.disasm", "get_sass"),
            ("tools.disasm", "extract"),
        ):
            assert hasattr(importlib.import_module(f"triton.{module}"), name)


@pytest.fixture
def no_hooks() -> Generator[None]:
    yield
    for name in ("launch_enter_hook", "launch_exit_hook", "jit_post_compile_hook"):
        setattr(knobs.runtime, name, None)


@pytest.mark.usefixtures("no_hooks")
def test_hooks_are_told_of_launches() -> None:
    told: list[Any] = []
    x, out = torch.randn(100), torch.zeros(100)
    enter, leave = (lambda facts: told.append(("enter", facts.get()["name"]))), (lambda facts: told.append("exit"))
    knobs.runtime.launch_enter_hook.add(enter)
    knobs.runtime.launch_exit_hook.add(leave)
    assert isinstance(knobs.runtime.launch_enter_hook, knobs.HookChain)
    double[(2,)](x, out, 100, BLOCK=64)
    double[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](x, out, 100, BLOCK=64)
    assert told == [("enter", "double"), "exit"] * 2 and torch.equal(out, x * 2)
    knobs.runtime.launch_enter_hook.remove(enter)
    knobs.runtime.launch_exit_hook.remove(leave)
    double[(2,)](x, out, 100, BLOCK=64)
    assert len(told) == 4


@pytest.mark.usefixtures("no_hooks")
def test_metadata_of_a_launch_reaches_its_hook() -> None:
    told: list[dict[str, Any]] = []
    kernel = triton.jit(launch_metadata=lambda grid, metadata, args: {"name": metadata.name, "elements": args["n"]})(
        double.fn
    )
    knobs.runtime.launch_enter_hook = lambda facts: told.append(facts.get())
    kernel[(2,)](torch.ones(100), torch.zeros(100), 100, BLOCK=64)
    assert told[0]["elements"] == 100


@pytest.mark.usefixtures("no_hooks")
def test_a_hook_is_told_of_what_is_compiled() -> None:
    told: list[dict[str, Any]] = []
    before = knobs.runtime.jit_post_compile_hook
    assert before is None
    knobs.runtime.jit_post_compile_hook = lambda **facts: told.append(facts)
    kernel = triton.jit(double.fn)
    for _ in range(2):
        kernel[(2,)](torch.ones(100), torch.zeros(100), 100, BLOCK=64, num_warps=2)
    kernel[(4,)](torch.ones(100), torch.zeros(100), 100, BLOCK=32)
    assert [facts["compile"]["num_warps"] for facts in told] == [2, 4]
    assert told[0]["fn"].name == "double" and told[0]["fn"].jit_function is kernel
    assert told[0]["compile"]["signature"] == {"x": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    assert told[0]["compile"]["constants"][(3,)] == 64 and "double" in told[0]["repr"]


def test_what_a_kernel_is_compiled_for_as_json() -> None:
    from weft.triton.runtime.jit import serialize_specialization_data

    class Options:
        def __init__(self) -> None:
            self.num_warps = 4

    target = triton.runtime.driver.active.get_current_target()
    constants = {(0,): tl.float16, (1,): tl.constexpr(3), (2,): double, (3,): 5}
    text = serialize_specialization_data("double", {"x": "*fp32"}, constants, {}, Options(), "key", target)
    told = json.loads(text)
    kernel = {"jit_function": f"{__name__}:double"}
    assert told["constant_vals"] == ["fp16", {"constexpr": 3}, kernel, 5] and told["options"] == {"num_warps": 4}


def test_models_of_a_kernels_time_have_figures_to_divide_by() -> None:
    from weft.triton.testing import get_dram_gbps, get_max_simd_tflops, get_max_tensorcore_tflops

    clock = triton.runtime.driver.active.utils.get_device_properties(0)["sm_clock_rate"]
    assert clock > 0 and get_dram_gbps() > 0
    assert 0 < get_max_simd_tflops(torch.float32, clock) <= get_max_tensorcore_tflops(torch.float16, clock)
    assert get_max_tensorcore_tflops(tl.float8e4nv, clock) > get_max_tensorcore_tflops(torch.float32, clock, 0)
    with pytest.raises(WeftError, match="16 or 32"):
        get_max_simd_tflops(torch.float64, clock)


def test_a_program_is_not_told_where_it_runs() -> None:
    from weft.triton.language.extra.cuda import smid

    @triton.jit
    def where(out):
        tl.store(out, smid())

    with pytest.raises(WeftError, match="multiprocessor"):
        where[(1,)](torch.zeros(1, dtype=torch.int32))


class Strided:
    """Stands for a tensor as libraries' own classes do: with what a launch needs, and no more."""

    def __init__(self, base: torch.Tensor, offset: int) -> None:
        self.base_tensor, self.dtype, self.device, self.offset = base, base.dtype, base.device, offset

    def data_ptr(self) -> int:
        return self.base_tensor.data_ptr() + self.offset * self.base_tensor.element_size()

    def untyped_storage(self) -> Any:
        return self.base_tensor.untyped_storage()


def test_what_stands_for_a_tensor_is_taken() -> None:
    x, out = torch.randn(100), torch.zeros(100)
    double[(2,)](Strided(x, 10), Strided(out, 20), 80, BLOCK=64)
    assert torch.equal(out[20:], x[10:90] * 2) and not out[:20].any()
    tuned = triton.autotune([triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64})], key=["n"])(double)
    tuned[(3,)](Strided(x, 0), Strided(out, 0), 90)
    assert torch.equal(out[:90], x[:90] * 2)


@triton.jit
def least(dtype):
    kind = dtype.value
    if kind.is_floating():
        value: tl.constexpr = float("-inf")
        return value
    width: tl.constexpr = kind.int_bitwidth
    value: tl.constexpr = -1 * 2 ** (width - 1)
    return value


@triton.jit
def greatest_of(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    row = tl.load(x + offsets, mask=offsets < n, other=least(x.type.element_ty))
    tl.store(out, tl.max(row, axis=0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16])
def test_a_function_takes_the_value_out_of_a_constexpr_that_it_is_given(dtype: torch.dtype) -> None:
    x, out = (torch.randn(50) * 9 - 100).to(dtype), torch.zeros(1, dtype=dtype)
    greatest_of[(1,)](x, out, 50, BLOCK=64)
    assert out[0] == x.max()


@triton.jit
def by_parts(x, out, n, parts, BLOCK: tl.constexpr):
    SIZE: tl.constexpr = BLOCK * parts
    for start in range(tl.program_id(0) * SIZE, (tl.program_id(0) + 1) * SIZE, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        tl.store(out + offsets, tl.load(x + offsets, mask=offsets < n) * 2, mask=offsets < n)


def test_a_constexpr_whose_value_is_known_at_run_time_is_a_plain_value() -> None:
    x, out = torch.randn(100), torch.zeros(100)
    by_parts[(2,)](x, out, 100, 4, BLOCK=16)
    assert torch.equal(out, x * 2)
