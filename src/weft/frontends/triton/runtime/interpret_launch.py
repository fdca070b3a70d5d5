"""Launching interpreted kernels: arguments become values of the language, and programs run one after the other."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import index
from types import TracebackType
from typing import Any, cast

import numpy as np

from weft.frontends.triton.builders import builder
from weft.frontends.triton.builders.numpy_builder import NumpyBuilder
from weft.frontends.triton.builders.watched_memory import Memory
from weft.frontends.triton.errors import Frame, KernelError, KernelTypeError
from weft.frontends.triton.language import types
from weft.frontends.triton.language.casting import converted
from weft.frontends.triton.language.constants import constexpr
from weft.frontends.triton.language.descriptors import tensor_descriptor
from weft.frontends.triton.language.promotion import constant, to_tensor
from weft.frontends.triton.language.types import block_type, dtype, pointer_type
from weft.frontends.triton.language.values import tensor, tuple_of
from weft.frontends.triton.runtime.memory_places import address_of
from weft.ir.types import dtype_of_numpy


def interpret_launch(
    function: Callable[..., Any],
    grid: Sequence[int],
    arguments: Mapping[str, Any],
    constants: Collection[str] = (),
) -> None:
    """Run a kernel's Python function for every program of a grid.

    `arguments` holds every parameter by name; those named in `constants` are given to the kernel as they are.
    """
    x, y, z = (*map(int, grid), 1, 1)[:3]
    memory = Memory()
    memory.grid = (x, y, z)
    primitives = NumpyBuilder(memory)
    token = builder.current.set(primitives)
    try:
        values = {
            name: value if name in constants else as_value(name, value, memory, function.__annotations__.get(name))
            for name, value in arguments.items()
        }
        for k in range(z):
            for j in range(y):
                for i in range(x):
                    primitives.enter_program(i, j, k)
                    function(**values)
    except KernelError as error:
        add_frames(error)
        if error.__cause__ is None:
            # Triton's users find the message without its place in the cause.
            error.__cause__ = type(error)(error.message)
        raise
    finally:
        builder.current.reset(token)


def as_value(name: str, value: Any, memory: Memory, annotation: Any = None) -> Any:
    """An argument of a launch as a value of the language."""
    if isinstance(value, constexpr) or value is None or isinstance(value, (dtype, str)) or callable(value):
        return value
    if isinstance(value, (bool, int, float, np.number)):
        scalar = to_tensor(value.item() if isinstance(value, np.number) else value)
        wanted = _annotated(annotation)
        return scalar if wanted is None else converted(scalar, wanted, None)
    if isinstance(value, (tuple, list)):
        items = cast("Sequence[Any]", value)
        fields = getattr(items, "_fields", None)
        return tuple_of([as_value(f"{name}[{i}]", item, memory) for i, item in enumerate(items)], fields)
    if hasattr(value, "block_shape") and hasattr(value, "base"):
        return _as_descriptor(name, value, memory)
    if hasattr(value, "base") and hasattr(value, "dtype") and not hasattr(value, "__array__"):
        # A tensor that is looked at as another type: `triton.reinterpret`.
        return tensor(memory.add(name, value.base), pointer_type(value.dtype))
    element = element_of(value)
    if element is None:
        raise KernelTypeError(f"the argument {name} is a {type(value).__name__}: kernels take tensors and numbers")
    if hasattr(value, "data_ptr") and hasattr(value, "numel"):
        address_of(value, name)
    return tensor(memory.add(name, value), pointer_type(element))


def _as_descriptor(name: str, value: Any, memory: Memory) -> tensor_descriptor:
    base = as_value(name, value.base, memory)
    shape = [constant(index(size), types.int32) for size in value.shape]
    strides = [constant(index(stride), types.int64) for stride in value.strides]
    tile = block_type(base.dtype.element_ty, list(value.block_shape))
    return tensor_descriptor(base, shape, strides, tile, getattr(value, "padding", "zero"))


def _annotated(annotation: Any) -> dtype | None:
    if isinstance(annotation, str):
        annotation = getattr(types, annotation.rsplit(".", 1)[-1].strip("'\""), None)
    return annotation if type(annotation) is dtype else None


_OF_TORCH = {
    "float8_e4m3fn": "fp8e4nv",
    "float8_e5m2": "fp8e5",
    "float8_e4m3fnuz": "fp8e4b8",
    "float8_e5m2fnuz": "fp8e5b16",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float64": "fp64",
    "bool": "int1",
}


def element_of(value: Any) -> dtype | None:
    """The type of the elements of a torch tensor or a NumPy array."""
    if isinstance(value, np.ndarray):
        return types.OF_STORED[dtype_of_numpy(cast(Any, value).dtype)]
    name = str(getattr(value, "dtype", "")).removeprefix("torch.")
    name = _OF_TORCH.get(name, name)
    return dtype(name) if dtype.is_dtype(name) and hasattr(value, "data_ptr") else None


def add_frames(error: KernelError) -> None:
    """Say at which lines of the author's files an error was raised, innermost first."""
    if error.frames:
        return
    frames: list[Frame] = []
    traceback: TracebackType | None = error.__traceback__
    while traceback is not None:
        module = traceback.tb_frame.f_globals.get("__name__", "")
        if not module.startswith("weft."):
            frames.append(_frame(traceback))
        traceback = traceback.tb_next
    for frame in reversed(frames):
        error.add_frame(frame)


def _frame(traceback: TracebackType) -> Frame:
    code = traceback.tb_frame.f_code
    position = list(code.co_positions())[traceback.tb_lasti // 2]
    line = position[0] or traceback.tb_lineno
    text = linecache.getline(code.co_filename, line).rstrip("\n")
    same_line = position[1] == line
    column, end = position[2] or 0, (position[3] if same_line else None) or len(text)
    return Frame(code.co_filename, line, column, end, text, code.co_name)
