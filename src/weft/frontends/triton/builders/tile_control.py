"""Makes tile IR of loops and branches. Of pointers they carry the offsets, as long as the memory stays the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block, Region, SSAValue

from weft.frontends.triton.builders.builder import Handle
from weft.frontends.triton.builders.tile_memory import MemoryEmitter, element_of
from weft.frontends.triton.builders.tile_values import Pointer
from weft.ir.expr import symbol
from weft.ir.types import DType, i64
from weft.tile import control_flow, pointer_ops
from weft.tile import dialect as tile


class ControlEmitter(MemoryEmitter):
    """Adds loops and branches."""

    def for_loop(
        self,
        lower: SSAValue,
        upper: SSAValue,
        step: SSAValue,
        dtype: DType,
        carried: Sequence[Handle],
        body: Callable[[Handle, list[Handle]], Sequence[Handle]],
    ) -> list[Handle]:
        bounds = [self._index(bound, dtype) for bound in (lower, upper, step)]
        attribute = tile.Sizes((symbol("d0"), symbol("d1"), symbol("d2")))

        def turn(block: Block) -> list[Handle]:
            index = self.cast(self.positions((symbol("d0"),), (), (), block.args[:1], i64), i64, dtype)
            return list(body(index, self._handles(block.args[1:], carried)))

        return self._loop(carried, lambda initial: tile.ForOp.make(attribute, bounds, initial), turn)

    def _index(self, value: SSAValue, dtype: DType) -> SSAValue:
        wide = self.cast(value, dtype, i64)
        return self.add(pointer_ops.IndexOp.create(operands=[wide], result_types=[IndexType()]))

    def while_loop(
        self,
        carried: Sequence[Handle],
        condition: Callable[[list[Handle]], Handle],
        body: Callable[[list[Handle]], Sequence[Handle]],
    ) -> list[Handle]:
        def turn(block: Block) -> list[Handle]:
            head = _parent(block).condition.block
            with self.inside(head):
                holds = condition(self._handles(head.args, carried))
                self.add(tile.YieldOp.create(operands=[holds]))
            return list(body(self._handles(block.args, carried)))

        return self._loop(carried, control_flow.WhileOp.make, turn)

    def _loop(
        self,
        carried: Sequence[Handle],
        make: Callable[[list[SSAValue]], tile.ForOp | control_flow.WhileOp],
        turn: Callable[[Block], list[Handle]],
    ) -> list[Handle]:
        """Add a loop. A pointer that an iteration takes elsewhere is carried as a number: then the body is made
        again.
        """
        carried = list(carried)
        for _ in range(2):
            op = make(_plain(carried))
            checks = len(self.checks)
            with self.inside(op.body.block):
                results = turn(op.body.block)
                moved = [
                    i
                    for i, (old, new) in enumerate(zip(carried, results, strict=True))
                    if isinstance(old, Pointer) and old.base is not new.base
                ]
                if not moved:
                    self.add(tile.YieldOp.create(operands=_plain(results)))
            if not moved:
                self.add(op)
                return self._handles(op.results, carried)
            op.erase(safe_erase=False)
            del self.checks[checks:]
            for i in moved:
                carried[i] = self.absolute(carried[i], element_of(carried[i]))
        raise AssertionError("a loop carries a pointer that is not a number")

    def branch(
        self, condition: SSAValue, then: Callable[[], Sequence[Handle]], otherwise: Callable[[], Sequence[Handle]]
    ) -> list[Handle]:
        blocks = Block(), Block()
        results: list[list[Handle]] = []
        for block, make in zip(blocks, (then, otherwise), strict=True):
            with self.inside(block):
                results.append(list(make()))
        for i, (yes, no) in enumerate(zip(*results, strict=True)):
            if isinstance(yes, Pointer) and yes.base is not no.base:
                for block, given in zip(blocks, results, strict=True):
                    with self.inside(block):
                        given[i] = self.absolute(given[i], element_of(given[i]))
        for block, given in zip(blocks, results, strict=True):
            with self.inside(block):
                self.add(tile.YieldOp.create(operands=_plain(given)))
        op = control_flow.IfOp.create(
            operands=[condition],
            result_types=[value.type for value in _plain(results[0])],
            regions=[Region(block) for block in blocks],
        )
        self.add(op)
        return self._handles(op.results, results[0])

    def _handles(self, values: Sequence[SSAValue], like: Sequence[Handle]) -> list[Handle]:
        """Values that a loop or a branch gives, as handles such as went in."""
        return [
            Pointer(old.base, value) if isinstance(old, Pointer) else value
            for value, old in zip(values, like, strict=True)
        ]


def _parent(block: Block) -> control_flow.WhileOp:
    op = block.parent_op()
    assert isinstance(op, control_flow.WhileOp)
    return op


def _plain(handles: Sequence[Handle]) -> list[SSAValue]:
    """What is carried of handles: of pointers, the offsets."""
    return [handle.offsets if isinstance(handle, Pointer) else handle for handle in handles]
