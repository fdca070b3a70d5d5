"""The frame of a group's kernel: its pointers and sizes, where results are written, and the op around its code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ArrayAttr, IndexType, StringAttr
from xdsl.ir import Attribute, Block, Region, SSAValue

from weft.ir.expr import Size
from weft.ir.types import element_type, tensor_of
from weft.lower.emit.kernel import Kernel, group_symbols
from weft.lower.groups.columns import PART, GroupEmitter
from weft.lower.index_space.domain import Domain
from weft.lower.index_space.evaluate import StridedLayout
from weft.lower.schedule.schedule import Schedule
from weft.ops.graph import GroupOp
from weft.tile import dialect as tile


@dataclass(frozen=True)
class KernelFrame:
    """A kernel that is being written."""

    emit: GroupEmitter
    targets: Sequence[SSAValue]
    """The pointers of the group's results; those of operands where a result is written over one."""
    names: tuple[str, ...]
    """The sizes that it takes after its pointers."""

    @classmethod
    def open(
        cls,
        group: GroupOp,
        layouts: dict[SSAValue, StridedLayout],
        outputs: Sequence[StridedLayout],
        in_place: Mapping[int, int],
        domain: Domain,
        schedule: Schedule,
    ) -> KernelFrame:
        """Begin a kernel for a group whose operands and results lie so."""
        names = tuple(name for name in group_symbols(group, [*layouts.values(), *outputs]) if name != PART)
        arguments = group.block.args
        values = [*arguments, *(value for result, value in enumerate(group.yielded) if result not in in_place)]
        pointers = [tile.PointerType(element_type(tensor_of(value.type).dtype)) for value in values]
        block = Block(arg_types=[*pointers, *(IndexType() for _ in names)])
        emit = GroupEmitter(
            layouts,
            domain=domain,
            block=block,
            pointers=dict(zip(arguments, block.args, strict=False)),
            scalars=dict(zip(names, block.args[len(values) :], strict=True)),
            schedule=schedule,
        )
        own = iter(block.args[len(arguments) : len(values)])
        targets = [
            block.args[in_place[result]] if result in in_place else next(own) for result in range(len(group.yielded))
        ]
        emit.pointers |= {target: target for target in targets}
        return cls(emit, targets, names)

    def close(self, name: str, grid: Sequence[Size], **attributes: Attribute) -> Kernel:
        """The kernel, with all that was written."""
        block, schedule = self.emit.block, self.emit.schedule
        block.add_op(tile.ReturnOp.create())
        op = tile.KernelOp.create(
            attributes={
                "sym_name": StringAttr(name),
                "grid": tile.Sizes(tuple(grid)),
                "symbols": ArrayAttr(StringAttr(each) for each in self.names),
                "schedule": StringAttr(str(schedule)),
                **attributes,
            },
            regions=[Region(block)],
        )
        return Kernel(op, self.names, schedule)
