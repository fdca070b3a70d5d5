"""Kernels in `torch.profiler` and the traces it writes: while it records, steps run one by one, each under its name.

Only those of the processor need that: what a GPU runs, the profiler finds by itself.
"""

# The quick form of torch's `record_function`, and whether a profiler is on, have no public names.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable

from torch._C._profiler import _RecordFunctionFast
from torch.autograd import profiler

from weft.runtime.frame import SingleSteps
from weft.runtime.profile import step_name
from weft.runtime.program import Apart
from weft.runtime.tape import Tape


def is_traced() -> bool:
    """Whether torch's profiler records what runs now."""
    return profiler._is_profiler_enabled


def run_traced(name: str, steps: SingleSteps, launch: Callable[[Tape], None], call: Callable[[Apart], None]) -> None:
    """Run the steps of a program, each as a range of the profiler's."""
    with _RecordFunctionFast(f"weft::{name}"):
        for step, segment in steps:
            with _RecordFunctionFast(f"weft::{step_name(step)}"):
                if isinstance(segment, Tape):
                    launch(segment)
                else:
                    call(segment)
