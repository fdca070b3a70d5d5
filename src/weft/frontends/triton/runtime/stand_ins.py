"""What stands for a tensor at a launch: a type where a kernel is only compiled, or the same bits as another type."""

# Arguments may be anything, and torch types only a part of what it has.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

from weft.frontends.triton.errors import ArgumentError


class MockTensor:
    """Stands for a tensor of an element type where a kernel is only compiled: `kernel.warmup(torch.float32, ...)`."""

    def __init__(self, dtype: Any, shape: list[int] | None = None) -> None:
        self.dtype = dtype
        self.shape = shape or [1]

    @staticmethod
    def wrap_dtype(arg: Any) -> Any:
        """A torch element type as a tensor of it."""
        kind = type(arg)
        return MockTensor(arg) if kind.__name__ == "dtype" and kind.__module__ == "torch" else arg

    def stride(self) -> tuple[int, ...]:
        strides = [1]
        for size in reversed(self.shape[1:]):
            strides.append(strides[-1] * size)
        return tuple(reversed(strides))

    @staticmethod
    def data_ptr() -> int:
        return 0


class TensorWrapper:
    """A tensor whose elements are to be taken as another type of the same width."""

    def __init__(self, base: Any, dtype: Any) -> None:
        self.base, self.dtype = base, dtype
        self.data, self.device, self.shape = base.data, base.device, base.shape

    def data_ptr(self) -> int:
        return self.base.data_ptr()

    def stride(self, *args: Any) -> Any:
        return self.base.stride(*args)

    def element_size(self) -> int:
        return self.base.element_size()

    def cpu(self) -> TensorWrapper:
        return TensorWrapper(self.base.cpu(), self.dtype)

    def copy_(self, other: TensorWrapper) -> None:
        self.base.copy_(other.base)

    def clone(self) -> TensorWrapper:
        return TensorWrapper(self.base.clone(), self.dtype)

    def to(self, device: Any) -> TensorWrapper:
        return TensorWrapper(self.base.to(device), self.dtype)

    def new_empty(self, sizes: Any) -> TensorWrapper:
        return TensorWrapper(self.base.new_empty(sizes), self.dtype)

    def __str__(self) -> str:
        return f"TensorWrapper[{self.dtype}]({self.base})"


def reinterpret(tensor: Any, dtype: Any) -> Any:
    """The same memory with elements of another type: unsigned integers, or 8-bit floats that torch does not have."""
    if isinstance(tensor, TensorWrapper):
        return tensor.base if dtype == tensor.base.dtype else TensorWrapper(tensor.base, dtype)
    if hasattr(tensor, "data_ptr"):
        return TensorWrapper(tensor, dtype)
    raise ArgumentError(f"a {type(tensor).__qualname__} cannot be reinterpreted", hint="pass a tensor")
