"""The target `cpu`: machine code for a processor that LLVM knows, run by a tape in all threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from xdsl.passes import ModulePass

from weft.backends.cpu.target import CpuTarget, target_for
from weft.backends.target import ALONE, CostFacts, Host, result_names
from weft.capabilities import Capabilities
from weft.config import Config
from weft.ops.graph import FuncOp
from weft.pipelines import Compiled, compile_cpu, cpu_passes
from weft.runtime.arrays import run_arrays
from weft.runtime.blas import blas_symbols
from weft.runtime.cores import available_cores
from weft.runtime.executable import Executable


@dataclass(frozen=True)
class CpuProgram:
    """A program in this process, on NumPy's arrays; a front end may run `program` on memory of its own."""

    program: Executable
    inputs: tuple[str, ...]

    @property
    def outputs(self) -> Sequence[str]:
        return result_names(len(self.program.plan.outputs))

    def __call__(self, arrays: Sequence[Any], symbols: Mapping[str, int] | None = None) -> list[np.ndarray]:
        return run_arrays(self.program, [np.asarray(array) for array in arrays], symbols, available_cores())


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

    def passes(self, config: Config) -> list[ModulePass]:
        return cpu_passes(config, blas=bool(blas_symbols()))

    def compile(self, function: FuncOp, config: Config, host: Host = ALONE) -> Compiled[bytes]:
        return compile_cpu(function, config, self.processor, framework=host.libraries)

    def load(self, compiled: Compiled[bytes], config: Config, host: Host = ALONE) -> CpuProgram:
        return CpuProgram(Executable(compiled.plan, compiled.code, compiled.prepare), compiled.inputs)

    def cache_key(self) -> str:
        return repr(self.processor)
