"""What a compiled function takes: names, types and symbolic sizes, checked against the arrays of a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.errors import DTypeError, GuardError, ShapeError
from weft.ir.expr import Expr, evaluate
from weft.ir.types import DType, Tensor


@dataclass(frozen=True)
class Signature:
    """The arguments of a function, in their order.

    `ranges` has the least and the greatest value that a symbolic size may have, `constants` the places of arguments
    that are the same in every call, and `replaced` those of arguments that are written over.
    """

    name: str
    names: tuple[str, ...]
    arguments: tuple[Tensor, ...]
    ranges: tuple[tuple[str, int, int | None], ...] = ()
    constants: tuple[int, ...] = ()
    replaced: tuple[int, ...] = ()

    def check_type(self, place: int, dtype: DType) -> None:
        """Raise if an argument has not the type that the function was compiled for."""
        wanted = self.arguments[place].dtype
        if dtype != wanted:
            raise DTypeError(
                f"the argument {self.names[place]} of {self.name} is of type {wanted}, got {dtype}",
                hint="convert it, or compile the function for this type",
            )

    def sizes(self, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
        """The values of the symbolic sizes, by the shapes of all arguments, which have to fit them."""
        bound: dict[str, int] = {}
        for place, shape in enumerate(shapes):
            wanted = self.arguments[place].shape
            if len(wanted) != len(shape):
                raise self._misshapen(place, shape)
            for size, actual in zip(wanted, shape, strict=True):
                if isinstance(size, Expr) and str(size) in size.symbols:
                    bound.setdefault(str(size), actual)
        for place, shape in enumerate(shapes):
            if any(evaluate(size, bound) != n for size, n in zip(self.arguments[place].shape, shape, strict=True)):
                raise self._misshapen(place, shape)
        for name, least, most in self.ranges:
            size = bound.get(name, least)
            if size < least or (most is not None and size > most):
                raise GuardError(
                    f"{self.name} was compiled for {name} from {least} to {most}, got {size}",
                    hint="compile it for this size",
                )
        return bound

    def _misshapen(self, place: int, shape: Sequence[int]) -> ShapeError:
        wanted = ", ".join(map(str, self.arguments[place].shape))
        return ShapeError(
            f"the argument {self.names[place]} of {self.name} has the shape ({wanted}), got {tuple(shape)}",
            hint="sizes with one name are equal in all arguments",
        )
