"""Memory for results: fresh tensors, or for large ones the memory of earlier results that nobody holds any more.

A large allocation is new to the process each time, and the system clears every page of it on first touch: that takes
several times as long as to write the result. Memory is taken again only when no tensor, view or storage of it is left
in this process, and it was neither shared with another process nor lent to NumPy.
"""

# torch leaves the reference count of storages without types.
# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import torch
from torch._C._dynamo.guards import _empty_strided_cpu  # `torch.empty_strided` in a third of the time

from weft.runtime.huge_pages import LARGE, use_huge_pages
from weft.runtime.strides import span

_KEPT = 3
"""Blocks kept of one size: the caller may hold the last result, or two, while the next is made."""


class ResultMemory:
    """The blocks of one program's results, by their size in bytes, if it keeps any."""

    def __init__(self, *, keeps: bool = True) -> None:
        self._keeps = keeps
        self._blocks: dict[int, list[torch.UntypedStorage]] = {}

    def maker(self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> Callable[..., torch.Tensor]:
        """What makes tensors of a shape, given that, their strides and their type."""
        is_kept = self._keeps and span(shape, strides) * dtype.itemsize >= LARGE
        return self.tensor if is_kept else _empty_strided_cpu

    def tensor(self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor for a large result; its content is undefined."""
        size = span(shape, strides) * dtype.itemsize
        blocks = self._blocks.setdefault(size, [])
        storage = next(iter(_free(blocks)), None)
        if storage is None:
            storage = torch.empty(size, dtype=torch.uint8).untyped_storage()
            use_huge_pages(storage.data_ptr(), size)
            del blocks[: len(blocks) - _KEPT + 1]
            blocks.append(storage)
            for other in [other for other in self._blocks if other != size]:
                self._drop_free(other)
        return torch.empty(0, dtype=dtype).set_(storage, 0, tuple(shape), tuple(strides))

    def release(self) -> None:
        """Keep nothing: what results still hold is theirs alone."""
        self._blocks.clear()

    def _drop_free(self, size: int) -> None:
        """Sizes change when shapes do: what an earlier shape left behind is given back."""
        blocks = self._blocks[size]
        free = {id(block) for block in _free(blocks)}
        blocks[:] = [block for block in blocks if id(block) not in free]
        if not blocks:
            del self._blocks[size]


def _free(blocks: Sequence[torch.UntypedStorage]) -> list[torch.UntypedStorage]:
    """The blocks that nobody else holds. Other processes that share one do not count as references."""
    found: list[torch.UntypedStorage] = []
    for block in blocks:
        # In this very frame: a call to another function may hold a reference of its own, or not.
        if sys.getrefcount(block) > _OURS or torch._C._storage_Use_Count(block._cdata) > 1:
            continue
        if not block.is_shared() and block.resizable():
            found.append(block)
    return found


def _references() -> int:
    """What `_free` counts of a storage that nobody else holds: the list's, the loop's and that of the count itself."""
    blocks, count = [torch.empty(1).untyped_storage()], 0
    for block in blocks:
        count = sys.getrefcount(block)
    return count


_OURS = _references()
"""References to a storage that nobody else holds; how many these are is Python's affair."""
