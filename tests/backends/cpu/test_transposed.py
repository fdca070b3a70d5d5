"""Loops that read along one axis and write along another: which turn squares of elements in registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import weft.ops  # noqa: F401  (fills the registry)
from tests.seeds import generator
from weft.backends.cpu.codegen import emit_kernel
from weft.backends.cpu.target import host_target
from weft.backends.llvm.builder import Module
from weft.ir.types import Tensor, dtype_of_numpy, i8
from weft.testing.kernels import CpuModule, Trial, group_of


def text_and_result(arrays: Sequence[np.ndarray], body: Callable[..., Any]) -> tuple[str, np.ndarray]:
    """The code of a group, as LLVM IR, and what it gives."""
    trial = Trial.of(group_of([Tensor(dtype_of_numpy(a.dtype), a.shape) for a in arrays], body), "k")
    module = Module(host_target().triple)
    for call in trial.lowered.calls:
        emit_kernel(module, call.kernel.op, host_target())
    (result,) = CpuModule([trial]).run(trial, arrays)
    return str(module), result


def floats(*shape: int) -> np.ndarray:
    return generator().standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("columns", [24, 27])
def test_rows_become_columns_in_squares(columns: int) -> None:
    x = floats(40, columns)
    text, y = text_and_result([x], lambda b, x: b.permute(x, dims=(1, 0)))
    assert "shufflevector" in text
    np.testing.assert_array_equal(y, x.T)


@pytest.mark.parametrize("rows", [40, 43, 5])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.bool_])
def test_bytes_become_columns_in_words(rows: int, dtype: Any) -> None:
    """Four neighbours of what is written are one word: bytes were shuffled and written one by one."""
    x = generator().integers(0, 2 if dtype is np.bool_ else 256, (rows, 27)).astype(np.uint8).astype(dtype)
    text, y = text_and_result([x], lambda b, x: b.permute(x, dims=(1, 0)))
    assert "store i32" in text and "shufflevector <" not in text
    np.testing.assert_array_equal(y, x.T)


def test_numbers_become_columns_of_bytes_in_words() -> None:
    x = floats(43, 27) * 90
    text, y = text_and_result(
        [x], lambda b, x: b.permute(b.cast(b.clamp(x, low=-128.0, high=127.0), dtype=i8), dims=(1, 0))
    )
    assert "store i32" in text
    np.testing.assert_array_equal(y, np.clip(x, -128, 127).astype(np.int8).T)


def test_whole_squares_leave_no_lines() -> None:
    """Where four divides the lines there is no code for what is left of them."""
    whole, _ = text_and_result([floats(40, 24)], lambda b, x: b.permute(x, dims=(1, 0)))
    rest, _ = text_and_result([floats(43, 24)], lambda b, x: b.permute(x, dims=(1, 0)))
    assert whole.count("phi") < rest.count("phi")


@pytest.mark.parametrize("rows", [(24, 24), (13, 30)])
def test_joined_columns_choose_nothing(rows: tuple[int, ...]) -> None:
    """Each part of what is written comes from one tensor: its loop reads no other, and selects nothing."""
    arrays = [floats(each, 48) for each in rows]
    text, y = text_and_result(arrays, lambda b, *xs: b.permute(b.concat(*xs, dim=0), dims=(1, 0)))
    assert "select" not in text
    np.testing.assert_array_equal(y, np.concatenate(arrays).T)


def test_indices_of_rows_are_no_reason_to_turn() -> None:
    """A row's index is the same all along the row, which is written as it is read: through one address at a time."""
    x, index = floats(20, 40, 3), generator().integers(-40, 40, 64)
    text, y = text_and_result([x, index], lambda b, x, index: b.take(b.permute(x, dims=(2, 1, 0)), index, dim=1))
    assert "<4 x i32> <i32 0, i32 1, i32 4, i32 5>" not in text
    np.testing.assert_array_equal(y, x.transpose(2, 1, 0)[:, index])
