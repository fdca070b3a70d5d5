"""How far the memory of a kernel's pointers reaches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from weft.ir.types import Tensor, f32
from weft.runtime.cuda.device_program import _memory


@pytest.mark.parametrize(
    ("shape", "strides", "offset", "span"),
    [((2, 3), (3, 1), 0, (0, 24)), ((2, 3), (3, 1), 5, (20, 44)), ((4,), (-1,), 3, (0, 16)), ((0,), (1,), 0, (0, 0))],
)
def test_spans(shape: Any, strides: Any, offset: int, span: tuple[int, int]) -> None:
    buffer = SimpleNamespace(tensor=Tensor(f32, shape), layout=SimpleNamespace(strides=strides, offset=offset))
    plan: Any = SimpleNamespace(buffers=[buffer])
    step: Any = SimpleNamespace(buffers=(0,))
    assert _memory(plan, step, (0,), {}) == ((0, *span),)
