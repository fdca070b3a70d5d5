"""What a compiled function takes: names, types and symbolic sizes, checked against the arrays of a call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from weft.errors import DTypeError, GuardError, ShapeError
from weft.ir.expr import Expr, evaluate, symbols_of
from weft.ir.types import DType, Tensor
from weft.lower.steps import Plan


@dataclass(frozen=True)
class Signature:
    """The arguments of a function, in their order.

    `ranges` has the least and the greatest value that a symbolic size may have, `constants` the places of arguments
    that are the same in every call, and `replaced` those of arguments that are written over. `asks_sizes` says that
    the graph may not be right for all sizes that fit the arguments.
    """

    name: str
    names: tuple[str, ...]
    arguments: tuple[Tensor, ...]
    ranges: tuple[tuple[str, int, int | None], ...] = ()
    constants: tuple[int, ...] = ()
    replaced: tuple[int, ...] = ()
    asks_sizes: bool = False

    def check_type(self, place: int, dtype: DType) -> None:
        """Raise if an argument has not the type that the function was compiled for."""
        wanted = self.arguments[place].dtype
        if dtype != wanted:
            raise DTypeError(
                f"the argument {self.names[place]} of {self.name} is of type {wanted}, got {dtype}",
                hint="convert it, or compile the function for this type",
            )

    def unknown(self, symbols: Iterable[str]) -> list[str]:
        """Those symbols that are no argument's whole size, so that no shape tells their values."""
        sizes = {str(size) for argument in self.arguments for size in argument.shape if isinstance(size, Expr)}
        return sorted(set(symbols) - sizes)

    def sizes(self, shapes: Mapping[int, Sequence[int]], known: Mapping[str, int] | None = None) -> dict[str, int]:
        """The values of the symbolic sizes, by the shapes of arguments at their places, which have to fit them.

        Sizes that are made of symbols which neither these shapes nor `known` tell are not compared.
        """
        bound = dict(known or {})
        for place, shape in shapes.items():
            wanted = self.arguments[place].shape
            if len(wanted) != len(shape):
                raise self._misshapen(place, shape)
            for size, actual in zip(wanted, shape, strict=True):
                if isinstance(size, Expr) and str(size) in size.symbols:
                    bound.setdefault(str(size), actual)
        for place, shape in shapes.items():
            for size, actual in zip(self.arguments[place].shape, shape, strict=True):
                if symbols_of(size) <= bound.keys() and evaluate(size, bound) != actual:
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


def signature_of(plan: Plan, names: Sequence[str] = ()) -> Signature:
    """What a plan itself says of its arguments, whose buffers are its first ones; it knows no ranges of sizes."""
    count = len(plan.inputs) + len(plan.fixed)
    free = [place for place in range(count) if place not in plan.fixed]
    buffers = dict(zip(free, plan.inputs, strict=True)) | {place: place for place in plan.fixed}
    written = {plan.outputs[position] for position in plan.replacing}
    return Signature(
        plan.name,
        tuple(names) if len(names) == count else tuple(f"arg{place}" for place in range(count)),
        tuple(plan.buffers[buffers[place]].tensor for place in range(count)),
        constants=plan.fixed,
        replaced=tuple(place for place in free if buffers[place] in written),
    )
