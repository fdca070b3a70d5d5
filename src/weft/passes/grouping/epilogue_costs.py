"""What a matmul's epilogue costs on its accumulators, and what it costs in a kernel behind it.

An epilogue saves the round trip of a product through memory. It loses where it writes more than the product is, as wide
copies of it for several readers; where others have to write operands for it alone, that a kernel behind the product
would compute as it goes; and where it takes long, as warps that compute do not multiply.

    dot → cast → mul %w → sum …              dot                     2 bytes written, not 8 for two readers
        → mul %x → sum …              →      group { cast, mul, sum, mul, … }
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.ir import Operation, OpResult, SSAValue

from weft.ir.expr import product
from weft.ir.types import tensor_of
from weft.ops.base import Elementwise, GraphOp
from weft.passes.grouping.kernel_groups import Group

_MEMORY, _LAUNCH = 4.0e12, 2.5e-6
"""Bytes a second of memory, and the seconds that a further kernel takes to begin."""
_STEP = 3.2e-14
"""Seconds for a step of arithmetic on one element, by all warps that hold accumulators."""
_STEPS = {
    **dict.fromkeys(("exp", "exp2", "log", "log2", "rsqrt", "sqrt", "reciprocal"), 8),
    **dict.fromkeys(("div", "sigmoid", "tanh", "silu", "softplus", "log1p", "expm1"), 12),
    **dict.fromkeys(("erf", "erfc", "gelu", "sin", "cos", "pow", "tan", "lgamma"), 24),
}
"""Steps of what takes more than one."""
_GAIN = 0.8
"""What must be left of the time for a kernel of its own: predictions are not better than that."""


@dataclass(frozen=True)
class EpilogueCost:
    """The seconds that an epilogue is predicted to take on the accumulators, and with a kernel behind the product."""

    fused: float
    apart: float
    kept: int
    """How many of its ops are best computed on the accumulators."""

    def __str__(self) -> str:
        return f"epilogue {self.fused * 1e6:.3g} µs fused, {self.apart * 1e6:.3g} µs apart, predicted"


def epilogue_cost(
    group: Group, group_of: Mapping[Operation, Group], consumers: Mapping[SSAValue, Sequence[Operation]]
) -> EpilogueCost | None:
    """Compare all beginnings of a matmul's epilogue; None where there is none, or sizes are not known."""
    products = [op for op in group.ops if not isinstance(op, Elementwise)]
    epilogue = [op for op in group.ops if isinstance(op, Elementwise)]
    elements = product(tensor_of(products[0].results[0].type).shape)
    if not epilogue or not isinstance(elements, int):
        return None
    seconds = _Epilogue(group, products, epilogue, elements, group_of, consumers).seconds()
    best = min(range(len(seconds)), key=lambda kept: (seconds[kept], -kept))
    fused = seconds[-1]
    if seconds[best] > _GAIN * fused:
        best = len(epilogue)
    return EpilogueCost(fused, min(seconds[:-1]), best)


@dataclass(frozen=True)
class _Readers:
    """Who reads what an op of a product's kernel makes."""

    places: tuple[int, ...]
    """The ops of the epilogue, by their places in it."""
    others: bool
    """Whether there are others,"""
    merging: int
    """and how many kernels of these could compute what they read."""
    bytes: int


@dataclass
class _Epilogue:
    group: Group
    products: Sequence[GraphOp]
    ops: Sequence[GraphOp]
    elements: int
    group_of: Mapping[Operation, Group]
    consumers: Mapping[SSAValue, Sequence[Operation]]

    def __post_init__(self) -> None:
        self.places: dict[Operation, int] = {op: place for place, op in enumerate(self.ops)}

    def seconds(self) -> list[float]:
        """What it takes with the first ops on the accumulators, for each number of them, and the others behind them."""
        made = [self._readers(value) for op in (*self.products, *self.ops) for value in op.results]
        given = [sum(self._bytes(result) for result in op.results if self._is_wanted(result)) for op in self.ops]
        asked = [self._made_for(op) for op in self.ops]
        joined = [bool(values) or self._is_merging(op) for op, values in zip(self.ops, asked, strict=True)]
        steps = [_STEPS.get(op.name.removeprefix("graph."), 1) for op in self.ops]
        first = len(made) - len(self.ops)
        found: list[float] = []
        for kept in range(len(self.ops) + 1):
            moved = sum(self._moved(readers, kept) for readers in made[: first + kept]) + sum(given[kept:])
            moved += sum(2 * self._bytes(value) for value in set[SSAValue]().union(*asked[:kept]))
            alone = kept < len(self.ops) and not any(joined[kept:])
            launch = _LAUNCH if alone else 0.0
            found.append(moved / _MEMORY + sum(steps[:kept]) * self.elements * _STEP + launch)
        return found

    def _readers(self, value: SSAValue) -> _Readers:
        users = self.consumers.get(value, ())
        places = tuple(self.places[user] for user in users if user in self.places)
        others = {self.group_of.get(user) for user in users if user not in self.places}
        return _Readers(places, bool(others), sum(map(self._merges, others)), self._bytes(value))

    def _moved(self, readers: _Readers, kept: int) -> int:
        """The bytes that a value of the product's kernel is written and read with, by kernels that could compute it."""
        behind = any(place >= kept for place in readers.places)
        if not behind and not readers.others:
            return 0
        reads = 1 if kept < len(self.ops) and (readers.merging or behind) else readers.merging
        return readers.bytes * (1 + reads)

    def _is_wanted(self, value: SSAValue) -> bool:
        """Whether others than kernels that could compute it read a value: these need it in memory."""
        readers = [self.group_of.get(user) for user in self.consumers.get(value, ()) if user not in self.places]
        return any(not self._merges(reader) for reader in readers)

    def _is_merging(self, op: Operation) -> bool:
        """Whether kernels that could compute an op of the epilogue read what it makes."""
        users = [user for result in op.results for user in self.consumers.get(result, ()) if user not in self.places]
        return any(self._merges(self.group_of.get(user)) for user in users)

    def _merges(self, reader: Group | None) -> bool:
        """Whether a kernel could compute what it reads of the epilogue."""
        if reader is None or reader is self.group or reader.kind not in ("pointwise", "rows"):
            return False
        return product(reader.shape) == self.elements

    def _made_for(self, op: Operation) -> list[SSAValue]:
        """What kernels of elementwise ops make for an op of the epilogue, and for others of it alone."""
        found: list[SSAValue] = []
        for value in self._sources(op):
            maker = self.group_of.get(value.op) if isinstance(value, OpResult) else None
            if maker is None or maker.kind != "pointwise" or product(tensor_of(value.type).shape) != self.elements:
                continue
            if all(user in self.places for user in self.consumers.get(value, ())):
                found.append(value)
        return found

    def _sources(self, op: Operation) -> list[SSAValue]:
        """What an op reads, through views."""
        found: list[SSAValue] = []
        for value in op.operands:
            while isinstance(value, OpResult) and value.op not in self.group_of and value.op.operands:
                value = value.op.operands[0]
            found.append(value)
        return found

    def _bytes(self, value: SSAValue) -> int:
        return tensor_of(value.type).dtype.bytes * self.elements
