"""The states of torch's generators before a call, so that what is computed again draws the same numbers."""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True, eq=False)
class RandomState:
    """The generators' states: of the host, and of the devices of some tensors."""

    host: torch.Tensor
    devices: Mapping[torch.device, torch.Tensor]
    after: list[tuple[torch.Tensor, Mapping[torch.device, torch.Tensor]]] = field(default_factory=list[Any])
    """The states after what was drawn first, from these."""

    @classmethod
    def before(cls, arguments: Sequence[Any]) -> RandomState:
        """The states that a call of these arguments begins with."""
        return cls(torch.get_rng_state(), {device: torch.cuda.get_rng_state(device) for device in _devices(arguments)})

    @classmethod
    def seeded(cls, seed: int, arguments: Sequence[Any]) -> RandomState:
        """The states that a seed decides."""
        states = {device: torch.Generator(device).manual_seed(seed).get_state() for device in _devices(arguments)}
        return cls(torch.Generator().manual_seed(seed).get_state(), states)

    @contextmanager
    def replayed(self) -> Generator[None]:
        """Draw from these states; the generators go on afterwards from where they are now."""
        now = torch.get_rng_state()
        on_devices = {device: torch.cuda.get_rng_state(device) for device in self.devices}
        self._set(self.host, self.devices)
        try:
            yield
        finally:
            if not self.after:
                ends = {device: torch.cuda.get_rng_state(device) for device in self.devices}
                self.after.append((torch.get_rng_state(), ends))
            self._set(now, on_devices)

    def go_on(self) -> None:
        """Let the generators go on from where what was drawn first left them, as if it had been drawn from them."""
        for host, devices in self.after:
            self._set(host, devices)

    @staticmethod
    def _set(host: torch.Tensor, devices: Mapping[torch.device, torch.Tensor]) -> None:
        torch.set_rng_state(host)
        for device, state in devices.items():
            torch.cuda.set_rng_state(state, device)


def _devices(arguments: Sequence[Any]) -> set[torch.device]:
    return {x.device for x in arguments if isinstance(x, torch.Tensor) and x.device.type == "cuda"}
