"""Ways to run a kernel in tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from weft.frontends.triton.compile_function import build_kernel
from weft.frontends.triton.constants import constexpr
from weft.frontends.triton.interpret_launch import interpret_launch
from weft.frontends.triton.jit import JITFunction


def _evaluate(kernel: JITFunction, *args: Any, grid: Sequence[int] = (1,), **keywords: Any) -> None:
    """The text of a kernel on NumPy, for every program of a grid: no compiler is behind it."""
    bound = kernel.signature.bind(*args, **keywords)
    bound.apply_defaults()
    constants = {parameter.name for parameter in kernel.params if parameter.is_constexpr}
    given = {name: constexpr(value) if name in constants else value for name, value in bound.arguments.items()}

    def program(**values: Any) -> None:
        build_kernel(kernel, values)

    program.__annotations__.clear()
    interpret_launch(program, grid, given)


def _launch(kernel: JITFunction, *args: Any, grid: Sequence[int] = (1,), **keywords: Any) -> None:
    kernel[tuple(grid)](*args, **keywords)


@pytest.fixture(params=["evaluated", "compiled"])
def run(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Runs a kernel by its text: on NumPy, or compiled."""
    return {"evaluated": _evaluate, "compiled": _launch}[request.param]
