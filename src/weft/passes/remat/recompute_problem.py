"""What there is to decide between a forward and a backward pass: each value is kept, computed again, or not needed.

A value that the backward reads must be there: kept, at the price of its bytes, or computed again, at the price of its
work, from values that are there. `Choice` is an answer; how answers are found is in `minimum_cut` and `exact_choice`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property


@dataclass(frozen=True)
class Value:
    """A value of the forward pass."""

    bytes: int
    """What it takes to keep it; arguments take nothing, as their caller holds them."""
    work: int
    """What it takes to compute it again, in bytes moved, or in arithmetic worth as much."""
    operands: tuple[int, ...] = ()
    """The values that it is computed from, which stand before it."""
    is_read: bool = False
    """Whether the backward reads it."""
    can_be_kept: bool = True
    can_be_computed_again: bool = True


@dataclass(frozen=True)
class Choice:
    """What is kept and what is computed again."""

    kept: frozenset[int]
    computed: frozenset[int]
    bytes: int
    work: int


@dataclass(frozen=True)
class RecomputeProblem:
    """The values of a forward pass, operands before what is computed from them.

    `reads` are what the backward's own steps read of them, in its order. What only the backward needs, although no
    gradient enters into it, comes after the first `forward` values.
    """

    values: tuple[Value, ...]
    reads: tuple[tuple[int, ...], ...] = ()
    forward: int = 0

    @cached_property
    def bytes_of_all(self) -> int:
        return sum(value.bytes for value in self.values if value.can_be_kept)

    @cached_property
    def work_of_all(self) -> int:
        return sum(value.work for value in self.values if value.can_be_computed_again)

    def choice(self, kept: Iterable[int], computed: Iterable[int]) -> Choice:
        """An answer with what it costs; nothing may be missing from it."""
        kept, computed = frozenset(kept), frozenset(computed)
        there = kept | computed
        for number in there:
            value = self.values[number]
            assert number in computed or value.can_be_kept, f"value {number} cannot be kept"
            assert number in kept or value.can_be_computed_again, f"value {number} cannot be computed again"
            assert number in kept or there.issuperset(value.operands), f"value {number} lacks an operand"
        assert all(number in there for number, value in enumerate(self.values) if value.is_read), "a value is missing"
        return Choice(
            kept,
            computed - kept,
            sum(self.values[number].bytes for number in kept),
            sum(self.values[number].work for number in computed - kept),
        )

    def completed(self, kept: Iterable[int]) -> Choice:
        """The answer that keeps these values: what is read and not kept is computed again, with all that this takes.

        What cannot be computed again is kept as well, and what nobody reads is not kept.
        """
        wanted, found = set(kept), set[int]()
        computed = set[int]()
        left = [number for number, value in enumerate(self.values) if value.is_read]
        while left:
            number = left.pop()
            if number in found or number in computed:
                continue
            value = self.values[number]
            if value.can_be_kept and (number in wanted or not self.is_computable[number]):
                found.add(number)
            else:
                computed.add(number)
                left += value.operands
        return self.choice(found, computed)

    @cached_property
    def is_computable(self) -> tuple[bool, ...]:
        """Whether each value can be computed again at all: with operands that can be kept, or are computable."""
        known: list[bool] = []
        for value in self.values:
            has_operands = all(self.values[n].can_be_kept or known[n] for n in value.operands)
            known.append(value.can_be_computed_again and has_operands)
        return tuple(known)

    def peak(self, choice: Choice) -> int:
        """The most bytes of these values that are there at once in the backward.

        What is computed again is computed where it is first read, and is there until it is read last, as what is kept
        is from the beginning.
        """
        order: list[
            tuple[int, tuple[int, ...]]
        ] = []  # what is computed, -1 for a step of the backward's, and its reads
        there = set(choice.kept)
        for reads in self.reads:
            left = list(reversed(reads))
            while left:
                number = left[-1]
                missing = [n for n in self.values[number].operands if n not in there] if number not in there else []
                if missing:
                    left += missing
                    continue
                if left.pop() not in there:
                    there.add(number)
                    order.append((number, self.values[number].operands))
            order.append((-1, reads))
        last = {number: place for place, (_, reads) in enumerate(order) for number in reads}
        live = peak = choice.bytes
        for place, (number, reads) in enumerate(order):
            live += self.values[number].bytes if number >= 0 else 0
            peak = max(peak, live)
            live -= sum(self.values[each].bytes for each in set(reads) if last[each] == place)
        return peak

    def narrows(self) -> list[int]:
        """The values that all that comes later is computed from: between layers, nothing else lives that is not used
        all over the program."""
        values, last = self.values, dict[int, int]()
        roots: list[int] = []
        for number, value in enumerate(values):
            is_view = value.work == 0 and len(value.operands) == 1
            roots.append(roots[value.operands[0]] if is_view else number)
            if number < self.forward:
                last.update((roots[operand], number) for operand in value.operands)
        live, found, long = set[int](), list[int](), self.forward // 2
        for number, root in enumerate(roots[: self.forward]):
            if values[root].operands and values[root].bytes and 0 < last.get(root, -1) - root <= long:
                live.add(root)
            live = {each for each in live if last[each] > number}
            if live == {root} and values[root].can_be_kept and (not found or found[-1] != root):
                found.append(root)
        return found

    def keeping(self, numbers: Iterable[int]) -> RecomputeProblem:
        """The problem in which these values cannot be computed again."""
        fixed = set(numbers)
        values = (
            replace(each, can_be_computed_again=False) if n in fixed else each for n, each in enumerate(self.values)
        )
        return replace(self, values=tuple(values))
