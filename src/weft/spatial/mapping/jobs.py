"""The jobs of products: which input vectors meet which tile of weights.

A convolution is a matrix product whose vectors are read where they lie (implicit GEMM): each tap of the kernel is a
pass over the same pixels, a step further, and a border around the image is read as padding. Where vectors hold several
rows, a pass meets as many taps as it finds in its vector: its tile has the taps' weights at the rows of the input's
slots and the columns of the output's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from weft.spatial.mapping.layers import (
    BlockProduct,
    Convolution,
    Job,
    Layer,
    Model,
    Pass,
    PixelSum,
    Placed,
    Stream,
    TensorTile,
    Window,
)

Meeting = tuple[int, int, int]
"""A slot of the input, a slot of the output, and the row of the kernel by which the first adds to the second."""


@dataclass(frozen=True)
class LineGroup:
    """Lines of output that are computed by the same tiles: for each pass what meets, and the input line of each."""

    lines: tuple[int, ...]
    meetings: tuple[tuple[Meeting, ...], ...]
    sources: tuple[tuple[int, ...], ...]


def make_jobs(model: Model, layer: Layer) -> Layer:
    """A layer with its jobs."""
    match layer.product:
        case Convolution(weights, window):
            assert layer.source is not None, "a product has a source"
            jobs = convolution_jobs(model, layer.source, layer.output, weights, window)
        case PixelSum():
            assert layer.source is not None, "a product has a source"
            jobs = _sum_jobs(model, layer.source, layer.output)
        case BlockProduct() as product:
            assert layer.source is not None, "a product has a source"
            jobs = _block_jobs(model, layer.source, layer.output, product)
        case None:
            jobs = _pixel_jobs(layer.output)
    return replace(layer, jobs=tuple(jobs))


def line_groups(source: Placed, output: Placed, window: Window) -> list[LineGroup]:
    """Which lines of the input make each line of the output."""
    holders: dict[int, list[tuple[int, int]]] = {}
    for line in range(-source.border, source.lines + source.border):
        for slot in range(source.packing.slots):
            if (row := source.row(line, slot)) is not None:
                holders.setdefault(row, []).append((line, slot))
    found: dict[tuple[tuple[Meeting, ...], ...], list[tuple[int, tuple[int, ...]]]] = {}
    order = sorted(range(output.lines), key=lambda line: (len(output.padded_slots(line)), line))
    step = window.strides[0] * output.packing.advance
    for line in order:
        needed: dict[tuple[int, int], int] = {}
        for slot in range(output.packing.slots):
            row = output.packing.row(line, slot)
            if 0 <= row < output.height:
                for tap in range(window.kernel[0]):
                    needed[slot, tap] = row * window.strides[0] + tap - window.padding[0][0]
        # The tiles of another line do, if what they meet here is what is needed.
        for meetings, lines in found.items():
            if padded := _shifted(source, meetings, lines[0], line, step, needed):
                lines.append((line, padded))
                break
        else:
            meetings, own = _covered(needed, holders)
            found.setdefault(meetings, []).append((line, own))
    groups: list[LineGroup] = []
    for meetings, lines in found.items():
        lines.sort()
        groups.append(LineGroup(tuple(line for line, _ in lines), meetings, tuple(own for _, own in lines)))
    return groups


def _shifted(
    source: Placed,
    meetings: tuple[tuple[Meeting, ...], ...],
    like: tuple[int, tuple[int, ...]],
    line: int,
    step: int,
    needed: dict[tuple[int, int], int],
) -> tuple[int, ...] | None:
    """The input lines of an output line, as far from it as those of another are; None where these do not do."""
    shift, rest = divmod((line - like[0]) * step, source.packing.advance)
    if rest:
        return None
    least, most = -source.border, source.lines + source.border - 1
    lines = tuple(min(max(each + shift, least), most) for each in like[1])
    met = {
        (into, tap): source.row(own, slot)
        for own, those in zip(lines, meetings, strict=True)
        for slot, into, tap in those
    }
    return lines if all(met.get(key) == row for key, row in needed.items()) else None


def _covered(
    needed: dict[tuple[int, int], int], holders: dict[int, list[tuple[int, int]]]
) -> tuple[tuple[tuple[Meeting, ...], ...], tuple[int, ...]]:
    """Few lines that hold all rows that are needed: each time the one that holds most of what is left."""
    left = dict(needed)
    chosen: list[tuple[int, tuple[Meeting, ...]]] = []
    while left:
        offers: dict[int, dict[tuple[int, int], Meeting]] = {}
        for (into, tap), row in left.items():
            for line, slot in holders[row]:
                offers.setdefault(line, {}).setdefault((into, tap), (slot, into, tap))
        line = max(offers, key=lambda each: (len(offers[each]), -each))
        chosen.append((line, tuple(offers[line].values())))
        for key in offers[line]:
            del left[key]
    chosen.sort()
    return tuple(those for _, those in chosen), tuple(line for line, _ in chosen)


def convolution_jobs(model: Model, source: Placed, output: Placed, weights: np.ndarray, window: Window) -> list[Job]:
    """A job for each block of output channels and each group of lines; weights are [N, C, rows, columns]."""
    model.macs += weights.size * output.height * output.width
    weights = source.arranged(output.arranged(weights), axis=1)
    lanes, (outs, ins) = model.lanes, weights.shape[:2]
    left = window.padding[1][0]
    columns = np.arange(output.width)
    jobs: list[Job] = []
    for block in range(output.blocks):
        taken = weights[block * lanes : (block + 1) * lanes]
        for group in line_groups(source, output, window):
            lines = np.repeat(np.array(group.lines), output.width)
            column = np.tile(columns, len(group.lines))
            passes: list[Pass] = []
            for number, meetings in enumerate(group.meetings):
                rows = np.repeat(np.array([each[number] for each in group.sources]), output.width)
                for tap in range(window.kernel[1]):
                    places = source.position(rows, column * window.strides[1] + tap - left)
                    for part in range(source.blocks):
                        tile = np.zeros((lanes, lanes), np.int8)
                        for slot, into, row in meetings:
                            those = taken[:, part * lanes : (part + 1) * lanes, row, tap].T
                            top, side = slot * ins, into * outs
                            tile[top : top + those.shape[0], side : side + those.shape[1]] = those
                        passes.append(Pass(model.tile(tile), part, places))
            jobs.append(Job(block, output.position(lines, column), lines * output.width + column, tuple(passes)))
    return _without_zeros(model, jobs)


def _without_zeros(model: Model, jobs: list[Job]) -> list[Job]:
    """Jobs without the passes whose weights are all zero, where this leaves each job as many, or one row of each."""
    kept = [tuple(each for each in job.passes if model.tiles[cast(int, each.tile)].any()) for job in jobs]
    if not kept or not all(kept) or len(kept[0]) == len(jobs[0].passes):
        return jobs
    if len({len(each) for each in kept}) != 1 and any(len(job.positions) > 1 for job in jobs):
        return jobs
    return [replace(job, passes=passes) for job, passes in zip(jobs, kept, strict=True)]


def aligned_lines(operand: Stream, output: Placed) -> list[int] | None:
    """For each line of the output the line of a tensor whose slots hold what its slots take; None where none does."""
    tensor, (offset, _), (stride, _) = operand.tensor, operand.offset, operand.stride
    own, other = output.packing, tensor.packing
    if own.slots != other.slots or (own.slots > 1 and other.spread != stride * own.spread):
        return None
    found: list[int] = []
    for line in range(output.lines):
        first = stride * own.row(line, 0) + offset - other.lead
        if first % other.advance:
            return None
        found.append(first // other.advance - other.first)
        for slot in range(own.slots):
            row = own.row(line, slot)
            if not -tensor.border <= found[-1] < tensor.lines + tensor.border:
                return None
            if 0 <= row < output.height and tensor.row(found[-1], slot) != stride * row + offset:
                return None
    return found


def _block_jobs(model: Model, source: Placed, output: Placed, product: BlockProduct) -> list[Job]:
    """A job for each block of the output."""
    model.macs += product.macs
    places, found = source.inside(), list[Job]()
    for block, parts in enumerate(product.passes):
        passes = tuple(
            Pass(tile if isinstance(tile, TensorTile) else model.tile(tile), part, places) for part, tile in parts
        )
        found.append(Job(block, output.inside(), np.arange(len(places)), passes))
    # Heads that share keys follow each other, so that a tile stays where it is.
    order: dict[tuple[int | TensorTile, ...], int] = {}
    for job in found:
        order.setdefault(tuple(each.tile for each in job.passes), len(order))
    return sorted(found, key=lambda job: order[tuple(each.tile for each in job.passes)])


def _sum_jobs(model: Model, source: Placed, output: Placed) -> list[Job]:
    """The sum over all pixels: the tile of ones on the diagonal, a pass for each pixel."""
    tile = model.tile(np.eye(model.lanes, dtype=np.int8))
    model.macs += source.channels * source.height * source.width
    places = source.inside()
    return [
        Job(
            block,
            output.inside(),
            np.arange(1),
            tuple(Pass(tile, block, place.reshape(1)) for place in places),
        )
        for block in range(output.blocks)
    ]


def _pixel_jobs(output: Placed) -> Sequence[Job]:
    """Nothing is multiplied: the vector unit computes each vector of each block."""
    return [Job(block, output.inside(), np.arange(output.lines * output.width), ()) for block in range(output.blocks)]
