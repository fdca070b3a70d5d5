"""Functional collectives of torch.distributed as the graph's own: an axis is named as its process group is.

DTensor, FSDP and whoever calls `torch.distributed._functional_collectives` in code that is traced leave them in
captured graphs. They gather and scatter along the first dimension.
"""

# torch has no public name for what a group's name stands for.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from xdsl.ir import SSAValue

from weft.errors import UnsupportedError
from weft.frontends.torch.aten.table import aten
from weft.frontends.torch.importer.builder import ImportBuilder
from weft.ops.collectives import AllGather, AllReduce, AllToAll, Collective, ReduceScatter, Wait

_KINDS = {"sum": "sum", "avg": "avg", "max": "max", "min": "min", "product": "prod"}


def _kind(name: str) -> str:
    if name.lower() not in _KINDS:
        raise UnsupportedError(f"the reduction {name} over ranks")
    return _KINDS[name.lower()]


def group_size(name: str) -> int:
    """How many ranks a process group has."""
    from torch.distributed import distributed_c10d as c10d

    resolved: Any = c10d._resolve_process_group(cast(Any, name))  # pyright: ignore[reportPrivateImportUsage]
    return resolved.size()


def _start(b: ImportBuilder, op: type[Collective], values: Sequence[SSAValue], **params: Any) -> tuple[SSAValue, ...]:
    return tuple(b.insert(op.make(*values, location=b.location, **params)).results)


@aten("_c10d_functional.all_reduce")
def all_reduce(b: ImportBuilder, x: Any, kind: str, group: str) -> SSAValue:
    return all_reduce_coalesced(b, [x], kind, group)[0]


@aten("_c10d_functional.all_reduce_coalesced")
def all_reduce_coalesced(b: ImportBuilder, values: Sequence[Any], kind: str, group: str) -> tuple[SSAValue, ...]:
    return _start(b, AllReduce, values, kind=_kind(kind), axes=(group,), ranks=group_size(group))


@aten("_c10d_functional.all_gather_into_tensor")
def all_gather(b: ImportBuilder, x: Any, ranks: int, group: str) -> SSAValue:
    return all_gather_coalesced(b, [x], ranks, group)[0]


@aten("_c10d_functional.all_gather_into_tensor_coalesced")
def all_gather_coalesced(b: ImportBuilder, values: Sequence[Any], ranks: int, group: str) -> tuple[SSAValue, ...]:
    if any(b.tensor(value).rank == 0 for value in values):
        raise UnsupportedError("a number is gathered")
    return _start(b, AllGather, values, dim=0, axes=(group,), ranks=ranks)


@aten("_c10d_functional.reduce_scatter_tensor")
def reduce_scatter(b: ImportBuilder, x: Any, kind: str, ranks: int, group: str) -> SSAValue:
    return reduce_scatter_coalesced(b, [x], kind, ranks, group)[0]


@aten("_c10d_functional.reduce_scatter_tensor_coalesced")
def reduce_scatter_coalesced(
    b: ImportBuilder, values: Sequence[Any], kind: str, ranks: int, group: str
) -> tuple[SSAValue, ...]:
    return _start(b, ReduceScatter, values, kind=_kind(kind), dim=0, axes=(group,), ranks=ranks)


@aten("_c10d_functional.all_to_all_single")
def all_to_all(b: ImportBuilder, x: Any, received: Sequence[Any], sent: Sequence[Any], group: str) -> SSAValue:
    if len({*map(str, received), *map(str, sent)}) > 1:
        raise UnsupportedError("parts of several sizes are exchanged")
    return _start(b, AllToAll, [x], dim=0, split_dim=0, axes=(group,), ranks=len(sent))[0]


@aten("_c10d_functional.wait_tensor")
def wait_tensor(b: ImportBuilder, x: Any) -> SSAValue:
    return b.insert(Wait.make(x, location=b.location)).results[0]
