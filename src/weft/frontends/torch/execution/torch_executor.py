"""What executors on tensors of torch's add to those of the runtime: torch's profiler, and AOTAutograd's calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch

from weft.frontends.torch.execution.arrays import TorchArrays
from weft.frontends.torch.execution.device_checks import Watch
from weft.frontends.torch.execution.traced_steps import is_traced, run_traced
from weft.frontends.torch.execution.weight_watch import Unchanged, watch_weights
from weft.frontends.torch.importer.freezing import count_fused_steps
from weft.frontends.torch.importer.imported_graph import Calling
from weft.frontends.torch.importer.opaque import OpaqueRuntime
from weft.runtime.frame import Frame
from weft.runtime.plan_executor import PlanExecutor, ProgramT

BoxedCall: TypeAlias = Callable[[list[Any]], list[Any]]
"""What AOTAutograd calls: with a list of arguments, which it empties."""


class TorchExecutor(PlanExecutor[ProgramT, torch.Tensor]):
    """A compiled function as a callable on tensors."""

    def __init__(self, executable: ProgramT, opaque: OpaqueRuntime, device: torch.device) -> None:
        self.tensors = TorchArrays(device)
        super().__init__(executable, opaque, self.tensors)
        self.device = device
        if self.has_constants:
            count_fused_steps()

    def direct(
        self,
        calling: Calling,
        constants: Sequence[torch.Tensor],
        otherwise: BoxedCall,
        watch: Watch | None = None,
    ) -> BoxedCall | None:
        """A callable that does what `otherwise` does, on a shorter way, for a call whose sizes are known.

        Whatever is out of the ordinary is left to `otherwise`; `constants` are those of the graph. `watch` is told what
        the program says of its data where nobody waits for it.
        """
        return None

    def _unchanged(self, given: Sequence[torch.Tensor]) -> Unchanged | None:
        return watch_weights(given)

    def _run_segments(self, frame: Frame[torch.Tensor], held: dict[int, torch.Tensor]) -> None:
        if is_traced() and self.device.type == "cpu":
            self._run_traced(frame, held)
        else:
            super()._run_segments(frame, held)

    def _run_traced(self, frame: Frame[torch.Tensor], held: dict[int, torch.Tensor]) -> None:
        self._run_single_steps(frame, held, partial(run_traced, self.executable.plan.name))
