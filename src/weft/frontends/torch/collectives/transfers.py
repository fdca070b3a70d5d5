"""Messages between two ranks as operators of torch: what stages of a pipeline give to each other.

A send returns at once and keeps what it sends; `finish_sends` waits until all has gone. Messages of one channel arrive
in the order in which they were sent.
"""

# Torch's operators and process groups have no types that can be followed.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

_library = torch.library.Library("weft", "FRAGMENT")
_library.define("send(Tensor x, str group, int peer, int channel) -> ()")
_library.define("recv(int[] shape, ScalarType dtype, Device device, str group, int peer, int channel) -> Tensor")
_under_way: list[tuple[Any, Tensor]] = []


def _send(x: Tensor, group: str, peer: int, channel: int) -> None:
    kept = x.clone(memory_format=torch.contiguous_format)  # the program's own memory is used again
    work = dist.isend(_as_sent(kept), peer, group=_resolve(group), tag=_tag(group, channel))
    _under_way.append((work, kept))


def _recv(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device, group: str, peer: int, channel: int
) -> Tensor:
    got = torch.empty(list(shape), dtype=dtype, device=device)
    dist.recv(_as_sent(got), peer, group=_resolve(group), tag=_tag(group, channel))
    return got


def _resolve(group: str) -> Any:
    resolve: Any = c10d._resolve_process_group
    return resolve(group)


def _tag(group: str, channel: int) -> int:
    return 0 if dist.get_backend(_resolve(group)) == "nccl" else channel  # NCCL has none: its messages come in order


def _as_sent(x: Tensor) -> Tensor:
    """Booleans travel as bytes."""
    return x.view(torch.uint8) if x.dtype == torch.bool else x


def finish_sends() -> None:
    """Wait until everything that was sent has gone."""
    while _under_way:
        work, _ = _under_way.pop(0)
        work.wait()


def forget_sends() -> None:
    """Give up what was not received: a rank is gone."""
    _under_way.clear()


def _fake_send(x: Tensor, group: str, peer: int, channel: int) -> None:
    return None


def _fake_recv(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device, group: str, peer: int, channel: int
) -> Tensor:
    return torch.empty(list(shape), dtype=dtype, device=device)


_library.impl("send", _send, "CompositeExplicitAutograd")
_library.impl("recv", _recv, "CompositeExplicitAutograd")
torch.library.register_fake("weft::send", _fake_send)
torch.library.register_fake("weft::recv", _fake_recv)

operators: Any = torch.ops.weft
