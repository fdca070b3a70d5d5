"""Attention → one tile kernel that never holds all scores.

    %y = graph.attention(%q, %k, %v)       tile.kernel grid [batch and heads, blocks of queries] {
                                             %q = tile.load .. * scale * log2(e)
                                             tile.for j in blocks of keys, carrying greatest, total and sum {
                                               %s = tile.dot %q, transpose of a block of k    (+ mask)
                                      →        %m = max(greatest, row maximum of %s)
                                               %p = 2^(%s - %m) ;  %a = 2^(greatest - %m)
                                               yield %m, total * %a + row sum of %p, sum * %a + %p @ block of v }
                                             tile.store sum / total }

The maximum that was found so far is subtracted from every block, and what is summed up is rescaled when it grows. Keys
that causality excludes for all queries of a block are not visited. A row without any key gives zero, as in PyTorch: its
maximum is -inf, for which 0 is subtracted, and its total is 0, for which it is divided by 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from xdsl.ir import SSAValue

from weft.ir.expr import Size, minimum, simplify, symbol
from weft.ir.expr import product as product_of
from weft.ir.types import Tensor, boolean, i64, tensor_of, u32
from weft.lower.attention.attention_tiles import LOG2_E, AttentionTiles
from weft.lower.attention.paged_keys import keys_of_block
from weft.lower.emit.blocked import BlockedKernel, output_indices, store_outputs
from weft.lower.emit.body import TileValue, register_dtype
from weft.lower.emit.kernel import Kernel
from weft.lower.index_space.domain import Domain, Run, fused
from weft.lower.index_space.evaluate import AddressRecorder, Dummy, Source, broadcast_index
from weft.lower.lowered import Lowered, whole
from weft.lower.machine import Machine
from weft.lower.refusal import Refusal
from weft.lower.schedule.schedule import choose_attention_blocks, given_blocks
from weft.lower.schedule.vector_attention_blocks import vector_attention_blocks
from weft.ops.body import Value
from weft.ops.graph import GroupOp
from weft.ops.layouts import StridedLayout
from weft.ops.matmul.attention import AnyAttention
from weft.ops.matmul.attention_dropout import AttentionWithDropout, is_kept, word_of_head, word_of_row
from weft.ops.matmul.attention_tangent import AttentionWithTangent
from weft.passes.attention.read_pages import Pages, pages_of, pages_of_both


@dataclass
class AttentionLowering(AttentionTiles):
    """The construction of one kernel.

    Rows of its domain are the result's dimensions [..., L, V]; its columns are the keys S and the width E.
    """

    reads_pages: ClassVar[bool] = False
    on_tensor_cores: ClassVar[bool] = False
    """Whether keys and values that lie in pages are read page by page."""

    group: GroupOp
    name: str
    layouts: dict[SSAValue, StridedLayout]
    outputs: Sequence[StridedLayout]
    op: AnyAttention | AttentionWithTangent | AttentionWithDropout
    machine: Machine

    def lowered(self, inputs: Sequence[StridedLayout]) -> Lowered:
        """The kernel; `prepare` comes before."""
        return whole(self._emit(self.lead), len(inputs), len(self.outputs))

    def prepare(self) -> Refusal | None:
        """Find runs and blocks: all but the code; or why there is none."""
        result = tensor_of(self.op.results[0].type)
        q, k = (tensor_of(value.type) for value in self.op.operands[:2])
        self.dtype = register_dtype(result.dtype)
        self.causal: bool = self.op.params["causal"]
        self.dropout: float = self.op.params.get("dropout", 0.0)
        self.keys = k.shape[-2]
        width, out_width = q.shape[-1], result.shape[-1]
        self.domain = domain = Domain(result.shape, (self.keys, width))
        pages = self.reads_pages and isinstance(self.op, AnyAttention) and pages_of_both(self.op, self.layouts.get)
        self.is_paged = bool(pages)
        while True:
            recorder, beside = self._record()
            if recorder.refusals:
                return Refusal(recorder.refusals[0])
            addresses = [*(address.expr for address in recorder.addresses), *beside]
            if not domain.split(addresses):
                break
        rank = result.rank
        by_role: dict[str, list[Run]] = {}
        for letter, names in {"i": f"r{rank - 2}", "n": f"r{rank - 1}", "j": "c0", "e": "c1"}.items():
            parts = [v for v in (*domain.rows, *domain.columns) if v.name.rstrip("hl") == names]
            by_role[letter] = [Run(tuple(parts))] if parts else []
        taken = {v.name for letter in by_role for run in by_role[letter] for v in run.variables}
        self.lead = fused([v for v in domain.rows if v.name not in taken], addresses)
        domain.row_runs = [*self.lead, *by_role["i"], *by_role["n"]]
        domain.column_runs = [*by_role["j"], *by_role["e"]]
        self.runs = {letter: runs[0] for letter, runs in by_role.items() if runs}
        sides = result.shape[-2], self.keys, width, out_width
        moved = isinstance(self.op, AttentionWithTangent)
        given = {"masked": bool(self.op.masks), "moved": moved, "causal": self.causal}
        chosen = choose_attention_blocks(*sides, self.machine, on_tensor_cores=self.on_tensor_cores, **given)
        if self.machine.capabilities.matrix_units and not (self.on_tensor_cores or moved):
            chosen = vector_attention_blocks(chosen)
        self.blocks = given_blocks(self.group, "attention") or chosen
        if self.pages:
            pages, *_ = self.pages.values()  # both are of one size
            rows, keys, *widths = self.blocks.sides
            self.blocks = replace(self.blocks, sides=(rows, keys_of_block(pages, keys), *widths))
        return None

    # -- addresses -------------------------------------------------------------------------------------------------

    def _factor_indices(self) -> list[list[Size]]:
        """Where the elements of the first operands lie."""
        return [self._q_index(), self._k_index(), self._v_index()]

    def _q_index(self) -> list[Size]:
        return [*self.domain.row_index[:-1], self.domain.column_index[1]]

    def _k_index(self) -> list[Size]:
        return [*self.domain.row_index[:-2], *self.domain.column_index]

    def _v_index(self) -> list[Size]:
        return [*self.domain.row_index[:-2], self.domain.column_index[0], self.domain.row_index[-1]]

    def _mask_index(self, mask: Tensor) -> list[Size]:
        scores = (*tensor_of(self.op.results[0].type).shape[:-1], self.keys)
        return broadcast_index([*self.domain.row_index[:-1], self.domain.column_index[0]], scores, mask.shape)

    def _sink_index(self, sink: Tensor) -> list[Size]:
        rows = tensor_of(self.op.results[0].type).shape[:-1]
        return broadcast_index([*self.domain.row_index[:-1], 0], (*rows, 1), sink.shape)

    def _record(self) -> tuple[AddressRecorder, list[Size]]:
        """What is read, and where pages and results lie."""
        domain = self.domain
        recorder = AddressRecorder(self.layouts, space=domain.bounds)
        indices = self._factor_indices()
        values = *self.op.operands[: len(indices)], *self.op.masks, *self.op.sinks
        indices += [self._mask_index(tensor_of(mask.type)) for mask in self.op.masks]
        indices += [self._sink_index(tensor_of(sink.type)) for sink in self.op.sinks]
        self.pages: dict[int, Pages] = {}
        paged: list[Size] = []
        for number, (value, index) in enumerate(zip(values, indices, strict=True)):
            pages = pages_of(value, index, domain.bounds) if self.is_paged and number in (1, 2) else None
            if pages is None:
                recorder.at(Source(value, tensor_of(value.type)), index)
                continue
            self.pages[number] = pages
            pairs = (pages.cache, pages.index), (pages.table, pages.place)
            paged += [self.layouts[each].address(place) for each, place in pairs]
        for value in self.op.results:
            tensor = tensor_of(value.type)
            recorder.given[value] = (tuple(domain.row_index[: tensor.rank]), Dummy(tensor.dtype))
        stores: list[Size] = []
        places = output_indices(self.group, self.op.results, domain)
        for value, layout, index in zip(self.group.yielded, self.outputs, places, strict=True):
            recorder.at(Source(value, tensor_of(value.type)), index)
            stores.append(simplify(layout.address(index), domain.bounds))
        return recorder, [*paged, *stores]

    # -- code ------------------------------------------------------------------------------------------------------

    def _emit(self, lead: Sequence[Run]) -> Kernel:
        kernel = BlockedKernel(self.group, self.name, self.layouts, self.outputs, self.domain)
        self.emit = emit = kernel.emit
        for run in lead:
            kernel.program(run)
        # What has one element is no axis of tiles: a single key would count as often as they are long.
        sides = (side if letter in self.runs else 1 for letter, side in zip("ijen", self.blocks.sides, strict=True))
        self.blocks = replace(self.blocks, sides=tuple(sides))
        self.sides = dict(zip("ijen", self.blocks.sides, strict=True))
        bi, bn = self.sides["i"], self.sides["n"]
        across: Size = kernel.start_of(self.runs["n"], bn) if "n" in self.runs else 0
        first: Size = kernel.start_of(self.runs["i"], bi) if "i" in self.runs else 0
        self.bases: dict[str, Size] = {"i": first, "e": 0, "n": across}
        self.query = self._query(0) if self._width_is_whole else None
        carried = self._begun()
        self.last = minimum(self.keys, first + bi) if self.causal else self.keys
        if "j" in self.runs:
            name = f"{self.runs['j'].name}_start"
            with emit.loop(name, self.last, self.sides["j"], carried) as state:
                self.bases["j"] = symbol(name)
                state[:] = self._turn(state)
        else:  # a single key
            carried = self._turn(carried)
        self._store(kernel, carried)
        return kernel.frame.finish(self.blocks)

    def _begun(self) -> list[TileValue]:
        """What blocks of keys begin with: the greatest scores, the sums of powers, and of values weighted by them."""
        bi, bn = self.sides["i"], self.sides["n"]
        return [self._full(float("-inf"), (bi, 1)), self._full(0.0, (bi, 1)), self._full(0.0, (bi, bn))]

    def _store(self, kernel: BlockedKernel, sums: Sequence[TileValue]) -> None:
        """Write the results."""
        most, total, product = sums
        found = self._with_sinks(most, total, product)
        value, lse = self._quotients(*found, undefined=self.op.params.get("undefined", False))
        result, *kept = self.op.results
        products: dict[SSAValue, TileValue] = {result: TileValue(value.ssa, tensor_of(result.type).dtype)}
        products.update((each, lse) for each in kept)
        store_outputs(kernel, products)

    def _with_sinks(
        self, most: TileValue, total: TileValue, product: TileValue
    ) -> tuple[TileValue, TileValue, TileValue]:
        """The greatest scores in units of powers of two, and the sums of powers and of values, with sinks as scores."""
        if not self.op.sinks:
            return most, total, product
        emit = self.emit
        self._axes("i", "n")
        sink = self._sink()
        nothing, none = emit.constant(float("-inf"), self.dtype), emit.constant(0.0, self.dtype)
        greatest = self._typed(emit.math("max", most, sink))
        base = emit.where(emit.math("eq", greatest, nothing), none, greatest)
        rescale = self._typed(emit.math("exp2", emit.math("sub", most, base)))
        beside = emit.math("exp2", emit.math("sub", sink, base))
        sums = emit.math("add", emit.math("mul", total, rescale), beside)
        return greatest, self._typed(sums), self._typed(emit.math("mul", product, rescale))

    def _sink(self) -> Value:
        """The score of a row beside those of its keys, in units of powers of two."""
        (sink,) = self.op.sinks
        tensor = tensor_of(sink.type)
        value = self.emit.at(Source(sink, tensor), self._sink_index(tensor))
        return self.emit.math("mul", self.emit.cast(value, self.dtype), self.emit.constant(LOG2_E, self.dtype))

    def _quotients(
        self, most: TileValue, total: TileValue, product: TileValue, *, undefined: bool = False
    ) -> tuple[TileValue, TileValue]:
        """The sums of values, each by the sum of its weights, and the logarithms of these sums.

        The greatest scores are in units of powers of two. Without weights, the result is 0, or `undefined`.
        """
        emit = self.emit
        one, none = emit.constant(1.0, self.dtype), emit.constant(0.0, self.dtype)
        divisor: Value = total if undefined else emit.where(emit.math("eq", total, none), one, total)
        self._axes("i", "n")
        if self.dropout:
            divisor = emit.math("mul", divisor, emit.constant(1 - self.dropout, self.dtype))
        value = self._divided(product, divisor)
        power = emit.math("add", emit.math("log2", total), most)  # both are -inf in a row without any key
        return value, self._typed(emit.math("mul", power, emit.constant(1 / LOG2_E, self.dtype)))

    def _divided(self, product: TileValue, divisor: Value) -> TileValue:
        return self._typed(self.emit.math("div", product, divisor))

    def _turn(self, state: Sequence[TileValue]) -> list[TileValue]:
        """One block of keys: the new maximum, total and sum."""
        greatest, total, product = state
        most, sums, powers, rescale = self._weighed(self._scores(), greatest, total)
        if self.dropout:
            row, key = (self._number(place) for place in (self.domain.row_index[-2], self.domain.column_index[0]))
            powers = self._dropped(powers, word_of_row(self.emit, self._word_of_head(), row), key)
        values = self._values(2)
        kept = self._typed(self.emit.math("mul", product, rescale))
        made = self._dot(powers.ssa, values, (self.sides["i"], self.sides["n"]), kept.ssa)
        return [most, sums, TileValue(made, self.dtype)]

    def _weighed(
        self, scores: Value, greatest: TileValue, total: TileValue
    ) -> tuple[TileValue, TileValue, TileValue, Value]:
        """The greatest scores, the sums of powers, the powers of a block, and what earlier sums are to be scaled by."""
        emit, masks = self.emit, self.op.masks
        self._axes("i", "j")
        scores = self._masked(scores, masks)
        most = emit.math("max", greatest, emit.reduce_axis(scores, "max", 1, self.dtype))
        base: Value = most
        if masks:
            nothing, none = emit.constant(float("-inf"), self.dtype), emit.constant(0.0, self.dtype)
            base = emit.where(emit.math("eq", most, nothing), none, most)
        powers = self._typed(emit.math("exp2", emit.math("sub", scores, base)))
        rescale = emit.math("exp2", emit.math("sub", greatest, base))
        sums = emit.math("add", emit.math("mul", total, rescale), emit.reduce_axis(powers, "sum", 1, self.dtype))
        return self._typed(most), self._typed(sums), powers, rescale

    def _dropped(self, powers: TileValue, words: Value, key: Value) -> TileValue:
        """The powers, less those that are dropped, given the words of rows and the numbers of keys."""
        kept = is_kept(self.emit, words, key, self.dropout)
        return self._typed(self.emit.where(kept, powers, self.emit.constant(0.0, self.dtype)))

    def _word_of_head(self) -> Value:
        """What decides which weights of this program's head are dropped."""
        emit, seed = self.emit, self.op.operands[3]
        head: Size = 0
        shape = tensor_of(self.op.results[0].type).shape[:-2]
        for number, position in enumerate(self.domain.row_index[:-2]):
            head = head + position * product_of(shape[number + 1 :])
        return word_of_head(emit, emit.at(Source(seed, tensor_of(seed.type)), [0]), self._number(head))

    def _number(self, index: Size) -> Value:
        return self.emit.cast(self.emit.position(index, i64), u32)

    def _values(self, number: int) -> SSAValue:
        """A block of values, or of their tangents; what comes after has rows and their columns."""
        self._axes("j", "n")
        values = self._tile(self._float(self.op.operands[number], self._v_index()), (self.sides["j"], self.sides["n"]))
        self._axes("i", "n")
        return values

    @property
    def _width_is_whole(self) -> bool:
        return "e" not in self.runs or self.runs["e"].size == self.sides["e"]

    def _query(self, number: int) -> SSAValue:
        """The queries, or a block of their width, scaled; or their tangents."""
        self._axes("i", "e")
        scale = self.emit.constant(self.op.params["scale"] * LOG2_E, self.dtype)
        value = self.emit.math("mul", self._float(self.op.operands[number], self._q_index()), scale)
        return self._tile(value, (self.sides["i"], self.sides["e"]))

    def _scores(self) -> Value:
        """Queries times a block of keys."""
        return self._products([(0, 1)])

    def _products(self, pairs: Sequence[tuple[int, int]]) -> Value:
        """Sums of queries times a block of keys, both by numbers of operands; where the width is not one block, in a
        loop over blocks of it."""
        shape = (self.sides["i"], self.sides["j"])

        def part(queries: Sequence[SSAValue], total: SSAValue | None = None) -> TileValue:
            for query, (_, number) in zip(queries, pairs, strict=True):
                self._axes("e", "j")
                key = self._float(self.op.operands[number], self._k_index())
                total = self._dot(query, self._tile(key, (self.sides["e"], self.sides["j"])), shape, total)
            assert total is not None
            return TileValue(total, self.dtype)

        if self._width_is_whole:
            return part([self._whole_query(number) for number, _ in pairs])
        run = self.runs["e"]
        carried = [self._full(0.0, shape)]
        name = f"{run.name}_start"
        with self.emit.loop(name, run.size, self.sides["e"], carried) as state:
            self.bases["e"] = symbol(name)
            state[0] = part([self._query(number) for number, _ in pairs], state[0].ssa)
        # What loops carry has no edge; the keys' positions have.
        self._axes("i", "j")
        column = self.emit.position(self.domain.column_index[0], i64)
        inside = self.emit.math("ge", column, self.emit.constant(0, i64))
        return self.emit.where(inside, carried[0], carried[0])

    def _whole_query(self, number: int) -> SSAValue:
        assert self.query is not None, "it was read before the loop over keys"
        return self.query

    def _masked(self, scores: Value, masks: Sequence[SSAValue]) -> Value:
        emit = self.emit
        scores = self._capped(scores)
        nothing = emit.constant(float("-inf"), self.dtype)
        for mask in masks:
            tensor = tensor_of(mask.type)
            value = emit.at(Source(mask, tensor), self._mask_index(tensor))
            if tensor.dtype == boolean:
                scores = emit.where(value, scores, nothing)
            else:
                scores = self._added(scores, value)
        if self.causal:
            row = emit.position(self.domain.row_index[-2], i64)
            column = emit.position(self.domain.column_index[0], i64)
            scores = emit.where(emit.math("ge", row, column), scores, nothing)
        return scores

    def _capped(self, scores: Value) -> Value:
        """Scores in units of powers of two that approach a limit, if they have one."""
        cap: float = self.op.params.get("softcap", 0.0) * LOG2_E
        if not cap:
            return scores
        emit = self.emit
        limit = emit.constant(cap, self.dtype)
        return emit.math("mul", emit.math("tanh", emit.math("div", scores, limit)), limit)

    # -- tiles -----------------------------------------------------------------------------------------------------

    def _axes(self, first: str, second: str) -> None:
        self.emit.axes.clear()
        self.emit.scopes[-1].clear()
        for position, letter in enumerate((first, second)):
            if letter in self.runs:
                run = self.runs[letter]
                size = self.last if letter == "j" else run.size
                self.emit.tile_axis(run.name, size, position, self.bases[letter], self.sides[letter])
