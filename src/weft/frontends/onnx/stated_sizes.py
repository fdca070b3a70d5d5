"""The sizes that an artifact of an ONNX model is made for: each that the model leaves open is stated, or stays open.

batch=1               one number
batch=2..64           a symbol of the artifact, from 2 to 64
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from keyword import iskeyword
from typing import TypeAlias

from weft.diagnostics import nearest
from weft.errors import UnsupportedError
from weft.frontends.onnx.call import Mistake
from weft.frontends.onnx.dtypes import STRINGS
from weft.frontends.onnx.model import ModelInput
from weft.ir.expr import Size, symbol

_UNBOUNDED = 1 << 12
"""The size at which a model is looked at where a range has no end."""
_NUMBERS = re.compile(r"(\d+)")
_BETWEEN = 3
"""How often a model is looked at between the ends of its ranges."""


@dataclass(frozen=True)
class SizeRange:
    """A size that stays open; 0 and 1 are other programs, as they are broadcast, or nothing."""

    least: int
    most: int | None = None

    def __post_init__(self) -> None:
        if self.least < 2 or (self.most is not None and self.most <= self.least):
            raise UnsupportedError(
                f"a size cannot stay open from {self.least} to {self.most}",
                hint="ranges begin at 2 and have several sizes: 2..64, or 2.. without an end; 1 is another program",
            )

    @property
    def last(self) -> int:
        return max(_UNBOUNDED, 2 * self.least) if self.most is None else self.most


Stated: TypeAlias = int | SizeRange


def open_size(given: ModelInput, place: int) -> str:
    """What a size that an input leaves open is called: by the model, or by the input and the place; else nothing."""
    size = (given.type.shape or ())[place]
    return size if isinstance(size, str) else f"{given.name}.{place}" if size is None else ""


def check_sizes(inputs: Sequence[ModelInput], sizes: Mapping[str, Stated]) -> None:
    """Refuse inputs that no artifact takes, sizes that the model does not leave open, and open ones without a size."""
    for given in inputs:
        dtype = given.type.dtype
        if given.type.kind != "tensor" or dtype is None or dtype == STRINGS or given.type.shape is None:
            raise UnsupportedError(
                f"the input {given.name!r} is {given.type}",
                hint="an artifact takes tensors of numbers, whose rank is stated",
            )
    found = (open_size(each, place) for each in inputs for place in range(len(each.type.shape or ())))
    names = [name for name in dict.fromkeys(found) if name]
    if unknown := sorted(set(sizes) - set(names)):
        told = f"it leaves open {', '.join(names)}" if names else "it states all of its sizes"
        raise UnsupportedError(f"the model has no open size {unknown[0]}{nearest(unknown[0], names)}", hint=told)
    if missing := [name for name in names if name not in sizes]:
        several, are = ("sizes", "are") if len(missing) > 1 else ("size", "is")
        types = ", ".join(f"{each.name}: {each.type}" for each in inputs)
        raise UnsupportedError(
            f"the model takes ({types}), whose {several} {', '.join(missing)} {are} open",
            hint=f"say how large: {' '.join(f'--size {name}=1' for name in missing)}; "
            f"or between which sizes to stay open: --size {missing[0]}=2..64",
        )


def places_to_join(ranges: Mapping[str, SizeRange]) -> tuple[dict[str, int], dict[str, int]]:
    """Two sizes for each range, with no common factors where there is room: what two imports are joined at."""
    used: set[int] = set()
    first: dict[str, int] = {}
    second: dict[str, int] = {}
    for name, each in ranges.items():
        candidates = sorted(
            range(each.least, min(each.last, each.least + 400) + 1), key=lambda n: (not _is_prime(n), n)
        )
        free = [size for size in candidates if size not in used] or candidates
        first[name] = free[0]
        second[name] = next((size for size in free[1:]), candidates[-1 if candidates[-1] != free[0] else 0])
        used |= {first[name], second[name]}
    return first, second


def places_to_check(ranges: Mapping[str, SizeRange]) -> list[dict[str, int]]:
    """The corners of the ranges, and some sizes between them."""
    corners = product(*((each.least, each.last) for each in ranges.values()))
    found = [dict(zip(ranges, corner, strict=True)) for corner in list(corners)[:16]]
    for number in range(1, _BETWEEN + 1):
        step = number / (_BETWEEN + 1)
        between = {
            # Odd and even ones, in other parts of each range.
            name: each.least + int((each.last - each.least) * (step if place % 2 else 1 - step))
            for place, (name, each) in enumerate(ranges.items(), number)
        }
        found.append(between)
    for name, each in ranges.items():
        for size in (each.least + 1, each.last - 1):
            found.append({other: ranges[other].least for other in ranges} | {name: size})
    return [dict(each) for each in dict.fromkeys(tuple(each.items()) for each in found)]


def _is_prime(number: int) -> bool:
    return all(number % each for each in range(2, int(number**0.5) + 1))


def symbols_for(names: Iterable[str]) -> dict[str, Size]:
    """A symbol for each size, by its own name where that is a word."""
    found: dict[str, Size] = {}
    for name in names:
        word = re.sub(r"\W", "_", name, flags=re.ASCII)
        if not word.isidentifier() or iskeyword(word) or word in ("min", "max"):
            word = f"size_{word}"
        while any(str(each) == word for each in found.values()):
            word += "_"
        found[name] = symbol(word)
    return found


def merged(first: Mistake, second: Mistake) -> Mistake:
    """A mistake as it is told at any size: numbers that depend on sizes are left out."""
    own, other = _NUMBERS.split(first.message), _NUMBERS.split(second.message)
    if len(own) != len(other):
        return first
    return replace(first, message="".join(a if a == b else "?" for a, b in zip(own, other, strict=True)))
