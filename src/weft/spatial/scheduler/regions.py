"""Which bank of which half each tensor has, so that what a layer reads and writes at once is apart.

Two tensors that are read in one cycle must not share slices, so they are in different halves; one that is read and one
that is written may share them, in different banks. Chips that share a memory map add up what they ask for. Tensors are
given regions one after another, those with the fewest left first, and taken back where one has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Region = tuple[int, int]
"""A half and a bank."""
Apart = Mapping[int, Sequence[tuple[int, bool]]]
"""For each tensor the others that are apart from it; True where they are in different halves."""
_MOST_STEPS = 20_000


def assign_regions(apart: Apart, words: Mapping[int, int], banks: int) -> dict[int, Region] | None:
    """A region for each tensor, emptier ones first; None where none was found."""
    every = [(half, bank) for half in (0, 1) for bank in range(banks)]
    near: dict[int, dict[int, bool]] = {number: {} for number in apart}
    for number, others in apart.items():
        for other, wholly in others:
            if other != number and other in near:
                near[number][other] = near[number].get(other, False) or wholly
                near[other][number] = near[number][other] or near[other].get(number, False)
    chosen: dict[int, Region] = {}
    filled = dict.fromkeys(every, 0)
    steps = 0

    def allowed(number: int) -> list[Region]:
        taken = [(chosen[other], wholly) for other, wholly in near[number].items() if other in chosen]
        return [
            region
            for region in every
            if all(region[0] != other[0] if wholly else region != other for other, wholly in taken)
        ]

    # One after another without recursion: for each tensor that was given a region, what is left to try.
    trail: list[tuple[int, list[Region]]] = []
    while len(chosen) < len(near):
        steps += 1
        if steps > _MOST_STEPS:
            return None
        left = {number: allowed(number) for number in near if number not in chosen and _touched(near[number], chosen)}
        if not left:
            number = max((each for each in near if each not in chosen), key=lambda each: len(near[each]))
            left = {number: every}
        number = min(left, key=lambda each: (len(left[each]), -len(near[each]), each))
        options = sorted(left[number], key=lambda region: filled[region])
        while not options:
            if not trail:
                return None
            number, options = trail.pop()
            filled[chosen.pop(number)] -= words[number]
        chosen[number] = options.pop(0)
        filled[chosen[number]] += words[number]
        trail.append((number, options))
    return chosen


def _touched(near: Mapping[int, bool], chosen: Mapping[int, Region]) -> bool:
    return any(other in chosen for other in near)
