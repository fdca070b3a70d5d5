"""Writes a mapped graph in the `stream` dialect: an op for each instruction that layers need, and nothing of time."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from xdsl.dialects.builtin import BoolAttr, IntegerAttr, StringAttr, i8, i32, i64
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from weft.spatial.isa import MEANINGS
from weft.spatial.mapping.jobs import aligned_lines
from weft.spatial.mapping.layers import Constant, Job, Layer, Model, Node, Operand, Placed, Stream, TensorTile
from weft.spatial.stream_dialect import (
    ELEMENTS,
    AccumulateOp,
    AluOp,
    ConstantOp,
    InstallWeightsOp,
    LayerOp,
    LoadWeightsOp,
    MultiplyOp,
    ProgramOp,
    ReadOp,
    TensorOp,
    TensorType,
    TileOp,
    VectorsType,
    WeightsType,
    WriteOp,
    integers,
    places_of,
)
from weft.spatial.stream_program import StreamProgram


def emit_streams(model: Model, tiles_across: int) -> StreamProgram:
    """A model whose layers have jobs, as streams; a vector is so many tiles of the machine wide."""
    return _Emission(model, tiles_across).run()


class _Emission:
    def __init__(self, model: Model, tiles_across: int) -> None:
        self.model, self.tiles_across = model, tiles_across
        self.head = Block()
        self.tensors: dict[int, SSAValue] = {}
        self.tiles: dict[int, SSAValue] = {}
        self.constants: dict[int, SSAValue] = {}
        self.known: list[Constant] = []
        self.data: list[np.ndarray] = []

    def run(self) -> StreamProgram:
        for tensor in sorted(self.model.tensors, key=lambda each: (each.within is not None, each.number)):
            self._tensor(tensor)
        layers = [self._layer(layer) for layer in self.model.layers]
        self.head.add_ops(layers)
        program = ProgramOp.create(
            attributes={
                "lanes": IntegerAttr(self.model.lanes, i64),
                "macs": IntegerAttr(self.model.macs, i64),
                "origins": StringAttr(json.dumps(self.model.origins)),
                "returned": integers([each.number for each in self.model.outputs]),
            },
            regions=[Region(self.head)],
        )
        return StreamProgram(program, self.model.tiles, [each.values for each in self.known], self.data)

    # What lies in memory

    def _tensor(self, tensor: Placed) -> None:
        packing = tensor.packing
        attributes: dict[str, Attribute] = {
            "tensor_name": StringAttr(tensor.name),
            "number": IntegerAttr(tensor.number, i64),
            "role": StringAttr(self._role(tensor)),
            "shape": integers(tensor.shape),
            "image": integers((tensor.height, tensor.width, tensor.channels)),
            "border": IntegerAttr(tensor.border, i64),
            "fill": IntegerAttr(tensor.fill, i64),
            "packing": integers(
                (packing.slots, packing.advance, packing.spread, packing.lead, packing.first, packing.lines)
            ),
        }
        if tensor.order is not None:
            attributes["order"] = places_of(tensor.order)
        if tensor.within is not None:
            attributes["shift"] = IntegerAttr(tensor.shift, i64)
            if tensor.first_block:
                attributes["first_block"] = IntegerAttr(tensor.first_block, i64)
        if tensor.data is not None:
            attributes["data"] = IntegerAttr(len(self.data), i64)
            self.data.append(tensor.data)
        within = [] if tensor.within is None else [self.tensors[tensor.within.number]]
        element = TensorType(ELEMENTS[tensor.dtype.type])
        made = TensorOp.create(operands=within, attributes=attributes, result_types=[element])
        self.head.add_op(made)
        self.tensors[tensor.number] = made.made

    def _role(self, tensor: Placed) -> str:
        lists = {"argument": self.model.inputs, "constant": self.model.constants, "result": self.model.outputs}
        return next((role for role, those in lists.items() if any(each is tensor for each in those)), "local")

    def _tile(self, number: int) -> SSAValue:
        if number not in self.tiles:
            self.tiles[number] = self._array(TileOp, number, i8)
        return self.tiles[number]

    def _constant(self, constant: Constant) -> SSAValue:
        if id(constant) not in self.constants:
            self.constants[id(constant)] = self._array(ConstantOp, len(self.known), ELEMENTS[np.float32])
            self.known.append(constant)
        return self.constants[id(constant)]

    def _array(self, cls: type[TileOp] | type[ConstantOp], number: int, element: Attribute) -> SSAValue:
        made = cls.create(attributes={"number": IntegerAttr(number, i64)}, result_types=[TensorType(element)])
        self.head.add_op(made)
        return made.results[0]

    # What flows

    def _layer(self, layer: Layer) -> LayerOp:
        block = Block()
        installed: dict[int | TensorTile, SSAValue] = {}
        for job in layer.jobs:
            sums: SSAValue | None = None
            for step in job.passes:
                if step.tile not in installed:
                    installed[step.tile] = self._installed(block, step.tile)
                assert layer.source is not None, "what is multiplied has a source"
                vectors = self._read(block, layer.source, step.block, step.positions)
                taken = [vectors, installed[step.tile]]
                product = _add(block, MultiplyOp, taken, VectorsType.of(len(job.positions), i32))
                sums = _add(block, AccumulateOp, [product, *([] if sums is None else [sums])], product.type)
            made = self._expression(block, layer, job, layer.root, sums)
            attributes: dict[str, Attribute] = {
                "block": IntegerAttr(job.block, i64),
                "places": places_of(job.positions),
                "order": places_of(job.pixels),
            }
            block.add_op(WriteOp.create(operands=[made, self.tensors[layer.output.number]], attributes=attributes))
        return LayerOp.create(attributes={"origin": IntegerAttr(layer.origin, i64)}, regions=[Region(block)])

    def _installed(self, block: Block, tile: int | TensorTile) -> SSAValue:
        if isinstance(tile, TensorTile):
            vectors = self._read(block, tile.tensor, tile.block, np.arange(tile.first, tile.first + tile.count))
            columns, first, tiles = tile.columns, tile.first_tile, tile.tiles
        else:
            type_ = VectorsType.of(self.model.lanes, i8)
            attributes = {"block": IntegerAttr(0, i64), "places": places_of(np.arange(self.model.lanes))}
            vectors = _add(block, ReadOp, [self._tile(tile)], type_, attributes)
            columns, first, tiles = False, 0, self.tiles_across
        attributes = {
            "columns": BoolAttr.from_bool(columns),
            "first_tile": IntegerAttr(first, i64),
            "tiles": IntegerAttr(tiles, i64),
        }
        loaded = _add(block, LoadWeightsOp, [vectors], WeightsType(), attributes)
        return _add(block, InstallWeightsOp, [loaded], WeightsType())

    def _read(
        self, block: Block, tensor: Placed, number: int, places: np.ndarray, window: tuple[int, ...] | None = None
    ) -> SSAValue:
        attributes: dict[str, Attribute] = {"block": IntegerAttr(number, i64), "places": places_of(places)}
        if window is not None:
            attributes["window"] = integers(window)
        type_ = VectorsType.of(len(places), ELEMENTS[tensor.dtype.type])
        return _add(block, ReadOp, [self.tensors[tensor.number]], type_, attributes)

    def _expression(self, block: Block, layer: Layer, job: Job, node: Operand, sums: SSAValue | None) -> SSAValue:
        match node:
            case Constant():
                return self._constant(node)
            case Stream():
                number, places = window_places(node, layer.output, job)
                return self._read(block, node.tensor, number, places, (*node.offset, *node.stride))
            case Node():
                taken = [self._expression(block, layer, job, each, sums) for each in node.operands]
                type_ = VectorsType.of(len(job.positions), ELEMENTS[MEANINGS[node.function].result])
                return _add(block, AluOp, taken, type_, {"function": StringAttr(node.function.name)})
            case _:
                assert sums is not None, "a layer that takes a product has passes"
                return sums


def window_places(operand: Stream, output: Placed, job: Job) -> tuple[int, np.ndarray]:
    """The block and the places of a tensor that rows of a job take beside the product."""
    tensor = operand.tensor
    if tensor.dtype.itemsize > 1:
        return job.block, tensor.position(np.zeros(1, np.int64), job.pixels)
    aligned = aligned_lines(operand, output)
    assert aligned is not None, "packings are chosen so that operands are aligned"
    line, column = np.divmod(job.pixels, output.width)
    places = tensor.position(np.array(aligned)[line], column * operand.stride[1] + operand.offset[1])
    return job.block % tensor.blocks, places


def _add(
    block: Block,
    cls: type[Operation],
    operands: list[SSAValue],
    type_: Attribute,
    attributes: dict[str, Any] | None = None,
) -> SSAValue:
    made = cls.create(operands=operands, attributes=attributes or {}, result_types=[type_])
    block.add_op(made)
    return made.results[0]
