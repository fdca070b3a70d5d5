"""Values in the order in which a walk meets them: each is told by its number, so that what is shared is seen to be."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any


class NumberedValues:
    """What a walk has met. Whoever goes through `values` meets those that are told meanwhile, too."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.values: list[Any] = []

    def is_atom(self, value: object) -> bool:
        """Whether a value is told by what it is: it holds no others, and nobody can change it."""
        raise NotImplementedError

    def told(self, value: object) -> Hashable:
        if self.is_atom(value):
            return type(value), repr(value)
        number = self.numbers.setdefault(id(value), len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number

    def all_told(self, values: Iterable[object]) -> tuple[Hashable, ...]:
        return tuple(self.told(each) for each in values)
