"""What code is made for where tensors lie, and what torch lends to programs there."""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from weft.backends.target import Host, Target, target_at
from weft.config import Config
from weft.frontends.torch.execution.device_timing import timer_on
from weft.frontends.torch.execution.reference import calls_on_arrays
from weft.frontends.torch.importer.opaque import OpaqueRuntime
from weft.runtime.cuda.cubins import EarlyLoader
from weft.runtime.stored_programs import disk_cache


def kind_of(inputs: Iterable[Any]) -> str:
    """The kind of device that a graph with these arguments is traced for."""
    given = {value.device.type for value in inputs if isinstance(value, torch.Tensor)}
    return "cuda" if "cuda" in given else "cpu"


def target_on(device: torch.device, config: Config) -> Target:
    """What code is made for on a device."""
    return target_at(device.type, config, device.index or 0)


def host_on(device: torch.device, config: Config, opaque: OpaqueRuntime) -> Host:
    """What torch lends to programs on a device."""
    if device.type != "cuda":
        return Host(libraries=True, opaque=calls_on_arrays(opaque))
    loads = EarlyLoader(device.index or 0, disk_cache() if config.cache else None)
    return Host(timer=timer_on(device), loads=loads)
