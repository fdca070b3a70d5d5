"""Tiles of a GPU's products by measurement: the best few of the model's, on the device itself.

    %y = graph.group(%x, %w) {...}     →     %y = graph.group(%x, %w) {...} {schedule = [128, 192, 64]}

Each kernel is compiled and run by itself, on random numbers; candidates take turns. The winner is kept in the disk
cache, with what was predicted and what was measured, which reports show.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from xdsl.dialects.builtin import StringAttr

from weft.backends.nvidia.code import DeviceCode
from weft.backends.nvidia.compile import compile_kernels
from weft.backends.nvidia.ir.kernel_passes import KernelPass
from weft.backends.nvidia.target import NvidiaTarget
from weft.errors import LoweringError
from weft.ir.attributes import to_attribute
from weft.lower.machine import Machine
from weft.lower.plan import build_plan
from weft.lower.schedule.dot_model import estimates, in_clusters, products_of
from weft.lower.schedule.schedule import NOTE
from weft.lower.steps import Plan
from weft.ops.graph import FuncOp, GroupOp
from weft.ops.matmul.dot import Dot
from weft.passes.grouping.build_groups import SCHEDULE
from weft.runtime.cache import DiskCache, cache_key
from weft.runtime.tune import Sides, Tuned, TunedKernel, tell, tunable_kernels

log = logging.getLogger("weft")

Candidate: TypeAlias = tuple[Plan, DeviceCode]
DeviceTimer: TypeAlias = Callable[[FuncOp, Sequence[Candidate]], list[float]]
"""The seconds that each of several programs of a function takes on a device, measured in turns."""

_MEASURED = 4
"""Candidates of a kernel."""
_GAIN = 0.98
"""What a candidate must take less than, of the time of the model's choice: less may be chance."""


@dataclass
class DeviceTuner:
    """Measures and chooses. `cache` is None where nothing is to be kept."""

    target: NvidiaTarget
    machine: Machine
    timer: DeviceTimer
    passes: Sequence[KernelPass]
    """Those of a kernel."""
    cache: DiskCache | None = None
    progress: Callable[[str], None] = tell

    def tune(self, function: FuncOp) -> list[Tuned]:
        """Give the products of a function the tiles that are fastest; what was chosen for which."""
        return [tuned for kernel in tunable_kernels(function) if (tuned := self._tune(kernel)) is not None]

    def _tune(self, kernel: TunedKernel) -> Tuned | None:
        dots = [op for op in kernel.groups[0].block.ops if isinstance(op, Dot)]
        products = products_of(dots)
        if products is None:
            return None
        known = self._known(kernel)
        if known is not None:
            return self._choose(kernel, *known)
        options = [*estimates(products, self.machine)[:_MEASURED], *in_clusters(products, self.machine)[:1]]
        made = {each: made for each in options if (made := self._compiled(kernel, each.sides)) is not None}
        if not made:
            return None
        seconds = dict(zip(made, self.timer(kernel.alone, list(made.values())), strict=True))
        first, best = next(iter(made)), min(seconds, key=seconds.__getitem__)
        best = best if seconds[best] < _GAIN * seconds[first] else first
        note = f"{best}; {seconds[best] * 1e6:.3g} µs measured"
        self.progress(f"tuned {kernel.mode} ×{len(kernel.groups)}: {'x'.join(map(str, best.sides))}, {note}")
        if self.cache is not None:
            self.cache.put(self._key(kernel), {"sides": list(best.sides), "note": note}, {})
        chosen = self._choose(kernel, best.sides, note)
        return Tuned(chosen.label, chosen.uses, chosen.sides, seconds[first], seconds[best])

    def _compiled(self, kernel: TunedKernel, sides: Sides) -> Candidate | None:
        """The kernel by itself, with tiles of these sides; None where it takes another form."""
        function = kernel.alone.clone()
        function.attributes.pop("constants", None)  # nothing is packed for a GPU
        for group in function.block.ops:
            if isinstance(group, GroupOp):
                group.attributes[SCHEDULE] = to_attribute(sides)
        try:
            planned = build_plan(function, machine=self.machine)
            return planned.plan, compile_kernels(planned.kernels, self.target, self.passes)
        except LoweringError as error:
            log.debug("no kernel of sides %s: %s", sides, error)
            return None

    def _choose(self, kernel: TunedKernel, sides: Sides, note: str) -> Tuned:
        for group in kernel.groups:
            group.attributes[SCHEDULE] = to_attribute(sides)
            group.attributes[NOTE] = StringAttr(note)
        return Tuned(kernel.mode, len(kernel.groups), sides)

    def _key(self, kernel: TunedKernel) -> str:
        return cache_key("schedule", kernel.text, repr(self.target))

    def _known(self, kernel: TunedKernel) -> tuple[Sides, str] | None:
        """What was chosen before, and what was said of it."""
        entry = self.cache.get(self._key(kernel)) if self.cache is not None else None
        sides, note = (entry.meta.get("sides"), entry.meta.get("note")) if entry is not None else (None, None)
        if not isinstance(sides, list) or len(sides) not in (3, 4) or not isinstance(note, str):  # type: ignore[arg-type]
            return None
        return (tuple(sides), note) if all(isinstance(side, int) and side > 0 for side in sides) else None  # type: ignore[misc, arg-type]
