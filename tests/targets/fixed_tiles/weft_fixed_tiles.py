"""The target `fixed_tiles`: a machine that multiplies tiles of 64 x 64 x 64 only, and has to know all sizes ahead.

There is no such machine: kernels run on the interpreter of the tile dialect. All else is as for one that there is: a
list of passes, capabilities, a plan, a check that the code is what the machine takes, memory, and a program to call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from xdsl.passes import ModulePass

from weft.backends.reference.tile import run_kernel
from weft.backends.target import ALONE, CostFacts, Host, argument_names, require_capabilities, result_names
from weft.capabilities import Capabilities
from weft.config import Config
from weft.errors import GuardError, LoweringError, UnsupportedError
from weft.lower.machine import Machine
from weft.lower.plan import build_plan
from weft.lower.steps import KernelStep, Plan
from weft.ops.graph import FuncOp, module_of
from weft.passes.grouping.group_into_kernels import GroupIntoKernels
from weft.passes.simplify.eliminate_common import EliminateCommon
from weft.passes.simplify.eliminate_dead import EliminateDead
from weft.passes.simplify.fold_constants import FoldConstants
from weft.passes.simplify.simplify import Simplify
from weft.pipelines import run_passes
from weft.runtime.record import compilation
from weft.tile import dialect as tile

SIDE = 64


@dataclass(frozen=True)
class TiledCode:
    """A plan and the kernels that its steps name."""

    plan: Plan
    code: Mapping[str, tile.KernelOp]
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class TiledProgram:
    """A plan with its kernels, run one after the other on memory that each call has for itself."""

    compiled: TiledCode

    @property
    def inputs(self) -> Sequence[str]:
        return self.compiled.inputs

    @property
    def outputs(self) -> Sequence[str]:
        return result_names(len(self.compiled.plan.outputs))

    def __call__(self, arrays: Sequence[Any], symbols: Mapping[str, int] | None = None) -> list[np.ndarray]:
        plan = self.compiled.plan
        if len(arrays) != len(plan.inputs):
            raise GuardError(f"the program takes {len(plan.inputs)} arguments, got {len(arrays)}")
        memory, views = zip(*map(_allocated, plan.buffers), strict=True)
        for number, array in zip(plan.inputs, arrays, strict=True):
            if views[number].shape != np.shape(array):
                wanted = plan.buffers[number].tensor
                raise GuardError(f"{self.inputs[number]} is {np.shape(array)}, the program takes {wanted}")
            views[number][...] = array
        for step in plan.steps:
            if not isinstance(step, KernelStep):
                raise UnsupportedError(f"{step.label} is a call to a framework", hint="compile with strict=True")
            run_kernel(self.compiled.code[step.function], [memory[number] for number in step.buffers], [])
        return [views[number].copy() for number in plan.outputs]


def _allocated(buffer: Any) -> tuple[np.ndarray, np.ndarray]:
    """The memory of a buffer, and its elements as they lie there."""
    shape, strides = buffer.tensor.shape, buffer.layout.strides
    span = 1 + sum(max(size - 1, 0) * stride for size, stride in zip(shape, strides, strict=True))
    flat = np.zeros(span, buffer.tensor.dtype.numpy)
    steps = [stride * flat.itemsize for stride in strides]
    return flat, np.lib.stride_tricks.as_strided(flat, shape, steps)


@dataclass(frozen=True)
class FixedTiles:
    """The machine."""

    name: ClassVar[str] = "fixed_tiles"
    device: ClassVar[str] = "cpu"
    capabilities: ClassVar[Capabilities] = Capabilities(dynamic_sizes=False, matmul_tile=(SIDE, SIDE, SIDE))
    costs: ClassVar[CostFacts] = CostFacts(bandwidth=100e9, matmul_flops=8e12, vector_flops=0.5e12)

    @classmethod
    def here(cls, config: Config, index: int = 0) -> Self:
        return cls()

    def passes(self, config: Config) -> list[ModulePass]:
        return [FoldConstants(), Simplify(), EliminateCommon(), EliminateDead(), GroupIntoKernels()]

    def compile(self, function: FuncOp, config: Config, host: Host = ALONE) -> TiledCode:
        require_capabilities(function, self)
        function.attributes.pop("constants", None)  # weights are arguments like all others
        with compilation(function.sym_name.data) as report:
            run_passes(module_of(function), self.passes(config), report, verify=config.verify)
            machine = Machine(tile_elements=SIDE * SIDE, capabilities=self.capabilities)
            planned = build_plan(function, machine=machine)
            report.planned(planned.plan, planned.schedules)
        for kernel in planned.kernels.values():
            _check(kernel)
        return TiledCode(planned.plan, planned.kernels, argument_names(function))

    def load(self, compiled: TiledCode, config: Config, host: Host = ALONE) -> TiledProgram:
        return TiledProgram(compiled)

    def cache_key(self) -> str:
        return ""  # kernels are interpreted: there is nothing to keep


def _check(kernel: tile.KernelOp) -> None:
    """Refuse products of other tiles than the machine has, but for sides of one element."""
    for op in kernel.walk():
        if isinstance(op, tile.DotOp):
            (rows, depth), (_, columns) = (tile.tile_type(value).sizes for value in (op.a, op.b))
            if not {rows, depth, columns} <= {1, SIDE}:
                raise LoweringError(f"{kernel.sym_name.data} multiplies {rows}x{depth} by {depth}x{columns}")
