"""Ways to run a kernel in tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.frontends.triton.compiler.compile_function import build_kernel
from weft.frontends.triton.language.constants import constexpr
from weft.frontends.triton.runtime.interpret_launch import interpret_launch
from weft.frontends.triton.runtime.jit import JITFunction

sys.path.append(str(Path(__file__).parents[2] / "backends" / "nvidia"))
from emulation import emulate


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


def _launch_on_gpu(kernel: JITFunction, *args: Any, grid: Sequence[int] = (1,), **keywords: Any) -> None:
    """The same with all arrays copied to the GPU and back."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    copies: list[tuple[np.ndarray, Any]] = []

    def moved(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            copies.append((value, torch.from_numpy(value).cuda()))
            return copies[-1][1]
        return tuple(map(moved, value)) if type(value) is tuple else value

    kernel[tuple(grid)](*map(moved, args), **{name: moved(value) for name, value in keywords.items()})
    for array, tensor in copies:
        array[...] = tensor.cpu().numpy()


WAYS = {"evaluated": _evaluate, "compiled": _launch, "emulated": emulate, "on a GPU": _launch_on_gpu}


@pytest.fixture(params=["evaluated", "compiled", "emulated", pytest.param("on a GPU", marks=pytest.mark.gpu)])
def run(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Runs a kernel by its text: on NumPy, compiled, compiled for a GPU and run by a machine for PTX, or on a GPU."""
    return WAYS[request.param]
