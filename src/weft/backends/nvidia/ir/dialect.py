"""The target IR of NVIDIA GPUs: tile ops whose results have layouts, with conversions and barriers between them.

A kernel for a GPU is the tile kernel it was, and runs on the same NumPy reference; attributes say where things are:
`nvidia.layouts`, one for each result of an op, `nvidia.arguments`, one for each tile that a block of the op takes,
`nvidia.shared`, where the shared memory begins that an op uses, and on the kernel `nvidia.warps` and, of a cluster,
`nvidia.blocks`; `nvidia.resident` is how many blocks a multiprocessor should have registers for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, StringAttr, i64
from xdsl.ir import Attribute, Block, Data, Operation, OpResult, SSAValue
from xdsl.irdl import IRDLOperation, irdl_attr_definition, irdl_op_definition, operand_def, result_def
from xdsl.parser import AttrParser
from xdsl.printer import Printer

from weft.backends.nvidia.code import Launch
from weft.backends.nvidia.ir.launch_text import launch_attribute, read_launch
from weft.backends.nvidia.ir.layouts import WARP, Layout
from weft.errors import CompilationError
from weft.ir.operations import WeftOp
from weft.tile import dialect as tile

LAYOUTS, ARGUMENTS, SHARED = "nvidia.layouts", "nvidia.arguments", "nvidia.shared"
WARPS, BLOCKS = "nvidia.warps", "nvidia.blocks"
APART = "nvidia.apart"
"""On a kernel: how many warps a block has, if each does programs of its own."""
VECTOR = "nvidia.vector"
"""How many neighbours of a thread an access to computed places moves at once."""
RESIDENT = "nvidia.resident"
"""On a kernel: how many of its blocks a multiprocessor should have registers for; 0 where the assembler chooses."""
CONSUMERS = "nvidia.consumers"
"""On a kernel: how many warp groups of a block multiply, where that is not what its tiles say."""
MAX_REGISTERS = "nvidia.maxnreg"
"""On a kernel: how many registers a thread may have, where its author says so."""
LAUNCH = "nvidia.launch"
"""On a kernel: how it is launched, as far as that is known."""


@irdl_attr_definition
class LayoutAttr(Data[Layout]):
    """`#nvidia.layout<"4x1024: registers 8@1 4@1*256, lanes 32@1*8, warps 4@0">`"""

    name = "nvidia.layout"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Layout:
        with parser.in_angle_brackets():
            return Layout.parse(parser.parse_str_literal())

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string_literal(str(self.data))


@irdl_attr_definition
class LaunchAttr(Data[Launch]):
    """`#nvidia.launch<{threads = 384, shared = 196608, cluster = 2, maps = [{argument = 0, …}], persistent = true}>`:
    what differs from a launch of single blocks without shared memory."""

    name = "nvidia.launch"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Launch:
        with parser.in_angle_brackets():
            return read_launch(parser.parse_attribute())

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_attribute(launch_attribute(self.data))


@irdl_op_definition
class ConvertOp(WeftOp):
    """The same tile in another layout: written to shared memory and, behind a barrier, read back."""

    name = "nvidia.convert"
    value = operand_def(tile.TileType)
    out = result_def(tile.TileType)

    @classmethod
    def make(cls, value: SSAValue, layout: Layout) -> Self:
        op = cls.create(operands=[value], result_types=[value.type])
        set_layouts(op, [layout])
        return op


@irdl_op_definition
class BarrierOp(WeftOp):
    """All threads of the block wait for each other; what they wrote to shared memory is there for all."""

    name = "nvidia.barrier"


OPS: list[type[IRDLOperation]] = [ConvertOp, BarrierOp]


def set_layouts(op: Operation, layouts: Sequence[Layout], name: str = LAYOUTS) -> None:
    op.attributes[name] = ArrayAttr(LayoutAttr(layout) for layout in layouts)


def layout_of(value: SSAValue) -> Layout:
    """The layout that a tile was given: by the op that makes it, or whose block takes it."""
    if isinstance(value, OpResult):
        if LAYOUTS not in value.op.attributes:
            raise CompilationError(
                f"{value.op.name} has no layout: its kernel is not through all passes",
                hint="make code of a kernel as it is before its passes, or after all of them",
            )
        return _named(value.op.attributes[LAYOUTS], value.index)
    block = value.owner
    assert isinstance(block, Block)
    parent = block.parent_op()
    assert parent is not None
    tiles = [argument for argument in block.args if isinstance(argument.type, tile.TileType)]
    return _named(parent.attributes[ARGUMENTS], tiles.index(value))  # type: ignore[arg-type]


def layouts_of(op: Operation) -> list[Layout]:
    """All layouts of an op: of its results, or of what it writes."""
    attribute = op.attributes[LAYOUTS]
    assert isinstance(attribute, ArrayAttr)
    return [_named(attribute, number) for number in range(len(attribute.data))]  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]


def _named(attribute: Attribute, number: int) -> Layout:
    assert isinstance(attribute, ArrayAttr)
    layout = attribute.data[number]  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    assert isinstance(layout, LayoutAttr)
    return layout.data


def integer(op: Operation, name: str, default: int = 0) -> int:
    """An integer attribute of an op."""
    attribute = op.attributes.get(name)
    return attribute.value.data if isinstance(attribute, IntegerAttr) else default


def set_integer(op: Operation, name: str, value: int) -> None:
    op.attributes[name] = IntegerAttr(value, i64)


def launch_of(kernel: tile.KernelOp) -> Launch:
    """How a kernel is launched, as far as that is known: without a launch of its own, with a thread for each lane."""
    attribute = kernel.attributes.get(LAUNCH)
    if isinstance(attribute, LaunchAttr):
        return attribute.data
    blocks = integer(kernel, BLOCKS, 1)
    return Launch(WARP * integer(kernel, WARPS), 0, cluster=blocks, blocks_per_program=blocks)


def set_launch(kernel: tile.KernelOp, launch: Launch) -> None:
    kernel.attributes[LAUNCH] = LaunchAttr(launch)


def text(op: Operation, name: str) -> str:
    attribute = op.attributes[name]
    assert isinstance(attribute, StringAttr)
    return attribute.data
