"""Faults planted in right kernels: the simulator finds each, and says what it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Block, Operation, Region

import weft.ops  # noqa: F401  (fills the registry)
from weft.backends.nvidia.check import simulator
from weft.backends.nvidia.check.simulator import simulate
from weft.backends.nvidia.check.simulator_layouts import CoverageError
from weft.backends.nvidia.check.simulator_memory import AccessLog, RaceError, SharedMemory, SharedMemoryError
from weft.backends.nvidia.check.simulator_values import DisagreementError, PoisonError
from weft.backends.nvidia.ir.dialect import (
    SHARED,
    WARPS,
    BarrierOp,
    ConvertOp,
    integer,
    layout_of,
    set_integer,
    set_layouts,
)
from weft.backends.nvidia.ir.layouts import Layout, Mode, blocked
from weft.backends.nvidia.target import target_named
from weft.backends.reference.tile import AccessError
from weft.ir.types import Tensor, element_type, f32
from weft.lower.machine import gpu_machine
from weft.pipelines import annotate
from weft.testing.kernels import Trial, group_of
from weft.tile import dialect as tile


@dataclass
class Kernel:
    """An annotated kernel with what it runs on."""

    op: tile.KernelOp
    shared: int
    buffers: list[np.ndarray]

    @classmethod
    def of(cls, body: Callable[..., Any], shape: tuple[int, ...], warps: int = 4) -> Kernel:
        trial = Trial.of(group_of([Tensor(f32, shape)], body), "faulty")
        (call,) = trial.lowered.calls
        kernel = call.kernel.op.clone()
        set_integer(kernel, WARPS, warps)
        annotated, launch = annotate(kernel, target_named("sm_90a"))
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        return cls(annotated, launch.shared, trial.buffers([x], {}).of(call))

    def run(self) -> None:
        simulate(self.op, self.buffers, [], self.shared)

    def all(self, kind: type[Any]) -> list[Any]:
        return [op for op in self.op.walk() if isinstance(op, kind)]


def shares(b: Any, x: Any) -> Any:
    """Two reductions, one after the other."""
    below = b.sub(x, b.max(x, dims=(1,), keep=True))
    return b.div(below, b.sum(below, dims=(1,), keep=True))


def sum_of_columns(b: Any, x: Any) -> Any:
    return b.sum(x, dims=(0,), keep=False)


def mixed(b: Any, x: Any) -> Any:
    return b.add(x, b.permute(x, dims=(1, 0)))


def several(b: Any, x: Any) -> Any:
    y = b.sub(x, b.max(x, dims=(1,), keep=True))
    y = b.sub(y, b.min(y, dims=(1,), keep=True))
    return b.mul(y, b.sum(y, dims=(1,), keep=True))


def remove(op: Operation) -> None:
    op.detach()
    op.erase()


@pytest.mark.parametrize("body", [shares, several])
def test_ops_that_share_a_place_race_without_a_barrier(body: Callable[..., Any]) -> None:
    kernel = Kernel.of(body, (3, 1000))
    kernel.run()
    reductions = kernel.all(tile.ReduceOp)
    assert len({integer(op, SHARED) for op in reductions}) == 2
    for op in reductions:
        set_integer(op, SHARED, 0)
    with pytest.raises(RaceError, match=r"tile.reduce .* writes byte \d+ of shared memory .* in tile.reduce"):
        kernel.run()


def test_a_barrier_that_is_taken_away_is_missed() -> None:
    """In a loop a place is written again by the next turn."""
    kernel = Kernel.of(lambda b, x: b.sum(b.exp(x), dims=(1,), keep=False), (2, 20001))
    kernel.run()
    barriers = kernel.all(BarrierOp)
    assert barriers
    for op in barriers:
        remove(op)
    with pytest.raises(RaceError, match=r"tile.reduce"):
        kernel.run()


def test_places_that_overlap_are_found() -> None:
    kernel = Kernel.of(shares, (3, 1000))
    first, second = kernel.all(tile.ReduceOp)
    set_integer(second, SHARED, integer(first, SHARED) + 256)
    with pytest.raises(RaceError, match=r"bytes? "):
        kernel.run()


@pytest.mark.parametrize(("place", "message"), [(-128, "bytes -128"), (1 << 20, "of shared memory"), (2, "at 2")])
def test_a_place_outside_of_shared_memory_or_askew(place: int, message: str) -> None:
    kernel = Kernel.of(shares, (3, 1000))
    set_integer(kernel.all(tile.ReduceOp)[0], SHARED, place)
    with pytest.raises(SharedMemoryError, match=message):
        kernel.run()


def test_too_little_shared_memory() -> None:
    for body, shape in ((shares, (3, 1000)), (mixed, (64, 64))):
        kernel = Kernel.of(body, shape)
        assert kernel.shared
        kernel.run()
        kernel.shared -= 256
        with pytest.raises(SharedMemoryError):
            kernel.run()


def test_a_layout_that_lacks_elements() -> None:
    kernel = Kernel.of(shares, (3, 1000))
    load = kernel.all(tile.LoadOp)[0]
    layout = layout_of(load.out)
    shorter = tuple(Mode(m.size // 2, m.axis, m.step) if m.size % 2 == 0 else m for m in layout.registers)
    set_layouts(load, [Layout(layout.shape, shorter, layout.lanes, layout.warps)])
    with pytest.raises(CoverageError, match="held 0 times"):
        kernel.run()


def test_a_layout_whose_steps_overlap() -> None:
    kernel = Kernel.of(shares, (3, 1000))
    load = kernel.all(tile.LoadOp)[0]
    layout = layout_of(load.out)
    lanes = tuple(Mode(m.size, m.axis, 1) for m in layout.lanes)
    set_layouts(load, [Layout(layout.shape, layout.registers, lanes, layout.warps)])
    with pytest.raises(CoverageError):
        kernel.run()


def test_operands_in_layouts_that_do_not_meet() -> None:
    """Right layouts of the tile, but an op takes elements that its threads do not have."""
    kernel = Kernel.of(shares, (3, 1000))
    load = kernel.all(tile.LoadOp)[0]
    layout = layout_of(load.out)
    other = blocked(layout.shape, layout.warp_count, range(len(layout.shape)), 2 if layout.vector.size != 2 else 4)
    assert other != layout
    set_layouts(load, [other])
    with pytest.raises(CoverageError):
        kernel.run()


def test_a_store_from_every_thread_that_has_the_element() -> None:
    """A repetition that is taken for a step of its own: elements outside of the tile, or doubly written ones."""
    kernel = Kernel.of(lambda b, x: b.sum(x, dims=(1,), keep=False), (3, 100))
    kernel.run()
    (store,) = kernel.all(tile.StoreOp)
    layout = store.attributes["nvidia.layouts"].data[0].data
    lanes = tuple(Mode(m.size, 0, 0) if m.axis is None else m for m in layout.lanes)
    set_layouts(store, [Layout(layout.shape, layout.registers, lanes, layout.warps)])
    with pytest.raises(CoverageError, match="held 32 times"):
        kernel.run()


def test_a_conversion_that_is_left_out() -> None:
    kernel = Kernel.of(mixed, (64, 64))
    kernel.run()
    (convert,) = kernel.all(ConvertOp)
    convert.out.replace_all_uses_with(convert.value)
    remove(convert)
    with pytest.raises(CoverageError, match=r"thread .* needs element"):
        kernel.run()


def test_reductions_over_other_threads_than_the_layout_says() -> None:
    """A result in a layout that still tells lanes apart along the reduced axis."""
    kernel = Kernel.of(shares, (3, 1000))
    reduce = kernel.all(tile.ReduceOp)[0]
    layout = layout_of(reduce.out)
    wrong = blocked(layout.shape, layout.warp_count // 2, range(len(layout.shape)))
    set_layouts(reduce, [wrong])
    with pytest.raises(CoverageError):
        kernel.run()


def test_more_than_there_is() -> None:
    kernel = Kernel.of(shares, (3, 1000))
    kernel.buffers[0] = kernel.buffers[0][:2999]
    with pytest.raises(AccessError, match="element 2999 of a buffer of 2999"):
        kernel.run()
    (load,) = kernel.all(tile.LoadOp)
    load.attributes["extents"] = tile.Sizes((1001,) * len(load.extents.data))
    with pytest.raises(AccessError, match=r"1001.* elements"):
        kernel.run()


def test_what_a_loop_was_never_given_is_poison() -> None:
    """A tile of 5 elements is carried by a loop without turns, and then stored with room for 8."""
    block = Block(arg_types=[tile.PointerType(element_type(f32))] * 2)
    sizes = {"offset": tile.Sizes((0,)), "strides": tile.Sizes((1,))}
    type_ = tile.TileType.of([8], f32)
    load = tile.LoadOp.create(
        operands=[block.args[0]], attributes={**sizes, "extents": tile.Sizes((5,))}, result_types=[type_]
    )
    loop = tile.ForOp.make(tile.Sizes((0, 0, 1)), [], [load.out])
    loop.block.add_op(tile.YieldOp.create(operands=[loop.block.args[1]]))
    store = tile.StoreOp.create(
        operands=[loop.results[0], block.args[1]], attributes={**sizes, "extents": tile.Sizes((8,))}
    )
    block.add_ops([load, loop, store, tile.ReturnOp.create()])
    op = tile.KernelOp.create(
        attributes={"sym_name": StringAttr("carried"), "grid": tile.Sizes((1,))}, regions=[Region(block)]
    )
    annotated, launch = annotate(op, target_named("sm_90a"))
    with pytest.raises(PoisonError, match=r"tile.store .* writes what is not defined"):
        simulate(annotated, [np.zeros(8, np.float32), np.zeros(8, np.float32)], [], launch.shared)


def test_what_a_loop_does_not_keep_is_poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop adds 5 elements to a tile of 8, of which all are stored: the last ones have to stay as they were."""
    block = Block(arg_types=[tile.PointerType(element_type(f32))] * 2)
    sizes = {"offset": tile.Sizes((0,)), "strides": tile.Sizes((1,))}
    type_ = tile.TileType.of([8], f32)
    first = tile.ConstantOp.make(3.0, type_)
    loop = tile.ForOp.make(tile.Sizes((0, 2, 1)), [], [first.out])
    load = tile.LoadOp.create(
        operands=[block.args[0]], attributes={**sizes, "extents": tile.Sizes((5,))}, result_types=[type_]
    )
    total = tile.MapOp.create(
        operands=[loop.block.args[1], load.out], attributes={"function": StringAttr("add")}, result_types=[type_]
    )
    loop.block.add_ops([load, total, tile.YieldOp.create(operands=[total.out])])
    store = tile.StoreOp.create(
        operands=[loop.results[0], block.args[1]], attributes={**sizes, "extents": tile.Sizes((8,))}
    )
    block.add_ops([first, loop, store, tile.ReturnOp.create()])
    op = tile.KernelOp.create(
        attributes={"sym_name": StringAttr("carried"), "grid": tile.Sizes((1,))}, regions=[Region(block)]
    )
    annotated, launch = annotate(op, target_named("sm_90a"))
    x, y = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    simulate(annotated, [x, y], [], launch.shared)
    np.testing.assert_array_equal(y, [3, 5, 7, 9, 11, 3, 3, 3])

    def nothing(*_: Any) -> set[int]:
        return set()

    monkeypatch.setattr(simulator, "kept_axes", nothing)
    with pytest.raises(PoisonError, match=r"tile.store .* writes what is not defined"):
        simulate(annotated, [x, y], [], launch.shared)


def test_programs_that_write_to_the_same_place() -> None:
    kernel = Kernel.of(shares, (3, 1000))
    store = kernel.all(tile.StoreOp)[0]
    store.attributes["offset"] = tile.Sizes((0,))
    with pytest.raises(RaceError, match="another program"):
        kernel.run()


def test_threads_that_read_what_others_wrote_to_memory() -> None:
    """Written transposed and read back at once: other threads have it, and nothing says that they are done."""
    kernel = Kernel.of(mixed, (64, 64))
    load = kernel.all(tile.LoadOp)[0]
    store = kernel.all(tile.StoreOp)[0]
    again = load.clone()
    again.operands[0] = store.pointer
    layout = layout_of(load.out)
    turned = blocked(layout.shape, layout.warp_count, [1, 0] if layout.lanes[0].axis == 0 else [0, 1])
    set_layouts(again, [turned])
    kernel.op.block.insert_op_after(again, store)
    with pytest.raises(RaceError, match=r"another thread touches in tile.store"):
        kernel.run()
    kernel.op.block.insert_op_after(BarrierOp.create(), store)
    kernel.run()


def test_who_touched_what() -> None:
    log = AccessLog(4)
    one, two, place = np.array([1]), np.array([2]), np.array([3])
    assert log.write(0, one, place) is None
    assert log.write(1, one, place) is None  # its own
    assert log.read(2, one, place) is None
    assert log.read(3, two, place) == (3, 1)
    log.barrier()
    assert log.read(4, two, place) is None
    assert log.read(5, one, place) is None
    assert log.write(6, one, place) == (3, 5)
    log.barrier()
    assert log.write(7, np.array([1, 2]), np.array([3, 3])) == (3, 7)
    log.barrier()
    assert log.write(8, np.array([1, 2]), np.array([3, 3]), any_order=True) is None
    assert log.write(9, two, place, any_order=True) is None  # its own
    assert log.write(10, one, place, any_order=True) == (3, 9)


def test_threads_that_disagree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the shuffles each lane has the sum of its own elements, where the layout says that all have the same."""
    kernel = Kernel.of(shares, (3, 1000))
    monkeypatch.setattr("weft.backends.nvidia.check.simulator.combine_lanes", lambda pairs, layout, axis: pairs)
    with pytest.raises(DisagreementError, match=r"tile.reduce .* thread 1 has another element"):
        kernel.run()


def test_blocks_of_a_cluster_that_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A barrier of each block by itself orders nothing between blocks."""
    shape = (2, 40000)
    trial = Trial.of(group_of([Tensor(f32, shape)], shares), "clustered", gpu_machine())
    (call,) = trial.lowered.calls
    annotated, launch = annotate(call.kernel.op, target_named("sm_90a"))
    assert launch.cluster > 1
    buffers = trial.buffers([np.zeros(shape, np.float32)], {}).of(call)
    barrier = SharedMemory.barrier
    monkeypatch.setattr(SharedMemory, "barrier", lambda memory, of_cluster=False: barrier(memory))
    with pytest.raises(RaceError, match=r"tile.reduce .* reads byte"):
        simulate(annotated, buffers, [], launch.shared)
