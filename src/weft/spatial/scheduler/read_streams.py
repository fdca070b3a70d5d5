"""Reads a program in the `stream` dialect as what the scheduler works on: layers, and the jobs of each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NoReturn

import numpy as np
from xdsl.dialects.builtin import f32, i32
from xdsl.ir import Operation, SSAValue

from weft.errors import ParseError
from weft.ir.locations import line_of
from weft.spatial.isa import Function
from weft.spatial.mapping.emit_streams import window_places
from weft.spatial.mapping.layers import Constant, Job, Layer, Model, Node, Operand, Pass, Placed, Stream, TensorTile
from weft.spatial.mapping.packing import Packing
from weft.spatial.stream_dialect import (
    AccumulateOp,
    AluOp,
    ConstantOp,
    InstallWeightsOp,
    LayerOp,
    LoadWeightsOp,
    MultiplyOp,
    ReadOp,
    TensorOp,
    TensorType,
    TileOp,
    WriteOp,
    listed,
    numbers,
)
from weft.spatial.stream_program import StreamProgram


def read_streams(program: StreamProgram, tiles_across: int) -> Model:
    """The layers of a program; one that is inconsistent is refused with the line of the op.

    A vector of the machine is so many of its tiles wide.
    """
    return _Reader(program, tiles_across).run()


class _Reader:
    def __init__(self, program: StreamProgram, tiles_across: int) -> None:
        self.program, self.tiles_across = program, tiles_across
        self.model = Model(program.op.lanes.value.data)
        self.model.macs = program.op.macs.value.data
        self.model.origins = json.loads(program.op.origins.data)
        self.model.tiles = list(program.tiles)
        self.tensors: dict[SSAValue, Placed] = {}
        self.constants: dict[SSAValue, Constant] = {}

    def run(self) -> Model:
        layers: list[LayerOp] = []
        for op in self.program.op.body.block.ops:
            match op:
                case TensorOp():
                    self.tensors[op.made] = self._tensor(op)
                case ConstantOp():
                    self.constants[op.made] = Constant(_held(op, self.program.constants, op.number.value.data))
                case TileOp():
                    _held(op, self.program.tiles, op.number.value.data)
                case LayerOp():
                    layers.append(op)
                case _:
                    _refuse(op, f"{op.name} stands outside of a layer")
        self.model.tensors = sorted(self.tensors.values(), key=lambda each: each.number)
        if [each.number for each in self.model.tensors] != list(range(len(self.tensors))):
            _refuse(self.program.op, "the numbers of the tensors are not 0, 1, 2, …")
        roles = {
            op.number.value.data: op.role.data for op in self.program.op.body.block.ops if isinstance(op, TensorOp)
        }
        self.model.inputs = [each for each in self.model.tensors if roles[each.number] == "argument"]
        self.model.constants = [each for each in self.model.tensors if roles[each.number] == "constant"]
        results = numbers(self.program.op.returned)
        if wrong := [each for each in results if roles.get(each) != "result"]:
            _refuse(self.program.op, f"no tensor of number {wrong[0]} is a result")
        self.model.outputs = [self.model.tensors[each] for each in results]
        self.model.layers = [self._layer(op) for op in layers]
        return self.model

    def _tensor(self, op: TensorOp) -> Placed:
        assert isinstance(op.made.type, TensorType), "its result is a tensor"
        element = op.made.type.element
        dtype = np.dtype(np.float32 if element == f32 else np.int32 if element == i32 else np.int8)
        height, width, channels = numbers(op.image)
        made = Placed(
            op.tensor_name.data,
            numbers(op.shape),
            dtype,
            height,
            width,
            channels,
            self.model.lanes,
            op.border.value.data,
            op.fill.value.data,
            op.number.value.data,
        )
        made.packing = Packing(*numbers(op.packing))
        made.order = None if op.order is None else listed(op.order)
        if op.within is not None and op.shift is not None:
            made.within, made.shift = self.tensors[op.within], op.shift.value.data
            made.first_block = 0 if op.first_block is None else op.first_block.value.data
        if op.data is not None:
            made.data = _held(op, self.program.data, op.data.value.data)
        return made

    # Layers

    def _layer(self, op: LayerOp) -> Layer:
        if not 0 <= op.origin.value.data < len(self.model.origins):
            _refuse(op, f"its origin, {op.origin.value.data}, is not in the table")
        writes = [each for each in op.body.block.ops if isinstance(each, WriteOp)]
        output = self.tensors[writes[0].tensor]
        root: Node | None = None
        sources: dict[int, Placed] = {}
        jobs: list[Job] = []
        streams: dict[int, list[tuple[Stream, ReadOp]]] = {}
        for write in writes:
            places, pixels = listed(write.places), listed(write.order)
            self._check_places(write, output, write.block.value.data, places)
            streams[len(jobs)] = []
            sums: list[SSAValue] = []
            made = self._operand(write.vectors, streams[len(jobs)], sums)
            if not isinstance(made, Node):
                _refuse(write, "what is written was not computed by the vector unit")
            if root is not None and not _alike(made, root):
                _refuse(write, "vectors of one layer are computed by different expressions")
            root = root or made
            passes = self._passes(sums, sources)
            jobs.append(Job(write.block.value.data, places, pixels, passes))
        if root is None or len(sources) > 1:
            _refuse(op, f"a layer multiplies vectors of one tensor, and this one of {len(sources)}")
        self._check_windows(output, jobs, streams)
        return Layer(
            op.origin.value.data,
            next(iter(sources.values()), None),
            output,
            root,
            jobs=tuple(jobs),
            loaded=_loaded(jobs),
        )

    def _operand(self, value: SSAValue, streams: list[tuple[Stream, ReadOp]], sums: list[SSAValue]) -> Operand:
        if value in self.constants:
            return self.constants[value]
        match value.owner:
            case AluOp() as op:
                taken: tuple[Operand, ...] = tuple(self._operand(each, streams, sums) for each in op.taken)
                return Node(Function[op.function.data], taken)
            case ReadOp() as op if op.window is not None and op.tensor in self.tensors:
                window = numbers(op.window)
                if len(window) != 4:
                    _refuse(op, "a window is two offsets and two strides")
                streams.append((Stream(self.tensors[op.tensor], window[:2], window[2:]), op))
                return streams[-1][0]
            case AccumulateOp():
                if sums and sums[0] is not value:
                    _refuse(value.owner, "an expression takes the sums of one product")
                sums[:] = [value]
                return "product"
            case owner:
                _refuse(owner, "the vector unit takes sums, constants and tensors that are read beside them")

    def _passes(self, sums: Sequence[SSAValue], sources: dict[int, Placed]) -> tuple[Pass, ...]:
        found: list[Pass] = []
        value = sums[0] if sums else None
        while value is not None:
            accumulate = value.owner
            assert isinstance(accumulate, AccumulateOp), "its operands were verified"
            multiply = accumulate.product.owner
            assert isinstance(multiply, MultiplyOp), "its operands were verified"
            read = multiply.vectors.owner
            if not isinstance(read, ReadOp) or read.tensor not in self.tensors:
                _refuse(multiply, "what is multiplied is read from a tensor")
            tensor, places = self.tensors[read.tensor], listed(read.places)
            sources[tensor.number] = tensor
            self._check_places(read, tensor, read.block.value.data, places)
            found.append(Pass(self._weights(multiply), read.block.value.data, places))
            value = accumulate.sums
        return tuple(reversed(found))

    def _weights(self, multiply: MultiplyOp) -> int | TensorTile:
        install = multiply.weights.owner
        assert isinstance(install, InstallWeightsOp), "its operands were verified"
        load = install.weights.owner
        read = load.vectors.owner if isinstance(load, LoadWeightsOp) else None
        if not isinstance(load, LoadWeightsOp) or not isinstance(read, ReadOp):
            _refuse(install, "weights are loaded from vectors that are read")
        self._check_lanes(load)
        if isinstance(read.tensor.owner, TileOp):
            whole = np.array_equal(listed(read.places), np.arange(self.model.lanes))
            if not whole or load.columns.value.data or load.tiles.value.data != self.tiles_across:
                _refuse(load, "a tile of constant weights is loaded as a whole, by rows")
            return read.tensor.owner.number.value.data
        if read.tensor not in self.tensors:
            _refuse(read, "weights are read from a tile or a tensor")
        tensor, places = self.tensors[read.tensor], listed(read.places)
        self._check_places(read, tensor, read.block.value.data, places)
        if np.any(np.diff(places) != 1):
            _refuse(read, "weights are vectors that follow each other")
        if len(places) > self.model.lanes:
            _refuse(read, f"{len(places)} vectors are weights of a plane, which has {self.model.lanes}")
        return TensorTile(
            tensor,
            tensor.number,
            read.block.value.data,
            int(places[0]),
            len(places),
            bool(load.columns.value.data),
            load.first_tile.value.data,
            load.tiles.value.data,
        )

    def _check_lanes(self, load: LoadWeightsOp) -> None:
        first, count = load.first_tile.value.data, load.tiles.value.data
        if first < 0 or count < 1 or first + count > self.tiles_across:
            _refuse(
                load, f"weights are in tiles {first} to {first + count - 1}, and a vector has {self.tiles_across} tiles"
            )

    def _check_places(self, op: Operation, tensor: Placed, block: int, places: np.ndarray) -> None:
        inside = len(places) and places.min() >= 0 and places.max() < tensor.pixels
        if not inside or not 0 <= block < tensor.blocks:
            _refuse(op, f"{tensor.name} has {tensor.blocks} blocks of {tensor.pixels} vectors, and others are named")

    def _check_windows(
        self, output: Placed, jobs: Sequence[Job], streams: dict[int, list[tuple[Stream, ReadOp]]]
    ) -> None:
        for number, job in enumerate(jobs):
            for stream, op in streams[number]:
                block, places = window_places(stream, output, job)
                if block != op.block.value.data or not np.array_equal(places, listed(op.places)):
                    _refuse(op, "vectors are read at other places than the window says")


def _loaded(jobs: Sequence[Job]) -> tuple[Placed, ...]:
    """The tensors that weights are loaded from."""
    tiles = [each.tile for job in jobs for each in job.passes if isinstance(each.tile, TensorTile)]
    return tuple({tile.number: tile.tensor for tile in tiles}.values())


def _alike(one: Operand, other: Operand) -> bool:
    """Whether two expressions are the same."""
    if isinstance(one, Node) and isinstance(other, Node):
        same = one.function == other.function and len(one.operands) == len(other.operands)
        return same and all(_alike(a, b) for a, b in zip(one.operands, other.operands, strict=True))
    if isinstance(one, Stream) and isinstance(other, Stream):
        return one.tensor is other.tensor and (one.offset, one.stride) == (other.offset, other.stride)
    return one is other or (one == "product" and other == "product")


def _held(op: Operation, arrays: Sequence[np.ndarray], number: int) -> np.ndarray:
    if not 0 <= number < len(arrays):
        _refuse(op, f"there is no array {number} of {len(arrays)}")
    return arrays[number]


def _refuse(op: object, what: str) -> NoReturn:
    place = line_of(op.location) if isinstance(op, Operation) else None
    raise ParseError(f"the streams are not a program: {what}", location=place)
