"""The index arithmetic of reshapes: where an element of the reshaped tensor lies in the original."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from weft.ir.expr import Size, floordiv, mod, product


def reshape_index(index: Sequence[Size], shape: Sequence[Size], source: Sequence[Size]) -> list[Size]:
    """The index into `source` of the element that stands at `index` of `shape`.

    Dimensions are matched from the left in the shortest runs of equal product, so that `[s0, 768] → [s0, 12, 64]`
    divides within the second dimension only, and sizes need to be compared, never divided.
    """
    if 0 in shape or 0 in source:
        # No element is ever asked for.
        return [0] * len(source)
    result: list[Size] = []
    for here, there in matching_runs(shape, source):
        linear: Size = 0
        for d in here:
            linear = linear * shape[d] + index[d]
        sizes = [source[d] for d in there]
        first = next((position for position, size in enumerate(sizes) if size != 1), 0)
        for position, size in enumerate(sizes):
            digit = floordiv(linear, product(sizes[position + 1 :]))
            result.append(digit if position == first else mod(digit, size))
    return result


def matching_runs(shape: Sequence[Size], source: Sequence[Size]) -> Sequence[tuple[Sequence[int], Sequence[int]]]:
    """Pairs of runs of dimensions of both shapes with equal products, as short as they can be."""
    return _matching_runs(tuple(shape), tuple(source))


@lru_cache(maxsize=1024)  # layers repeat the same reshapes
def _matching_runs(
    shape: tuple[Size, ...], source: tuple[Size, ...]
) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    runs: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    i = j = 0
    while i < len(shape) or j < len(source):
        here: list[int] = []
        there: list[int] = []
        left: Size = 1
        right: Size = 1
        while True:
            if (here or there) and left == right:
                break
            # Take from the side whose product is smaller where that is known, else from the side that divides.
            take_left = i < len(shape) and (j >= len(source) or _behind(left, right, bool(here), bool(there)))
            if take_left:
                left, i = left * shape[i], i + 1
                here.append(i - 1)
            elif j < len(source):
                right, j = right * source[j], j + 1
                there.append(j - 1)
            else:
                break
        runs.append((tuple(here), tuple(there)))
    return tuple(runs)


def _behind(left: Size, right: Size, any_left: bool, any_right: bool) -> bool:
    if isinstance(left, int) and isinstance(right, int):
        return left < right or (left == right and not any_left)
    if not any_left or not any_right:
        return not any_left
    return floordiv(right, left) * left == right
