"""The tangent of attention whose result is there → one tile kernel that makes the weights again.

    tile.for j in blocks of keys, carrying mean and tangent {
      %s = tile.dot %q, keys                              scores, and their tangents:
      %t = tile.dot %q, tangents of keys, (tile.dot tangents of %q, keys)
      %p = 2^(%s - logarithm of the row's sum)  ;  %d = %p * %t
      mean + row sum of %d
      tangent + %p @ tangents of values + %d @ values }
    tile.store tangent - mean * result, mean

The registers of a block hold sums of values wider than 128 once, not twice. So a kernel of attention comes before,
which writes the result and the logarithms, and scores are made twice: seven matmuls instead of six. Weights are what
they are at once: nothing is rescaled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.ir import SSAValue

from weft.ir.expr import Size, simplify, symbol
from weft.ir.types import Tensor, tensor_of
from weft.lower.attention.attention_tangent import FlashTangentLowering
from weft.lower.attention.attention_tiles import LOG2_E
from weft.lower.attention.mask_reading import Kept
from weft.lower.dispatch import lower
from weft.lower.emit.blocked import BlockedKernel, store_outputs
from weft.lower.emit.body import TileValue
from weft.lower.index_space.domain import Run
from weft.lower.index_space.evaluate import AddressRecorder, Source
from weft.lower.lowered import Argument, KernelCall, Lowered, whole
from weft.lower.regroup import regroup
from weft.ops.body import Value
from weft.ops.graph import GraphBuilder, GroupOp
from weft.ops.layouts import StridedLayout, contiguous
from weft.ops.matmul.attention_tangent import AttentionWithTangent
from weft.passes.grouping.build_groups import SCHEDULE

_KNOWN = 2
"""The results that attention itself has: the sums of values, and the logarithms of sums of powers."""


@dataclass(frozen=True)
class _Known:
    """Where a result of attention is once it is computed."""

    place: Argument
    tensor: Tensor
    layout: StridedLayout


@dataclass
class TangentAlone(FlashTangentLowering):
    """The construction of the kernel, and of the one before it."""

    def lowered(self, inputs: Sequence[StridedLayout]) -> Lowered:
        known = self._known
        (call,) = whole(self._emit(self.lead), len(inputs), len(self.outputs)).calls
        scratch = [each for each in known if each.place.role == "scratch"]
        arguments = (*call.arguments, *(each.place for each in scratch))
        own = self._counted(Lowered((KernelCall(call.kernel, arguments),), tuple(each.tensor for each in scratch)))
        group, layouts = regroup(self.group, _attention), [each.layout for each in known]
        group.attributes.pop(SCHEDULE, None)  # that of the tangents' kernel
        before = lower(group, f"{self.name}_values", inputs, layouts, self.machine)

        def argument(given: Argument) -> Argument:
            if given.role == "output":
                return known[given.number].place
            return given if given.role == "input" else Argument("scratch", len(own.scratch) + given.number)

        first = (KernelCall(each.kernel, tuple(map(argument, each.arguments))) for each in before.calls)
        return Lowered((*first, *own.calls), (*own.scratch, *before.scratch))

    @property
    def _known(self) -> Sequence[_Known]:
        """The results of attention: where they are asked for, or beside."""
        found: list[_Known] = []
        yielded = list(self.group.yielded)
        for result in self.op.results[:_KNOWN]:
            tensor = tensor_of(result.type)
            if result in yielded:
                number = yielded.index(result)
                found.append(_Known(Argument("output", number), tensor, self.outputs[number]))
            else:
                beside = sum(each.place.role == "scratch" for each in found)
                found.append(_Known(Argument("scratch", beside), tensor, contiguous(tensor)))
        return found

    @property
    def _beside(self) -> Sequence[Tensor]:
        return [each.tensor for each in self._known if each.place.role == "scratch"]

    def _record(self) -> tuple[AddressRecorder, list[Size]]:
        recorder, beside = super()._record()
        rows = self.domain.row_index
        places = (known.layout.address(rows[: known.tensor.rank]) for known in self._known)
        return recorder, [*beside, *(simplify(place, self.domain.bounds) for place in places)]

    def _place(self, kernel: BlockedKernel, lead: Sequence[Run]) -> None:
        super()._place(kernel, lead)
        for result, known in zip(self.op.results, self._known, strict=False):
            pointers = kernel.targets if known.place.role == "output" else kernel.beside
            self.emit.layouts[result], self.emit.pointers[result] = known.layout, pointers[known.place.number]

    # -- code --------------------------------------------------------------------------------------------------------

    def _attended(self) -> Sequence[TileValue]:
        self._read_queries()
        self.logarithms = self._result(1)
        emit = self.emit
        least: Value = emit.math("mul", self.logarithms, self._constant(-LOG2_E))
        if self.op.masks or not isinstance(self.keys, int):  # nothing is subtracted in a row without any key
            least = emit.where(self._is_empty(), self._constant(0.0), least)
        self.least = least
        state = self._first()
        self._visit(state)
        return state

    def _result(self, number: int) -> TileValue:
        """A tile of what attention has computed."""
        self._axes("i", "n")
        value = self.op.results[number]
        tensor = tensor_of(value.type)
        return self._typed(self.emit.at(Source(value, tensor), self.domain.row_index[: tensor.rank]))

    def _is_empty(self) -> Value:
        """Whether a row has no keys."""
        return self.emit.math("eq", self.logarithms, self._constant(float("-inf")))

    def _first(self) -> list[TileValue]:
        start, masks = self._first_block()
        rows, sums = (self.sides["i"], 1), (self.sides["i"], self.sides["n"])
        return self._turned(start, masks, [self._full(0.0, rows), self._full(0.0, sums)], ends=True)

    def _walk(
        self, name: str, lower: Size, upper: Size, state: list[TileValue], masks: Kept | None, *, ends: bool = True
    ) -> None:
        with self.emit.loop(f"{name}_block", upper, 1, state, lower) as carried:
            start = self._start_of(symbol(f"{name}_block"))
            carried[:] = self._turned(start, masks, carried, ends=ends)

    def _turned(self, start: Size, masks: Kept | None, state: Sequence[TileValue], *, ends: bool) -> list[TileValue]:
        """The sums of slopes and of what tangents are made of, with those of a block of keys.

        Tangents of values are weighted while slopes are under way.
        """
        emit, shape = self.emit, (self.sides["i"], self.sides["n"])
        mean, tangent = state
        scores, slopes = self._products_at(start)
        scores = self._marked(scores, start, masks, ends=ends)
        powers = self._power(emit.fused(scores, self._constant(self.unit), self.least))
        along = tangent.ssa
        self.bases["j"] = start
        if (number := self.moved.tangent("v")) is not None:
            along = self._dot(self._weights(powers).ssa, self._operand(number, self._v_index(), "jn"), shape, along)
        if slopes is not None:
            scale = self._constant(self.op.params["scale"])
            moving = self._typed(emit.math("mul", powers, emit.math("mul", slopes, scale)))
            mean = self._typed(emit.math("add", mean, emit.reduce_axis(moving, "sum", 1, self.dtype)))
            along = self._dot(self._weights(moving).ssa, self._operand(2, self._v_index(), "jn"), shape, along)
        return [mean, TileValue(along, self.dtype)]

    def _store(self, kernel: BlockedKernel, sums: Sequence[TileValue]) -> None:
        emit, (mean, tangent) = self.emit, sums
        value = self._result(0)
        if self.op.params.get("undefined", False):
            mean = self._typed(emit.where(self._is_empty(), self._constant(float("nan")), mean))
        moved = self._typed(emit.math("sub", tangent, emit.math("mul", mean, emit.cast(value, self.dtype))))
        found: dict[SSAValue, TileValue] = {
            result: TileValue(each.ssa, tensor_of(result.type).dtype)
            for result, each in zip(self.op.results, (value, self.logarithms, moved, mean), strict=True)
        }
        written = [known.place.number for known in self._known if known.place.role == "output"]
        store_outputs(kernel, found, written)


def _attention(b: GraphBuilder, made: GroupOp) -> Sequence[SSAValue]:
    """The attention of a group, with its logarithms, instead of that with a tangent."""
    op = next(op for op in made.block.ops if isinstance(op, AttentionWithTangent))
    kept: dict[str, Any] = {name: value for name, value in op.params.items() if name != "moved"}
    return b.attention_with_lse(*op.operands[:3], *op.masks, **kept)
