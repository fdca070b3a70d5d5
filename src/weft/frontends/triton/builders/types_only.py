"""A builder that makes nothing: the body of a loop or a branch is evaluated on it to learn the types of its names.

The semantic layer keeps types and shapes itself, so handles without meaning are enough. Both builders profit: nothing
has to be taken back from the IR, and NumPy touches no memory for a branch that is not taken.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from weft.frontends.triton.builders import builder
from weft.frontends.triton.builders.builder import Handle, Shape


class TypesOnly:
    """Gives `NOTHING` for every value."""

    def shape_of(self, value: Handle) -> Shape:
        return ()

    def known(self, value: Handle) -> None:
        return None

    def show(self, value: Handle) -> None:
        return None

    def reduce(self, values: Sequence[Handle], *rest: Any) -> list[Handle]:
        return [NOTHING] * len(values)

    scan = reduce

    def branch(
        self, condition: Handle, then: Callable[[], Sequence[Handle]], otherwise: Callable[[], Sequence[Handle]]
    ) -> list[Handle]:
        results = [NOTHING] * len(then())
        otherwise()
        return results

    def for_loop(self, lower: Handle, upper: Handle, step: Handle, dtype: Any, carried: Sequence[Handle], body: Any):
        return list(body(NOTHING, [*carried]))

    def while_loop(self, carried: Sequence[Handle], condition: Any, body: Any) -> list[Handle]:
        condition([*carried])
        return list(body([*carried]))

    def __getattr__(self, name: str) -> Callable[..., Handle]:
        if name not in _ONE_VALUE:
            raise AttributeError(name)
        return _nothing


class _Nothing:
    def __repr__(self) -> str:
        return "nothing"


NOTHING = _Nothing()


def _nothing(*_: Any, **__: Any) -> Handle:
    return NOTHING


_ONE_VALUE = {name for name in vars(builder.Builder) if not name.startswith("_")}


def is_types_only() -> bool:
    """Is nothing but types of interest now?"""
    return isinstance(builder.current.get(), TypesOnly)


@contextmanager
def types_only() -> Generator[None]:
    """Evaluate for the types: what is done meanwhile leaves no trace."""
    token = builder.current.set(TypesOnly())  # pyright: ignore[reportArgumentType]  (its __getattr__ is not seen)
    try:
        yield
    finally:
        builder.current.reset(token)
