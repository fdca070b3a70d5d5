"""Where the memory of a tensor is, as a part of a launch's key: on the CPU, there but read-only, or on a GPU."""

# torch types only a part of what it has.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator
from typing import Any

from weft.frontends.triton.errors import KernelTypeError
from weft.runtime.writable import is_writable

READ_ONLY = 2
"""The place, in a key, of memory on the CPU that must not be written to. (True is that of other memory there.)"""


def place_of(value: Any) -> bool | int:
    """Where a tensor is: True or READ_ONLY on the CPU, else -1 for the first GPU, -2 for the next, and so on."""
    storage = value.untyped_storage()  # what stands for a tensor in a library may have little else
    if storage.device.type != "cpu":
        return -1 - (storage.device.index or 0)
    return storage.resizable() or place_of_foreign(storage)


def is_on_gpu(value: Any) -> bool:
    """Whether an argument lies on a GPU: a tensor, or what stands for one."""
    known = getattr(value, "is_cuda", None)
    if known is None and hasattr(value, "data_ptr"):
        known = getattr(getattr(value, "device", None), "type", None) == "cuda"
    return bool(known)


def address_of(value: Any, name: str | None = None) -> int:
    """Where a tensor's elements begin; one that is not in memory has no address, or 0, as one that is empty has."""
    if _is_fake(value):  # which torch would warn of
        raise _absent(value, name)
    try:
        address: int = value.data_ptr()
    except RuntimeError as error:
        raise _absent(value, name) from error
    if not address and value.numel():
        raise _absent(value, name)
    return address


def _is_fake(value: Any) -> bool:
    """Whether a tensor is only traced: there are such only where torch's module of them is loaded."""
    traced = sys.modules.get("torch._subclasses.fake_tensor")
    return traced is not None and isinstance(value, traced.FakeTensor)


def _absent(value: Any, name: str | None) -> KernelTypeError:
    which = "an argument" if name is None else f"the argument {name}"
    kind = f"{value.layout}".removeprefix("torch.") if value.device.type != "meta" else "meta"
    return KernelTypeError(
        f"{which}, a {type(value).__name__} ({kind}) of shape {tuple(value.shape)}, has no memory",
        hint="kernels take dense tensors that hold data",
    )


def place_of_foreign(storage: Any) -> bool | int:
    """The place of a tensor whose memory torch has not made itself: it may be a file that is mapped to be read."""
    return storage.device.type != "cpu" or is_writable(storage.data_ptr(), storage.nbytes()) or READ_ONLY


def device_of(key: Hashable) -> int | None:
    """The number of the GPU that the tensors of a key are on; None where they are on the CPU."""
    places = {place < 0 and place for place in _places(key)}
    if len(places) > 1:
        names = sorted("cpu" if place is False else f"cuda:{-1 - place}" for place in places)
        raise KernelTypeError(f"the tensors are on different devices: {', '.join(names)}", hint="move them to one")
    place = places.pop() if places else False
    return None if place is False else -1 - place


def _places(key: Hashable) -> Iterator[bool | int]:
    match key:
        case (_, bool(), bool() | int() as place):
            yield place
        case tuple():
            for part in key:
                yield from _places(part)
        case _:
            return
