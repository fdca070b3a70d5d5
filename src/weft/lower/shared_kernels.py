"""The kernels of a plan: equal groups (the layers of a model) are lowered once and share one.

Beside each kernel stands what reports say of it: its schedule, what was decided about its group, and the lines of the
user's program that it comes from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from xdsl.dialects.builtin import FileLineColLoc, LocationAttr, StringAttr

from weft.errors import LoweringError
from weft.ir.attributes import identity_of
from weft.ir.locations import sourced
from weft.lower.dispatch import origin_of, try_lower
from weft.lower.lowered import Lowered
from weft.lower.machine import Machine
from weft.lower.refusal import Refusal
from weft.lower.work import work_of
from weft.ops.graph import GroupOp
from weft.ops.layouts import StridedLayout
from weft.passes.grouping.build_groups import EPILOGUE, group_key
from weft.passes.update_in_place import in_place_of
from weft.tile import dialect as tile

CUT = "weft.cut"
"""The attribute of a group that is what a larger one was cut into: why that was not lowered as a whole."""


@dataclass
class SharedKernels:
    """What has been lowered so far, by what groups compute and how their memory lies."""

    machine: Machine
    made: Callable[[tile.KernelOp], None] | None = None
    """Gets each kernel as soon as it is there."""
    kernels: dict[str, tile.KernelOp] = field(default_factory=dict[str, tile.KernelOp])
    schedules: dict[str, str] = field(default_factory=dict[str, str])
    sources: dict[str, set[LocationAttr]] = field(default_factory=dict[str, set[LocationAttr]])
    lowered: dict[Hashable, Lowered] = field(default_factory=dict[Hashable, Lowered])
    work: dict[str, int] = field(default_factory=dict[str, int])

    def lower(
        self, op: GroupOp, inputs: Sequence[StridedLayout], outputs: Sequence[StridedLayout]
    ) -> tuple[Lowered | Refusal, str]:
        """Lower a group, or find that an equal one has been lowered before; with a label. Or why there are none."""
        in_place = tuple(in_place_of(op).items())
        key = (group_key(op, identity_of), in_place, *inputs, *outputs)
        label = "_".join(o.name.removeprefix("graph.") for o in op.block.ops if not getattr(o, "CHEAP", True))[:60]
        if key not in self.lowered:
            text = f"{group_key(op, str)} {in_place} {inputs} {outputs}"
            digest = hashlib.sha256(text.encode()).hexdigest()[:12]
            name = f"{label or 'copy'}_{digest}"
            with sourced(origin_of(op)), _told_where(op):
                lowered = try_lower(op, name, inputs, outputs, self.machine)
            if isinstance(lowered, Refusal):
                return lowered, label
            for call in lowered.calls:
                self.add(call.kernel.op, f"{call.kernel.schedule}{_notes(op)}")
            self.lowered[key] = lowered
        for call in self.lowered[key].calls:
            self.sources.setdefault(call.kernel.op.sym_name.data, set()).update(lines_of(op))
        return self.lowered[key], label

    def add(self, kernel: tile.KernelOp, schedule: str) -> None:
        """Take up a kernel, with what is to be said of it; of those with one name the first is as good as any."""
        name = kernel.sym_name.data
        self.schedules[name] = schedule
        if name not in self.kernels:
            self.kernels[name] = kernel
            if self.made is not None:
                self.made(kernel)

    def known_work(self, kernel: tile.KernelOp) -> int:
        """The estimated time of one program, in nanoseconds."""
        name = kernel.sym_name.data
        if name not in self.work:
            self.work[name] = work_of(kernel)
        return self.work[name]


def lines_of(group: GroupOp) -> frozenset[LocationAttr]:
    """The places in the user's program that the ops of a group come from."""
    return frozenset(op.location for op in group.block.ops if isinstance(op.location, FileLineColLoc))


def _notes(group: GroupOp) -> str:
    """What was decided about a group before it was lowered."""
    said = (("", group.attributes.get(EPILOGUE)), ("cut from a group: ", group.attributes.get(CUT)))
    return "".join(f"; {before}{each.data}" for before, each in said if isinstance(each, StringAttr))


@contextmanager
def _told_where(group: GroupOp) -> Generator[None]:
    """Errors in lowering a group name the user's lines."""
    try:
        yield
    except LoweringError as error:
        raise LoweringError(error.message, hint=error.hint, sources=lines_of(group)) from error
