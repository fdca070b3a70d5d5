"""Complex tensors, which the graph dialect does not have: a pair of real ones, or one with a last dimension of two.

Inside a function a complex value is a pair; where it comes in, goes out or meets an opaque call, its parts alternate in
memory as in torch's own complex tensors, so that nothing is copied there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from xdsl.ir import SSAValue

from weft.errors import UnsupportedError
from weft.frontends.torch.importer.builder import ImportBuilder
from weft.ir.expr import Expr
from weft.ir.types import DType, Tensor


def interleaved_type(part: Tensor) -> Tensor:
    """The type of the tensor in which the parts alternate."""
    return Tensor(part.dtype, (*part.shape, 2))


@dataclass
class Complex:
    """A complex value in at least one of its forms; the other one is made when it is first asked for."""

    builder: ImportBuilder
    parts: tuple[SSAValue, SSAValue] | None = None
    joined: SSAValue | None = None

    @property
    def real(self) -> SSAValue:
        return self._parts()[0]

    @property
    def imag(self) -> SSAValue:
        return self._parts()[1]

    def _parts(self) -> tuple[SSAValue, SSAValue]:
        if self.parts is None or not all(self.builder.exists(part) for part in self.parts):
            if self.joined is None:
                raise UnsupportedError("a complex value that was taken back")
            self.parts = self._part(self.joined, 0), self._part(self.joined, 1)
        return self.parts

    def _part(self, joined: SSAValue, which: int) -> SSAValue:
        b, shape = self.builder, self.builder.shape(joined)[:-1]
        starts = (*(0 for _ in shape), which)
        part = b.emit("slice", joined, starts=starts, shape=(*shape, 1), steps=(1,) * len(starts))
        return b.view(part, shape)

    @property
    def interleaved(self) -> SSAValue:
        """The value as a real tensor with a last dimension of two."""
        if self.joined is not None and self.builder.exists(self.joined):
            return self.joined
        b, (real, imag) = self.builder, self._parts()
        rank = b.rank(real)
        joined: SSAValue = b.emit("concat", b.unsqueeze(real, rank), b.unsqueeze(imag, rank), dim=rank)
        self.joined = joined
        return joined

    @property
    def dtype(self) -> DType:
        """The type of the parts."""
        return self.builder.dtype((self.parts or (self.joined,))[0])  # pyright: ignore[reportArgumentType]

    def to(self, dtype: DType) -> Complex:
        """The value with parts of another type."""
        if self.dtype == dtype:
            return self
        return Complex(self.builder, (self.builder.to(self.real, dtype), self.builder.to(self.imag, dtype)))


def lifted(b: ImportBuilder, value: Complex | SSAValue | complex | Expr, dtype: DType) -> Complex:
    """A real tensor or a number as a complex value with parts of a type."""
    if isinstance(value, Complex):
        return value.to(dtype)
    if isinstance(value, SSAValue):
        return Complex(b, (b.to(value, dtype), b.expand(b.number(0.0, dtype), b.shape(value))))
    if isinstance(value, Expr):
        return Complex(b, (b.number(value, dtype), b.number(0.0, dtype)))
    number = complex(value)
    return Complex(b, (b.number(number.real, dtype), b.number(number.imag, dtype)))


def resolved(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's memory as it is read, neither conjugated nor negated; that of a complex one as a real tensor."""
    read = tensor.resolve_conj().resolve_neg()
    return torch.view_as_real(read) if read.is_complex() else read
