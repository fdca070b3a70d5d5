"""Launching kernels: arguments, specialisation, what is kept, what is refused."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft.triton as triton
import weft.triton.language as tl
from weft.frontends.triton.compiler.stored_parameters import stored_parameters
from weft.frontends.triton.errors import KernelTypeError, KernelValueError, LaunchError, OptionError
from weft.frontends.triton.runtime.compiling import disk_cache
from weft.frontends.triton.runtime.specialise import alias_groups

SHIFT = tl.constexpr(3)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    disk_cache.cache_clear()


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr = 64):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask), mask=mask)


@triton.jit
def scale(x_ptr, out_ptr, factor, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n) * factor + SHIFT, mask=offsets < n)


@pytest.mark.parametrize("interpreted", [False, True])
def test_a_kernel_takes_tensors_and_arrays(interpreted: bool) -> None:
    x, y = torch.randn(200), torch.randn(200)
    with triton.interpret(interpreted):
        out = torch.zeros(200)
        add[lambda meta: (triton.cdiv(200, meta["BLOCK"]),)](x, y, out, 200)
        assert torch.equal(out, x + y)
        array = np.zeros(200, np.float32)
        add[(4,)](x.numpy(), y.numpy(), array, 200)
        assert np.array_equal(array, (x + y).numpy())


def test_a_second_launch_finds_the_kernel_and_other_facts_compile_another() -> None:
    x, out = torch.randn(64), torch.zeros(64)
    first = scale[(1,)](x, out, 2.0, 48, BLOCK=64)
    assert scale[(1,)](x, out, 3.0, 32, BLOCK=64) is first, "both numbers are multiples of 16"
    assert scale[(1,)](x, out, 3.0, 31, BLOCK=64) is not first
    assert scale[(1,)](x.double(), out, 3.0, 32, BLOCK=64) is not first
    assert scale[(1,)](x, out, 3.0, 32, BLOCK=32) is not first
    assert scale[(1,)](x, x, 3.0, 32, BLOCK=64) is not first, "now the tensors share memory"


def test_a_changed_global_is_seen() -> None:
    x, out = torch.ones(16), torch.zeros(16)
    scale[(1,)](x, out, 1.0, 16, BLOCK=16)
    assert out[0] == 4
    kept = globals()["SHIFT"]
    try:
        globals()["SHIFT"] = tl.constexpr(10)
        scale[(1,)](x, out, 1.0, 16, BLOCK=16)
        assert out[0] == 11
    finally:
        globals()["SHIFT"] = kept


def test_another_process_finds_the_kernel_on_disk(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import numpy as np, weft.triton as triton, weft.triton.language as tl
            import weft.frontends.triton.runtime.compiling as compiling

            @triton.jit
            def double(x_ptr, BLOCK: tl.constexpr):
                offsets = tl.arange(0, BLOCK)
                tl.store(x_ptr + offsets, tl.load(x_ptr + offsets) * 2)

            made = []
            compile_kernel = compiling.compile_kernel
            compiling.compile_kernel = lambda *args: made.append(args) or compile_kernel(*args)
            x = np.arange(8, dtype=np.float32)
            double[(1,)](x, BLOCK=8)
            assert (x == 2 * np.arange(8)).all()
            print(len(made))
            """
        )
    )
    runs = [subprocess.run([sys.executable, script], capture_output=True, text=True, check=True) for _ in range(2)]
    assert [run.stdout.strip() for run in runs] == ["1", "0"]


def test_which_tensors_share_memory() -> None:
    assert alias_groups([(10, 20), (20, 30), (30, 40)]) is None
    assert alias_groups([(0, 0), (0, 0)]) is None
    assert alias_groups([(10, 20), (20, 30), (12, 18)]) == (0, 1, 0)
    assert alias_groups([(30, 40), (10, 35), (50, 60), (12, 18)]) == (0, 0, 1, 0)


@pytest.mark.parametrize(
    ("launch", "error", "said"),
    [
        (lambda x: add[(1,)](x, x, x), TypeError, "missing 1 required positional argument: 'n'"),
        (lambda x: add[(1,)](x, x, x, 4, 64, 5), TypeError, "takes from 4 to 5 positional arguments but 6 were given"),
        (lambda x: add[(1,)](x, x, x, 4, BLOK=3), OptionError, "BLOK"),
        (lambda x: add[(1, 1, 1, 1)](x, x, x, 4), KernelValueError, "one to three sides"),
        (lambda x: add[(-1,)](x, x, x, 4), KernelValueError, "not negative"),
        (lambda x: add[(1,)](x, x, object(), 4), KernelTypeError, "out_ptr"),
        (lambda x: add[(1,)](x, x, 1 << 70, 4), KernelTypeError, "64 bits"),
        (lambda x: add(x, x, x, 4), LaunchError, "outside of the scope of a kernel"),
    ],
)
def test_what_is_refused(launch: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        launch(torch.zeros(4))


def test_options_for_a_gpu_are_taken_and_an_empty_grid_does_nothing() -> None:
    x, out = torch.ones(64), torch.zeros(64)
    add[(0,)](x, x, out, 64)
    assert out.sum() == 0
    add[(1,)](x, x, out, 64, num_warps=8, num_stages=2)
    assert out.sum() == 128


def test_warmup_compiles_without_running() -> None:
    assert scale.warmup(torch.float32, torch.float32, 1.0, 16, BLOCK=16, grid=(1,)) is not None


@triton.jit
def _helper(where, value):
    tl.store(where, value)


@triton.jit
def through_a_helper(x_ptr, y_ptr, n):
    place = y_ptr + n
    _helper(place, tl.load(x_ptr))


def test_the_parameters_that_a_kernel_writes_through() -> None:
    assert stored_parameters(add) == ("out_ptr", "BLOCK")
    assert "y_ptr" in stored_parameters(through_a_helper)
    assert "x_ptr" not in stored_parameters(through_a_helper)


store_by_another_name = tl.store


@triton.jit
def store_second(value, place):
    tl.store(place, value)


@triton.jit
def through_the_unknown(x, y, z, u, FUNCTION: tl.constexpr):
    FUNCTION(x, 1.0)
    store_by_another_name(y, 1.0)
    store_second(tl.load(u).to(tl.float32), z)


def test_a_function_that_is_not_known_may_write_through_all_that_it_is_given() -> None:
    assert stored_parameters(through_the_unknown) == ("x", "y", "z", "FUNCTION")


@triton.jit
def write_both(x, y, N: tl.constexpr):
    r = tl.arange(0, N)
    tl.store(x + r, r * 1.0)
    tl.debug_barrier()
    tl.store(y + r, tl.load(y + r) + 10)


def test_tensors_that_overlap_do_so_inside_of_torch_compile_too() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        write_both[(1,)](x, x[4:20], 16)
        return x + 0

    compiled = torch.compile(function, backend="aot_eager")
    assert torch.equal(compiled(torch.zeros(20)), function(torch.zeros(20)))


def test_a_launch_inside_of_torch_compile_breaks_no_graph() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        size = x.numel()
        add[lambda meta: (triton.cdiv(size, meta["BLOCK"]),)](x * 2, y, out, size, BLOCK=128)
        return torch.relu(out) + 1

    compiled = torch.compile(function, backend="weft", fullgraph=True)
    for size in (300, 77):
        x, y = torch.randn(size), torch.randn(size)
        torch.testing.assert_close(compiled(x, y), torch.relu(x * 2 + y) + 1)


@triton.jit
def with_names_of_python(len, int, tuple: tl.constexpr, type: tl.constexpr):
    tl.store(len, int + tuple if type == "sum" else int)


def test_a_parameter_may_be_called_like_a_function_of_python() -> None:
    x = torch.zeros(1)
    with_names_of_python[(1,)](x, 3, 4, "sum")
    with_names_of_python[(1,)](x, 5, 4, "sum")
    assert x.item() == 9


@triton.jit
def printing(x_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    tl.device_print("value", x)
    tl.device_print("both:", x, x + 1)
    tl.device_print("here")


def test_values_are_printed_as_triton_prints_them(capfd: pytest.CaptureFixture[str]) -> None:
    printing[(1,)](torch.tensor([7, 8], dtype=torch.int32), 2)
    assert capfd.readouterr().out.splitlines() == [
        "pid (0, 0, 0) idx (0) value: 7",
        "pid (0, 0, 0) idx (1) value: 8",
        "pid (0, 0, 0) idx (0) both: (operand 0) 7",
        "pid (0, 0, 0) idx (1) both: (operand 0) 8",
        "pid (0, 0, 0) idx (0) both: (operand 1) 8",
        "pid (0, 0, 0) idx (1) both: (operand 1) 9",
        "pid (0, 0, 0) here",
    ]
