"""A kernel as bytes for another process of ours, and back: quicker by far than printing and parsing its text.

    tile.kernel @k(%x) { %0 = tile.load %x ... }   →   (KernelOp, operands by number, result types, attributes, regions)

Locations stay behind: they name lines in errors and debugging information, which processes beside this one do not make.
"""

from __future__ import annotations

import pickle
from typing import Any, TypeAlias

from xdsl.ir import Block, Operation, Region, SSAValue

from weft.tile.dialect import KernelOp

_Written: TypeAlias = tuple[Any, ...]


def to_bytes(kernel: KernelOp) -> bytes:
    """A kernel as bytes; raises whatever pickling raises for classes that cannot be found by name."""
    return pickle.dumps(_written(kernel, {}), pickle.HIGHEST_PROTOCOL)


def from_bytes(data: bytes) -> KernelOp:
    """The kernel that `to_bytes` made bytes of, in a process that this one was started by, or started."""
    kernel = _read(pickle.loads(data), [])
    assert isinstance(kernel, KernelOp)
    return kernel


def _written(op: Operation, numbers: dict[SSAValue, int]) -> _Written:
    operands = [numbers[operand] for operand in op.operands]
    regions = [[_written_block(block, numbers) for block in region.blocks] for region in op.regions]
    for result in op.results:
        numbers[result] = len(numbers)
    return type(op), operands, list(op.result_types), op.attributes, op.properties, regions


def _written_block(block: Block, numbers: dict[SSAValue, int]) -> _Written:
    for argument in block.args:
        numbers[argument] = len(numbers)
    return list(block.arg_types), [_written(op, numbers) for op in block.ops]


def _read(written: _Written, values: list[SSAValue]) -> Operation:
    kind, operands, types, attributes, properties, regions = written
    op: Operation = kind.create(
        operands=[values[number] for number in operands],
        regions=[Region([_read_block(block, values) for block in blocks]) for blocks in regions],
        result_types=types,
        attributes=attributes,
        properties=properties,
    )
    values.extend(op.results)
    return op


def _read_block(written: _Written, values: list[SSAValue]) -> Block:
    types, ops = written
    block = Block(arg_types=types)
    values.extend(block.args)
    block.add_ops([_read(op, values) for op in ops])
    return block
