"""Checkpoints of parameters that lie on ranks in blocks: a packed gate and up projection, split over an axis.

A rank's part of such a tensor is several pieces of the whole, and torch.distributed.checkpoint takes one of a DTensor:

    rows 0 to 15 as [{tp/2}] on two ranks    rank 0 has rows 0 to 3 and 8 to 11, rank 1 rows 4 to 7 and 12 to 15

`save_packed_parts` teaches DTensor to give several. All others are saved and loaded as ever.
"""

# DTensor's part in checkpoints, and the placement, have no public names.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, cast

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import _StridedShard


@dataclass(frozen=True)
class Piece:
    """A box of a tensor: where it begins in the whole, where in a rank's part, and its sizes."""

    offsets: tuple[int, ...]
    inside: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def chunk(self) -> ChunkStorageMetadata:
        return ChunkStorageMetadata(offsets=torch.Size(self.offsets), sizes=torch.Size(self.sizes))


def pieces_of(tensor: DTensor) -> list[Piece]:
    """The boxes of which this rank's part is made."""
    here = tensor.device_mesh.get_coordinate()
    if here is None:
        return []
    runs: list[list[tuple[int, int, int]]] = []
    for dim, size in enumerate(tensor.shape):
        rows = torch.arange(size)
        for axis, placement in enumerate(tensor.placements):
            if isinstance(placement, Shard | _StridedShard) and placement.dim == dim:
                blocks = placement.split_factor if isinstance(placement, _StridedShard) else 1
                parts = rows.reshape(blocks, -1).chunk(tensor.device_mesh.size(axis), 1)
                rows = parts[here[axis]].reshape(-1) if here[axis] < len(parts) else rows[:0]
        runs.append(list(_runs(rows.tolist())))
    return [Piece(*cast(Any, zip(*each, strict=True))) for each in product(*runs)]


def _runs(rows: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Rows that follow each other: the first, its place, and how many."""
    begin = 0
    for place in range(1, len(rows) + 1):
        if place == len(rows) or rows[place] != rows[place - 1] + 1:
            yield rows[begin], begin, place - begin
            begin = place


def _is_packed(tensor: DTensor) -> bool:
    return any(isinstance(placement, _StridedShard) for placement in tensor.placements)


@cache
def save_packed_parts() -> None:
    """Let checkpoints take DTensors in blocks piece by piece, from now on."""
    kind: Any = DTensor
    write_items, chunks, shard = kind.__create_write_items__, kind.__create_chunk_list__, kind.__get_tensor_shard__

    def packed_write_items(self: DTensor, fqn: str, object: Any) -> list[WriteItem]:
        if not _is_packed(self):
            return write_items(self, fqn, object)
        properties = TensorProperties.create_from_tensor(self.to_local())
        return [
            WriteItem(
                index=MetadataIndex(fqn, piece.chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk=piece.chunk, properties=properties, size=self.size()),
            )
            for piece in pieces_of(self)
        ]

    def packed_chunks(self: DTensor) -> list[ChunkStorageMetadata]:
        return [piece.chunk for piece in pieces_of(self)] if _is_packed(self) else chunks(self)

    def packed_shard(self: DTensor, index: MetadataIndex) -> torch.Tensor:
        if not _is_packed(self) or index.offset is None:
            return shard(self, index)
        piece = next(each for each in pieces_of(self) if each.offsets == tuple(index.offset))
        part = self.to_local()
        for dim, (begin, size) in enumerate(zip(piece.inside, piece.sizes, strict=True)):
            part = part.narrow(dim, begin, size)
        return part

    kind.__create_write_items__, kind.__create_chunk_list__ = packed_write_items, packed_chunks
    kind.__get_tensor_shard__ = packed_shard
