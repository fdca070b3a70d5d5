"""Sums of exponentials, and moments, in the simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from xdsl.ir import Operation, SSAValue

from weft.backends.nvidia.check.simulator_layouts import holding, reduced_registers
from weft.backends.nvidia.check.simulator_reduce import Pairs
from weft.backends.nvidia.check.simulator_values import Held
from weft.backends.nvidia.ir.dialect import SHARED, integer
from weft.backends.nvidia.ir.fused_reductions import MomentsOp, OnlineSoftmaxOp
from weft.backends.nvidia.ir.layouts import Layout
from weft.tile import dialect as tile
from weft.tile.functions import COMBINERS, Combiner


class Block(Protocol):
    """What of a simulated block is used here."""

    @property
    def tiles(self) -> Mapping[SSAValue, Held]: ...

    def combined(self, op: Operation, source: Held, axis: int, combiner: Combiner, start: int) -> Pairs: ...

    def hold_reduced(self, out: SSAValue, source: Held, axis: int, pairs: Pairs) -> None: ...

    def hold(
        self, out: SSAValue, layout: Layout, values: np.ndarray, defined: np.ndarray, extents: Sequence[int]
    ) -> None: ...


def simulate_online_softmax(block: Block, op: OnlineSoftmaxOp | tile.AddExponentialsOp) -> None:
    if isinstance(op, OnlineSoftmaxOp):
        _of_axis(block, op)
    else:
        _added(block, op)


def _of_axis(block: Block, op: OnlineSoftmaxOp) -> None:
    """As two reductions, each with a half of the shared memory."""
    source, axis, start = block.tiles[op.value], op.axis.value.data, integer(op, SHARED)
    largest = block.combined(op, source, axis, COMBINERS["max"], start)
    target = source.layout.sliced(axis)
    spread = largest.values[:, np.asarray(reduced_registers(source.layout, target, axis))]
    powers = replace(source, values=np.exp(source.values - spread))
    half = 4 * source.layout.threads * target.count
    block.hold(op.powers, source.layout, powers.values, source.defined, source.extents)
    total = block.combined(op, powers, axis, COMBINERS["sum"], start + half)
    for out, pairs in ((op.largest, largest), (op.sum, total)):
        block.hold_reduced(out, source, axis, pairs)


def simulate_moments(block: Block, op: MomentsOp) -> None:
    """As two reductions, each with a part of the shared memory."""
    source, axis, start = block.tiles[op.value], op.axis.value.data, integer(op, SHARED)
    total = block.combined(op, source, axis, COMBINERS["sum"], start)
    target = source.layout.sliced(axis)
    mean = total.values[:, np.asarray(reduced_registers(source.layout, target, axis))] / source.extents[axis]
    apart = replace(source, values=np.square(source.values - mean).astype(np.float32))
    squares = block.combined(op, apart, axis, COMBINERS["sum"], start + 4 * source.layout.threads * target.count)
    for out, pairs in ((op.total, total), (op.squares, squares)):
        block.hold_reduced(out, source, axis, pairs)


def _added(block: Block, op: tile.AddExponentialsOp) -> None:
    """Each thread takes all its registers into the pair that it has."""
    source, pairs, total = (block.tiles[value] for value in (op.value, op.largest, op.total))
    values = np.where(holding(source.layout).existing(source.extents), source.values, -np.inf)
    larger = np.maximum(pairs.values, values.max(1, keepdims=True))
    base = np.where(np.isinf(larger), 0, larger)
    scaled = total.values * np.exp(pairs.values - base)
    for out, value in ((op.larger, larger), (op.sum, scaled + np.exp(values - base).sum(1, keepdims=True))):
        block.hold(out, pairs.layout, value, pairs.defined, pairs.extents)
