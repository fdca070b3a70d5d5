"""The protocol of kernels that are split into roles, as their ops say it."""

from __future__ import annotations

import pytest
from xdsl.dialects.builtin import IndexType, IntegerAttr, StringAttr, i64
from xdsl.ir import Block, Operation, Region

from weft.backends.nvidia.check.protocol import Protocol, check
from weft.backends.nvidia.check.protocol_events import Arrive, DeadlockError, Event, PhaseError, TransactionError
from weft.backends.nvidia.check.simulator_memory import RaceError
from weft.backends.nvidia.check.warp_protocol import protocol_of
from weft.backends.nvidia.ir.rings import AcquireOp, CommitOp, ReleaseOp, TmaLoadOp, WaitOp
from weft.backends.nvidia.ir.warp_specialization import WarpSpecializeOp
from weft.backends.nvidia.target import target_named
from weft.ir.expr import symbol
from weft.ir.types import bf16, element_type, f32
from weft.pipelines import annotate
from weft.tile import dialect as tile

ROWS, COLUMNS, DEPTH = 128, 128, 64


def product(m: int, n: int, k: int) -> tile.KernelOp:
    """[m, k] times [k, n] in tiles."""
    block = Block(arg_types=[tile.PointerType(element_type(d)) for d in (bf16, bf16, f32)])
    axes = [_program(axis) for axis in range(2)]
    zero = tile.ConstantOp.make(0.0, tile.TileType.of([ROWS, COLUMNS], f32))
    loop = tile.ForOp.make(tile.Sizes((0, k, DEPTH)), [], [zero.out])
    d0, d1 = symbol("d0"), symbol("d1")
    depth = loop.block.args[0]
    a = _load(block.args[0], [axes[0].out, depth], (d0 * ROWS, d1), (k, 1), (m, k), (ROWS, DEPTH))
    b = _load(block.args[1], [depth, axes[1].out], (d0, d1 * COLUMNS), (n, 1), (k, n), (DEPTH, COLUMNS))
    dot = tile.DotOp.create(operands=[a.out, b.out, loop.block.args[1]], result_types=[zero.out.type])
    loop.block.add_ops([a, b, dot, tile.YieldOp.create(operands=[dot.out])])
    store = tile.StoreOp.create(
        operands=[loop.results[0], block.args[2], *(axis.out for axis in axes)],
        attributes={
            "offset": tile.Sizes((d0 * ROWS * n + d1 * COLUMNS,)),
            "strides": tile.Sizes((n, 1)),
            "extents": tile.Sizes((ROWS, COLUMNS)),
        },
    )
    block.add_ops([*axes, zero, loop, store, tile.ReturnOp.create()])
    attributes = {"sym_name": StringAttr("product"), "grid": tile.Sizes((m // ROWS, n // COLUMNS))}
    return tile.KernelOp.create(attributes=attributes, regions=[Region(block)])


def _program(axis: int) -> tile.ProgramOp:
    return tile.ProgramOp.create(attributes={"axis": IntegerAttr(axis, i64)}, result_types=[IndexType()])


def _load(pointer, indices, starts, strides, sides, shape) -> tile.LoadOp:  # type: ignore[no-untyped-def]
    offset = starts[0] * strides[0] + starts[1] * strides[1]
    attributes = {
        name: tile.Sizes(tuple(value))
        for name, value in {
            "offset": (offset,),
            "strides": strides,
            "extents": shape,
            "sides": sides,
            "starts": starts,
        }.items()
    }
    type_ = tile.TileType.of(shape, f32)
    return tile.LoadOp.create(operands=[pointer, *indices], attributes=attributes, result_types=[type_])


def pipelined() -> tile.KernelOp:
    kernel, _ = annotate(product(256, 384, 640), target_named("sm_90a"))
    assert any(isinstance(op, WarpSpecializeOp) for op in kernel.block.ops)
    return kernel


@pytest.mark.parametrize("blocks", [1, 2, 5, 8])
def test_products_in_roles(blocks: int) -> None:
    for block in range(blocks):
        check(protocol_of(pipelined(), block=block, blocks=blocks), runs=5)


def test_faults_in_roles() -> None:
    """Each op of the protocol is needed."""
    errors = (DeadlockError, PhaseError, TransactionError, RaceError)
    for kind in (AcquireOp, TmaLoadOp, CommitOp, WaitOp, ReleaseOp):
        kernel = pipelined()
        op = next(op for op in kernel.walk() if isinstance(op, kind))
        _remove(op)
        with pytest.raises(errors):
            check(protocol_of(kernel), runs=20)


def _remove(op: Operation) -> None:
    op.detach()
    op.erase()


def shared() -> tile.KernelOp:
    """Two blocks of rows bring the columns for each other."""
    kernel = product(256, 384, 640)
    kernel.attributes["cluster"] = IntegerAttr(2, i64)
    kernel, launch = annotate(kernel, target_named("sm_90a"))
    assert launch.cluster == 2
    return kernel


@pytest.mark.parametrize("clusters", [1, 2, 3])
def test_products_in_clusters(clusters: int) -> None:
    for cluster in range(clusters):
        check(protocol_of(shared(), block=cluster, blocks=clusters), runs=10)


def test_faults_in_clusters() -> None:
    sound = protocol_of(shared())

    def own(agent: str, event: Event) -> bool:
        return not isinstance(event, Arrive) or event.barrier.endswith(" of 1") == agent.endswith(" of 1")

    alone = {agent: [event for event in events if own(agent, event)] for agent, events in sound.agents.items()}
    halved = {name: count if count == 1 else count // 2 for name, count in sound.barriers.items()}
    with pytest.raises((RaceError, PhaseError)):  # nobody waits until the other block has read a slot
        check(Protocol(alone, halved), runs=20)
    with pytest.raises(DeadlockError):  # a block is not told of by the other
        check(Protocol(alone, sound.barriers), runs=5)
