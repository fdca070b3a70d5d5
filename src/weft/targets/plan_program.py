"""Programs of Weft's own runtime as executables: arrays are lent to them, and sizes read from their shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from weft.backends.target import result_names
from weft.errors import GuardError
from weft.ir.expr import Expr
from weft.lower.steps import Plan
from weft.runtime.array_adapter import ArrayT
from weft.runtime.array_function import ArrayExecutor


@dataclass(frozen=True)
class PlanProgram(Generic[ArrayT]):
    """A loaded plan; a front end that has memory, threads and streams of its own brings an executor of its own."""

    plan: Plan
    executor: ArrayExecutor[ArrayT]
    inputs: tuple[str, ...] = ()

    @property
    def outputs(self) -> Sequence[str]:
        return result_names(len(self.plan.outputs))

    def __call__(self, arrays: Sequence[Any], symbols: Mapping[str, int] | None = None) -> list[ArrayT]:
        plan, count = self.plan, len(self.plan.inputs) + len(self.plan.fixed)
        if len(arrays) != count:
            raise GuardError(f"the program takes {count} arguments, got {len(arrays)}")
        taken = [self.executor.borrow(array, False)[0] for array in arrays]
        free = [array for place, array in enumerate(taken) if place not in plan.fixed]
        sizes = dict(symbols or {})
        for number, array in zip(plan.inputs, free, strict=True):
            for size, actual in zip(plan.buffers[number].tensor.shape, self.executor.arrays.shape(array), strict=True):
                if isinstance(size, Expr) and str(size) in size.symbols:
                    sizes.setdefault(str(size), actual)
        return self.executor(taken, sizes)
