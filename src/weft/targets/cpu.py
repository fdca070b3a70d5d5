"""The target `cpu`: machine code for a processor that LLVM knows, run by a tape in all threads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from xdsl.passes import ModulePass

from weft.backends.cpu.target import CpuTarget, target_for
from weft.backends.target import ALONE, CostFacts, Host
from weft.capabilities import Capabilities
from weft.config import Config
from weft.lower.steps import Plan
from weft.ops.graph import FuncOp
from weft.runtime.compiled import Compiled
from weft.runtime.cores import available_cores
from weft.runtime.executable import Executable
from weft.runtime.numpy_arrays import HostExecutor
from weft.targets.plan_program import PlanProgram


@dataclass(frozen=True)
class Cpu:
    """A processor."""

    name: ClassVar[str] = "cpu"
    device: ClassVar[str] = "cpu"

    processor: CpuTarget

    @classmethod
    def here(cls, config: Config, index: int = 0) -> Self:
        return cls(target_for(config.cpu))

    @property
    def capabilities(self) -> Capabilities:
        return self.processor.capabilities

    @property
    def costs(self) -> CostFacts:
        return CostFacts(units=available_cores())

    def passes(self, config: Config, host: Host = ALONE) -> list[ModulePass]:
        from weft.pipelines import cpu_passes_for  # programs that are in the cache need no passes

        return cpu_passes_for(config, self.processor, framework=host.libraries)

    def compile(self, function: FuncOp, config: Config, host: Host = ALONE) -> Compiled[bytes]:
        from weft.pipelines import compile_cpu

        return compile_cpu(function, config, self.processor, framework=host.libraries)

    def plan(self, function: FuncOp, config: Config, host: Host = ALONE) -> Plan:
        from weft.pipelines import plan_cpu

        return plan_cpu(function, config, self.processor, framework=host.libraries)

    def load(self, compiled: Compiled[bytes], config: Config, host: Host = ALONE) -> PlanProgram[np.ndarray]:
        program = Executable(compiled.plan, compiled.code, compiled.prepare)
        return PlanProgram(compiled.plan, HostExecutor(program, threads=host.threads), compiled.inputs)

    def cache_key(self) -> str:
        return repr(self.processor)
