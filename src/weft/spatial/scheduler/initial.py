"""What memory holds at the start: weights, constants and borders; and where arguments and results lie."""

from __future__ import annotations

import numpy as np

from weft.spatial.mapping.layers import Placed
from weft.spatial.program import Image, Port
from weft.spatial.scheduler.memory_map import MemoryMap


def image_of(memory: MemoryMap) -> Image:
    """Weights, constants, and the borders of tensors."""
    machine = memory.machine
    slices: list[np.ndarray] = []
    addresses: list[np.ndarray] = []
    tags: list[np.ndarray] = []
    data: list[np.ndarray] = []
    width, rows = machine.matrix.load_streams, np.arange(machine.matrix.rows)
    for half in (0, 1):
        for (tile, _), place in memory.weights[half].places.items():
            own = rows[: place.rows]
            slices.append(memory.units.memory(half, 0) + place.slices[own % width])
            addresses.append(place.addresses[own % width] + own // width)
            tags.append(memory.tile_tag + tile * machine.matrix.rows + own)
            data.append(memory.model.tiles[tile][own].view(np.uint8))
    for (half, lane, tile), (address, held) in memory.wide_at.items():
        own = rows[:held]
        slices.append(memory.wide_slice(half, lane, 0) + own % width)
        addresses.append(address + own // width)
        tags.append(memory.tile_tag + tile * machine.matrix.rows + own)
        data.append(memory.model.tiles[tile][:held].view(np.uint8))
    for number, ((values, half, place), address) in enumerate(memory.constants.items()):
        slices.append(np.array([memory.constant_slice(half, place, byte) for byte in range(4)]))
        addresses.append(np.full(4, address))
        tags.append(np.full(4, memory.constant_tag + number))
        data.append(np.frombuffer(values, np.uint8).reshape(-1, 4).T)
    for tensor in memory.model.tensors:
        if tensor.border:
            outside = np.setdiff1d(np.arange(tensor.pixels), tensor.inside())
            for block in range(tensor.blocks):
                for copy in range(memory.copies_of(tensor)):
                    residues = tensor.residue(block, outside)
                    slices.append(memory.tensor_slices(tensor, copy, residues))
                    addresses.append(tensor.address(block, outside))
                    tags.append(tensor.tags(block, outside))
                    data.append(np.full((len(outside), machine.width), np.int8(tensor.fill).view(np.uint8), np.uint8))
    for tensor in memory.model.constants:
        assert tensor.data is not None, "a constant has elements"
        port = port_of(memory, tensor, every=True)
        flat: np.ndarray = np.concatenate([tensor.data.reshape(-1), np.zeros(1)]).astype(np.int8)
        slices.append(port.slices)
        addresses.append(port.addresses)
        tags.append(port.tags)
        data.append(flat[port.index][port.vectors].view(np.uint8))
    if not data:
        nothing = np.zeros(0, np.int64)
        return Image(nothing, nothing, nothing, np.zeros((0, machine.width), np.uint8))
    return Image(*(np.concatenate(each) for each in (slices, addresses, tags, data)))


def port_of(memory: MemoryMap, tensor: Placed, *, every: bool) -> Port:
    """Where a tensor lies: `every` copy of it, which an argument fills, or the one that a result is read from."""
    places = tensor.inside()
    lanes, pixels = memory.machine.width, np.arange(len(places))
    wide = tensor.dtype.itemsize
    copies = range(wide) if wide > 1 else range(memory.copies_of(tensor) if every else 1)
    index: list[np.ndarray] = []
    cells: list[np.ndarray] = []
    for block in range(tensor.blocks):
        channel = block * lanes + np.arange(lanes)
        index.append(lane_index(tensor, pixels, channel))
        for copy in copies:
            byte = copy if wide > 1 else 0
            cells.append(
                np.stack(
                    [
                        memory.tensor_slices(tensor, copy, tensor.residue(block, places)),
                        tensor.address(block, places),
                        block * len(places) + pixels,
                        np.full(len(places), byte),
                        tensor.tags(block, places),
                    ]
                )
            )
    slices, addresses, vectors, bytes_, tags = np.concatenate(cells, axis=1)
    full = np.concatenate(index)
    return Port(tensor.name, tensor.shape, tensor.dtype, full, tensor.fill, slices, addresses, vectors, bytes_, tags)


def lane_index(tensor: Placed, vectors: np.ndarray, channel: np.ndarray) -> np.ndarray:
    """The element of the flat array that each lane of vectors holds; -1 beyond the channels and the image."""
    line, column = np.divmod(vectors, tensor.width)
    if tensor.packing.slots > 1:
        slot, own = np.divmod(channel, tensor.channels)
        packing = tensor.packing
        row = packing.advance * (line[:, None] + packing.first) + packing.spread * slot + packing.lead
        inside = (slot < packing.slots) & (row >= 0) & (row < tensor.height)
    else:
        order = tensor.order
        own = channel if order is None else order[channel]
        row, inside = line[:, None], (own >= 0) & (own < tensor.channels)
    pixel = row * tensor.width + column[:, None]
    flat = pixel * tensor.channels + own if len(tensor.shape) == 2 else own * tensor.height * tensor.width + pixel
    return np.where(inside, flat, -1)
