"""Facts of the numbers in a tile, and what arithmetic makes of them: the rules of `axis_facts`.

Along an axis a tile is cut into runs of a power of two of elements, from its first on:

    contiguity     in each run of so many elements every one is the one before plus 1
    divisibility   the first of each such run is a multiple of this (a power of two)
    constancy      in each run of so many elements all are equal
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from weft.ir.types import DType

MOST = 1 << 30
"""What 0 is divided by."""


@dataclass(frozen=True)
class Facts:
    """What is known of a tile; a scalar has one axis of size 1."""

    contiguity: tuple[int, ...]
    divisibility: tuple[int, ...]
    constancy: tuple[int, ...]
    constant: int | None = None
    natural: bool = False
    """No number of it is negative."""

    @classmethod
    def unknown(cls, rank: int) -> Facts:
        ones = (1,) * max(rank, 1)
        return cls(ones, ones, ones)

    @property
    def divisor(self) -> int:
        """What all elements are multiples of."""
        return max((d for c, d in zip(self.contiguity, self.divisibility, strict=True) if c == 1), default=1)

    def met(self, other: Facts) -> Facts:
        """What holds of both."""
        contiguity = least(self.contiguity, other.contiguity)
        return Facts(
            contiguity,
            least(starting(self, contiguity), starting(other, contiguity)),
            least(self.constancy, other.constancy),
            self.constant if self.constant == other.constant else None,
            self.natural and other.natural,
        )


def least(*lists: Sequence[int]) -> tuple[int, ...]:
    return tuple(min(each) for each in zip(*lists, strict=True))


def starting(facts: Facts, contiguity: Sequence[int]) -> tuple[int, ...]:
    """What the first of shorter runs is divided by."""
    pairs = zip(facts.contiguity, facts.divisibility, contiguity, strict=True)
    return tuple(min(d, short) if short < own else d for own, d, short in pairs)


def power_of(number: int) -> int:
    """The largest power of two that divides a number."""
    return min(number & -number, MOST) if number else MOST


def longest_run(size: int) -> int:
    """The longest runs that an axis is cut into without a rest."""
    return size & -size


def cast_facts(x: Facts, source: DType, target: DType) -> Facts:
    """The numbers of an integer type in another one."""
    if target.bits >= source.bits:
        # What is unsigned may have wrapped around on the way.
        wrapped = source.kind == "uint" and target.bits > source.bits
        whole = Facts((1,) * len(x.constancy), (x.divisor,) * len(x.constancy), x.constancy, x.constant, True)
        return whole if wrapped else replace(x, natural=x.natural or source.kind == "uint")
    limit = 1 << (target.bits - 1)
    return replace(x, divisibility=tuple(min(d, limit) for d in x.divisibility), constant=None, natural=False)


def sum_facts(function: str, x: Facts, y: Facts) -> Facts:
    """x + y or x - y: one runs on while the other stays."""
    contiguity = least(x.contiguity, y.constancy)
    if function == "add":
        other = least(x.constancy, y.contiguity)
        contiguity = tuple(max(pair) for pair in zip(contiguity, other, strict=True))
    divisibility = least(starting(x, contiguity), starting(y, contiguity))
    # A run of one operand may be longer than its partner stays: it then starts anew within.
    natural = function == "add" and x.natural and y.natural
    constant = None
    if x.constant is not None and y.constant is not None:
        constant = x.constant + y.constant if function == "add" else x.constant - y.constant
    return Facts(contiguity, divisibility, least(x.constancy, y.constancy), constant, natural)


def product_facts(x: Facts, y: Facts) -> Facts:
    if y.constant == 1:
        return x
    if x.constant == 1:
        return y
    rank = len(x.constancy)
    own = [[d if c == 1 else 1 for c, d in zip(f.contiguity, f.divisibility, strict=True)] for f in (x, y)]
    divisibility = tuple(min(MOST, max(a, x.divisor) * max(b, y.divisor)) for a, b in zip(*own, strict=True))
    constant = x.constant * y.constant if x.constant is not None and y.constant is not None else None
    return Facts((1,) * rank, divisibility, least(x.constancy, y.constancy), constant, x.natural and y.natural)


def quotient_facts(x: Facts, divisor: int, constancy: tuple[int, ...]) -> Facts:
    """Numbers that follow one another give the same quotient, from one multiple of the divisor to the next."""
    power = power_of(divisor)
    found: list[tuple[int, int]] = []
    for run, first, same in zip(x.contiguity, x.divisibility, constancy, strict=True):
        whole = divisor == power and first % power == 0
        stays = min(run, first, power) if run > 1 else same
        found.append((max(same, stays), first // power if whole and run <= power else 1))
    runs, divisors = zip(*found, strict=True)
    return Facts((1,) * len(constancy), tuple(divisors), tuple(runs), None, x.natural and divisor > 0)


def rest_facts(x: Facts, y: Facts) -> Facts:
    """Numbers that follow one another do so as remainders, from one multiple of the divisor to the next."""
    contiguity: list[int] = []
    divisibility: list[int] = []
    for run, first, same, divisor in zip(x.contiguity, x.divisibility, y.constancy, y.divisibility, strict=True):
        contiguity.append(min(run, first, same, y.divisor if y.divisor > 1 else divisor) if run > 1 else 1)
        divisibility.append(min(first, y.divisor, MOST if contiguity[-1] == run else contiguity[-1]))
    return Facts(tuple(contiguity), tuple(divisibility), least(x.constancy, y.constancy), None, True)


def compared_constancy(x: Facts, y: Facts, constancy: tuple[int, ...]) -> tuple[int, ...]:
    """x < y where x runs on and y stays: it changes only where x passes a multiple of what y is one of."""
    result: list[int] = []
    for run, first, same, plain in zip(x.contiguity, x.divisibility, y.constancy, constancy, strict=True):
        result.append(max(plain, min(run, first, same, y.divisor)))
    return tuple(result)
