"""Copies of a GPU's tensors in the host's memory, as operators of graphs: each is begun by one, and awaited by another.

    %h = weft.offload %x          the copy begins, on a stream of its own, into pinned memory
    …                             the GPU computes other things; %x is still there
    %k = weft.offloaded %h, %x    what comes after this may be where %x was

    %c = weft.reload %k, device   and back: memory of the GPU's that is being filled
    …
    %x = weft.reloaded %c, %k     what comes after this may read it

Copies lie row by row, whatever the original does: nothing may move them while they are being made. Operands are taken
as they lie, since a copy of one would be gone before it is read. On a processor a copy lies in the same memory: values
and the order of calls are the same.
"""

# Torch's operators and streams have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import has_side_effect

_library = torch.library.Library("weft", "FRAGMENT")
_library.define("offload(Tensor x) -> Tensor")
_library.define("offloaded(Tensor(a) copy, Tensor x) -> Tensor(a)")
_library.define("reload(Tensor copy, Device device) -> Tensor")
_library.define("reloaded(Tensor(a) x, Tensor copy) -> Tensor(a)")

_ROWS = torch.contiguous_format
_streams: dict[tuple[torch.device, str], torch.cuda.Stream] = {}
"""One for each direction: a GPU copies in both at once."""
_under_way: dict[int, Any] = {}
"""What tells that a copy has ended, by the address of what is written."""


def _offload(x: Tensor) -> Tensor:
    if not x.is_cuda:
        return x.clone(memory_format=_ROWS)
    copy = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
    _begin(copy, x, x.device, "out")
    return copy


def _reload(copy: Tensor, device: torch.device) -> Tensor:
    if device.type != "cuda":
        return copy.clone(memory_format=_ROWS)
    x = torch.empty(copy.shape, dtype=copy.dtype, device=device)
    _begin(x, copy, device, "back")
    return x


def _begin(target: Tensor, source: Tensor, device: torch.device, direction: str) -> None:
    """Copy on a stream of its own, when what is launched so far has ended: it makes the source, or frees the target."""
    if not target.numel():
        return
    stream = _streams.get((device, direction))
    if stream is None:
        stream = _streams[device, direction] = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        target.copy_(source, non_blocking=True)
        _under_way[target.data_ptr()] = stream.record_event()


def _awaited(target: Tensor, source: Tensor) -> Tensor:
    """What has been begun, where all that is launched from now on waits for its end."""
    event = _under_way.pop(target.data_ptr(), None)
    if event is not None:
        torch.cuda.current_stream(source.device if source.is_cuda else target.device).wait_event(event)
    return target


def _empty_copy(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device="cpu")


def _empty_there(copy: Tensor, device: torch.device) -> Tensor:
    return torch.empty(copy.shape, dtype=copy.dtype, device=device)


def _same(target: Tensor, source: Tensor) -> Tensor:
    return target


for _name, _call, _shaped in (
    ("offload", _offload, _empty_copy),
    ("offloaded", _awaited, _same),
    ("reload", _reload, _empty_there),
    ("reloaded", _awaited, _same),
):
    _library.impl(_name, _call, "CompositeExplicitAutograd")
    torch.library.register_fake(f"weft::{_name}", _shaped)

_ops: Any = torch.ops.weft
OFFLOAD, OFFLOADED = _ops.offload.default, _ops.offloaded.default
RELOAD, RELOADED = _ops.reload.default, _ops.reloaded.default
BEGINNINGS = frozenset(("weft::offload", "weft::reload"))
WAITS = frozenset(("weft::offloaded", "weft::reloaded"))
FROM_HOST = frozenset(("weft::reload", "weft::reloaded"))
"""Calls that take a copy in the host's memory: `reload` as the first operand, `reloaded` as the second."""
for _each in (OFFLOADED, RELOADED):
    has_side_effect(_each)


def is_host_copy(node: fx.Node) -> bool:
    """Whether a node begins or awaits a copy."""
    return node.op == "call_function" and node.target in (OFFLOAD, OFFLOADED, RELOAD, RELOADED)


def lies_on_host(node: fx.Node) -> bool:
    """Whether a node's value is such a copy: what `offload` makes, or an argument that only copies back read."""
    if node.op == "placeholder":
        return bool(node.users) and all(user.target in (RELOAD, RELOADED) for user in node.users)
    return node.op == "call_function" and node.target in (OFFLOAD, OFFLOADED)
