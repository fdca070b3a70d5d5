"""Times of collectives: pieces of α + β·bytes between measured sizes on NVLink, and a specification beyond it.

Over more GPUs than were measured, or over a network, a time is α–β from the specification, and says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.planner.op_costs import OpCosts
from weft.planner.program import Collective
from weft.planner.tables import Array

_NAMES = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "alltoall",
}
_STEP = 2e-6
"""One hop over NVLink in a collective that no table has, by specification."""


@dataclass(frozen=True)
class Measured:
    """Times of one collective over one number of GPUs, by bytes of the whole buffer."""

    sizes: Array
    seconds: Array

    def at(self, size: Any) -> Any:
        """Linear between measured sizes: a piece of α + β·bytes each; the last piece goes on."""
        wanted = np.asarray(size, dtype=float)
        found = np.interp(wanted, self.sizes, self.seconds)
        slope = (self.seconds[-1] - self.seconds[-2]) / (self.sizes[-1] - self.sizes[-2])
        beyond = self.seconds[-1] + slope * (wanted - self.sizes[-1])
        return np.where(wanted > self.sizes[-1], beyond, found)


def wire(kind: str, group: int) -> float:
    """The part of a buffer that each rank sends: what turns bytes into bus bandwidth."""
    if kind == "send":
        return 1.0
    return (2.0 if kind == "all_reduce" else 1.0) * (group - 1) / group


@dataclass(frozen=True)
class CollectiveCosts:
    """Prices collectives of one GPU's domain and network."""

    costs: OpCosts

    def seconds(self, op: Collective, size: Any) -> tuple[Any, str]:
        """The time of a collective over `size` bytes, and the step of the ladder."""
        if op.group <= 1 and op.kind != "send":
            return np.zeros_like(np.asarray(size, dtype=float)), "measured"
        gpu = self.costs.gpu
        if op.kind == "send":
            return gpu.network_latency + np.asarray(size) / gpu.network, "specification"
        if op.group <= gpu.nvlink_domain:
            return self._within(op.kind, op.group, size)
        inside = gpu.nvlink_domain
        outside = -(-op.group // inside)
        within, _ = self._within(op.kind, inside, size)
        steps = (2 if op.kind == "all_reduce" else 1) * max(1, int(np.ceil(np.log2(outside))))
        # Each rank's share of the buffer crosses the network once a direction, all ports at a time.
        share = np.asarray(size) / (inside if op.kind != "all_to_all" else 1)
        return within + steps * gpu.network_latency + wire(op.kind, outside) * share / gpu.network, "specification"

    def _within(self, kind: str, group: int, size: Any) -> tuple[Any, str]:
        found = self.measured(kind, group)
        if found is not None:
            ratio = self.costs.reference.nvlink / self.costs.gpu.nvlink
            if ratio == 1.0:
                return found.at(size), "interpolated"
            start = found.seconds[0]
            return start + (found.at(size) - start) * ratio, "transferred"
        known = [each for each in (2, 4, 8) if self.measured(kind, each) is not None]
        if not known:
            hops = np.log2(max(group, 2)) * (2 if kind == "all_reduce" else 1)
            return _STEP * hops + wire(kind, group) * np.asarray(size) / self.costs.gpu.nvlink, "roofline"
        nearest = min(known, key=lambda each: abs(np.log2(each / group)))
        seconds, _ = self._within(kind, nearest, np.asarray(size) * wire(kind, group) / wire(kind, nearest))
        return seconds * (np.log2(max(group, 2)) / np.log2(nearest) if group > nearest else 1.0) ** 0.5, "specification"

    def measured(self, kind: str, group: int) -> Measured | None:
        """The engine's own all-reduce as it runs in captured graphs, where there is one; else NCCL's."""
        key = ("collective", kind, group)
        if key not in self.costs.grids:
            self.costs.grids[key] = self._own(group) if kind == "all_reduce" else None
            if self.costs.grids[key] is None:
                self.costs.grids[key] = self._nccl(kind, group)
        return self.costs.grids[key]

    def _own(self, group: int) -> Measured | None:
        table = self.costs.table("custom_allreduce")
        if table is None:
            return None
        chosen = table["num_gpus"] == group
        captured = np.char.endswith(table["kernel_source"], "_graph") if "kernel_source" in table else ~chosen
        if (chosen & captured).any():
            chosen = chosen & captured
        return _of(table["message_size"][chosen] * 2.0, table["latency"][chosen] * 1e-3)

    def _nccl(self, kind: str, group: int) -> Measured | None:
        table = self.costs.table("nccl")
        if table is None or kind not in _NAMES:
            return None
        chosen = (table["op_name"] == _NAMES[kind]) & (table["num_gpus"] == group) & (table["nccl_dtype"] == "half")
        return _of(table["message_size"][chosen] * 2.0, table["latency"][chosen] * 1e-3)


def _of(sizes: Array, seconds: Array) -> Measured | None:
    if len(sizes) < 2:
        return None
    points = np.unique(sizes)
    return Measured(points, np.array([seconds[sizes == each].min() for each in points]))
